"""The real command: exit codes, what goes to stdout and to stderr, and what is written."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SCHEDULES = HERE.parents[1] / "schedules"
ALL_GATHER = (SCHEDULES / "all_gather.yaml").read_text(encoding="utf-8")
REDUCE_SCATTER = (SCHEDULES / "reduce_scatter.yaml").read_text(encoding="utf-8")


def ringsched(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringsched", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def write(path: Path, text: str, *changes: tuple[str, str]) -> Path:
    """`text` with some parts changed; each must be there."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


# -- right ----------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys, ringsched.cli as c; r = c.run_command(['--help']); print(r, sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "verify" in result.stdout and "Exit codes: 0 right" in result.stdout
    for heavy in ("jax", "numpy", "networkx", "pydantic", "ruamel", "rich", "dataclasses"):
        assert f"'{heavy}'" not in result.stdout


def test_a_right_schedule():
    result = ringsched("verify", "all_gather.yaml", "--set", "N=5", cwd=SCHEDULES)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "all_gather.yaml: right for N = 5 (checked at these sizes; data flow, values, races, deadlock, leftovers; "
        "2 calls in a row) in 0."
    )


def test_a_range_is_checked_value_by_value(tmp_path):
    result = ringsched("verify", "all_gather", "--set", "N=2..6")
    assert result.returncode == 0
    assert "right, checked for N = 2 … 6 (data flow" in result.stdout
    # right up to N = 3: with more ranks chunks are missing
    path = write(tmp_path / "short.yaml", ALL_GATHER, ("0 .. N - 2", "0 .. min(N - 2, 1)"))
    result = ringsched("verify", path, "--set", "N=2..6", "--json")
    assert result.returncode == 1
    entry = json.loads(result.stdout)
    assert (entry["verdict"], entry["params"]) == ("wrong", {"N": 4})
    assert entry["diagnostics"][0]["code"] == "RS302"


def test_one_rank_is_the_identity():
    assert ringsched("verify", "all_gather", "reduce_scatter", "all_reduce", "--set", "N=1").returncode == 0


def test_several_files_are_all_checked_and_the_worst_counts(tmp_path):
    wrong = write(tmp_path / "wrong.yaml", ALL_GATHER, ("(r - s) % N", "(r - s - 1) % N"))
    result = ringsched("verify", wrong, "all_gather", "missing.yaml", "--json", cwd=tmp_path)
    entries = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 2
    assert result.stderr == ""
    assert [entry["verdict"] for entry in entries] == ["wrong", "right", "not checked"]
    assert [entry["proof"] for entry in entries] == [None, "these sizes", None]
    assert set(entries[0]) == {"schedule", "params", "verdict", "proof", "seconds", "diagnostics"}
    [finding] = entries[0]["diagnostics"]
    assert (finding["code"], finding["path"], finding["line"], finding["column"]) == ("RS301", str(wrong), 10, 15)
    assert finding["counterexample"] == {"N": 2, "s": 0, "r": 0}
    assert finding["help"]
    result = ringsched("verify", wrong, "all_gather")
    assert result.returncode == 1
    assert "error[RS301]: chunk is sent before it is held\n" in result.stderr
    assert [line.split(" (")[0] for line in result.stdout.splitlines()] == [
        f"{wrong}: wrong for N = 4",
        "all_gather: right for N = 4",
    ]


def test_a_terminal_gets_colour_and_a_pipe_does_not(tmp_path):
    pty = pytest.importorskip("pty")
    wrong = write(tmp_path / "wrong.yaml", ALL_GATHER, ("(r - s) % N", "(r - s - 1) % N"))
    seen = {}
    for name, extra in (("colour", {}), ("plain", {"NO_COLOR": "1"})):
        ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | extra
        command = [sys.executable, "-m", "ringsched", "verify", str(wrong)]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60)
        os.close(theirs)
        seen[name] = os.read(ours, 100_000).decode()
        os.close(ours)
    assert "\x1b[" in seen["colour"] and "RS301" in seen["colour"]
    assert "\x1b[" not in seen["plain"] and "error[RS301]" in seen["plain"]


# -- bad input: code, place, help; nothing written --------------------------------------------------------------------

STEP = "chunk[(r - s) % N]"
BAD = {  # of all_gather: what is changed, the code, line and column
    "tab": ("    do:", "\tdo:", "RS108", (9, 1)),
    "duplicate_key": ("chunks: [N]", "chunks: [N]\nchunks: [N]", "RS109", (7, 1)),
    "unknown_key": ("chunks:", "chunk:", "RS110", (6, 1)),
    "wrong_type": ("{N: 4}", "{N: four}", "RS112", (5, 13)),
    "unknown_name": (STEP, "chunk[(r - t) % N]", "RS202", (10, 26)),
    "call": (STEP, "chunk[abs(r)]", "RS203", (10, 21)),
    "operator": (STEP, "chunk[r / N]", "RS203", (10, 23)),
    "division_by_zero": (STEP, "chunk[r % (N - 4)]", "RS204", (10, 26)),
    "index_out_of_range": (STEP, "chunk[r + 1]", "RS206", (10, 21)),
    "not_a_neighbour": ("to: r + 1", "to: r + 2", "RS207", (11, 13)),
    "off_the_end": ("{ring: N}", "{line: N}", "RS208", (11, 13)),
    "to_itself": ("to: r + 1", "to: r", "RS209", (11, 13)),
    "no_ranks": ("{N: 4}", "{N: 0}", "RS210", (4, 18)),
    "minus_one_rank": ("{N: 4}", "{N: -1}", "RS210", (4, 18)),
    "too_many_ranks": ("{N: 4}", "{N: 1000000000}", "RS210", (4, 11)),
    "long_loop": ("0 .. N - 2", "0 .. 1000000000", "RS211", (8, 10)),
    "not_held": (STEP, "chunk[(r - s - 1) % N]", "RS301", (10, 15)),
    "missing_at_the_end": ("0 .. N - 2", "0 .. N - 3", "RS302", None),
    "use_missing": ("  - for", "  - use: nothing.yaml\n  - for", "RS120", (8, 10)),
    "use_itself": ("  - for", "  - use: use_itself.yaml\n  - for", "RS121", (8, 10)),
}
SEND = "          - send: chunk[0]\n            to: r {} 1\n"
TWICE = "      - step:\n" + SEND.format("+") + SEND.format("-")
BAD_SUMS = {  # of reduce_scatter
    "counted_twice": ("0 .. N - 2", "0 .. N - 1", "RS303", None),
    "lost": ("        op: reduce\n", "", "RS304", None),
    "wrong_owner": ("(r - s - 1) % N", "(r - s) % N", "RS306", None),
    "written_twice": ("      - send: chunk", TWICE + "      - send: chunk", "RS305", None),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """What one command says about all of them."""
    folder = tmp_path_factory.mktemp("bad")
    for name, (old, new, _, _) in BAD.items():
        write(folder / f"{name}.yaml", ALL_GATHER, (old, new))
    for name, (old, new, _, _) in BAD_SUMS.items():
        write(folder / f"{name}.yaml", REDUCE_SCATTER, (old, new))
    files = sorted(os.listdir(folder))
    start = time.perf_counter()
    result = ringsched("verify", *files, "--json", cwd=folder)
    assert time.perf_counter() - start < 10  # the loop of 10^9 steps is not run
    assert result.returncode == 2
    assert result.stderr == ""
    assert sorted(os.listdir(folder)) == files
    entries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [entry["schedule"] for entry in entries] == files
    return {Path(entry["schedule"]).stem: entry for entry in entries}


@pytest.mark.parametrize("name", [*BAD, *BAD_SUMS])
def test_bad_input(name, refused):
    _, _, code, place = (BAD | BAD_SUMS)[name]
    entry = refused[name]
    finding = entry["diagnostics"][0]
    assert entry["verdict"] == ("not checked" if code < "RS2" else "wrong")
    assert entry["seconds"] < 2
    assert finding["code"] == code, finding
    assert finding["help"]
    assert finding["path"] == f"{name}.yaml"
    assert finding["line"] >= 1 and finding["column"] >= 1
    if place is not None:
        assert (finding["line"], finding["column"]) == place
    if code >= "RS204":
        assert finding["counterexample"] or code == "RS211"


@pytest.mark.parametrize("size", ["0", "-1", "1000000000"])
def test_sizes_that_make_no_ring(size, tmp_path):
    result = ringsched("compile", "all_gather", "--set", f"N={size}", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "error[RS210]" in result.stderr
    assert f"counterexample: N = {size}" in result.stderr
    assert "nothing was written" in result.stderr
    assert os.listdir(tmp_path) == []


FILES = {  # name: bytes, code
    "not YAML": (b"schedule: [\n", "RS107"),
    "empty": (b"", "RS105"),
    "not UTF-8": (b"schedule: \xff\xfe\n", "RS103"),
    "10 MB": (b"a" * 10_000_000, "RS104"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_read(name, tmp_path):
    content, code = FILES[name]
    (tmp_path / "bad.yaml").write_bytes(content)
    result = ringsched("verify", "bad.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "bad.yaml: not checked (1 error)\n")
    assert result.stderr.startswith(f"error[{code}]: ")
    assert "help: " in result.stderr


def test_a_directory_and_a_missing_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(ALL_GATHER)
    result = ringsched("verify", tmp_path, "mime.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "error[RS102]" in result.stderr
    assert "help: did you mean mine.yaml?" in result.stderr


def test_one_slot_is_a_race_of_two_accesses(tmp_path):
    path = write(tmp_path / "one.yaml", REDUCE_SCATTER + "lowering: {slots: 1}\n")
    result = ringsched("compile", path, cwd=tmp_path)
    assert result.returncode == 1
    assert "error[RS401]" in result.stderr
    assert "counterexample: ranks = 3" in result.stderr  # the smallest at which it happens
    assert "ranks = 5" in ringsched("compile", path, "--set", "N=5", cwd=tmp_path).stderr  # that which was asked for
    assert "reads slots[0]" in result.stderr and "writes slots[0]" in result.stderr
    assert "-------- asked for here" in result.stderr
    assert "nothing was written" in result.stderr
    assert os.listdir(tmp_path) == ["one.yaml"]
    assert ringsched("verify", path, "--set", "N=2").returncode == 0


def test_settings_that_make_no_sense():
    texts = ["N", "N=abc", "M=", "X=5..2", "Y=99999999999999999999"]
    result = ringsched("verify", "all_gather", *(word for text in texts for word in ("--set", text)))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("error[RS112]: `--set ") == 4
    assert result.stderr.count("error[RS205]: `--set ") == 1
    for help in ("write --set N=8", "write --set M=8", "write --set X=2..5", "use a smaller value"):
        assert f"help: {help}" in result.stderr
    assert ringsched("verify", "all_gather", "--set", "N=3", "--set", "N=4").returncode == 2


def test_parameters_that_the_schedule_has_not():
    result = ringsched("verify", "all_gather", "--set", "n=3", "--set", "M=1")
    assert result.returncode == 2
    assert result.stderr.count("error[RS213]") == 2
    assert "help: did you mean `N`?" in result.stderr and "its parameters are `N`" in result.stderr


# -- compile ----------------------------------------------------------------------------------------------------------


def test_compile_writes_a_module_and_says_what_was_proven(tmp_path):
    result = ringsched("compile", "reduce_scatter", "--set", "N=3", "--explain", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("reduce_scatter → reduce_scatter.py: right for N = 3 (checked at these sizes; ")
    assert result.stderr.startswith("decisions\n  ")
    assert "barrier" in result.stderr
    text = (tmp_path / "reduce_scatter.py").read_text(encoding="utf-8")
    assert "Generated by ringsched" in text and "N = 3  # ranks" in text
    assert os.listdir(tmp_path) == ["reduce_scatter.py"]
    printed = ringsched("compile", "reduce_scatter", "--set", "N=3", "-o", "-", cwd=tmp_path)
    assert printed.stdout == text
    assert "right for N = 3" in printed.stderr
    assert (
        printed.stdout
        != ringsched("compile", "reduce_scatter", "--set", "N=3", "-o", "-", "--debug", "--no-audit").stdout
    )


def test_emit(tmp_path):
    program = ringsched("compile", "all_gather", "--emit", "program", "--no-audit", cwd=tmp_path)
    assert program.stdout.startswith("program all_gather (r in 0 .. 3)\n")
    assert os.listdir(tmp_path) == []
    schedule = ringsched("compile", "all_gather", "--emit", "schedule", "-o", "again.yaml", "--no-audit", cwd=tmp_path)
    assert schedule.returncode == 0
    assert "schedule: all_gather" in (tmp_path / "again.yaml").read_text()
    both = ringsched("compile", "all_gather", "--emit", "kernel", "--json", "--no-audit")
    assert (both.returncode, both.stdout) == (2, "")


def test_json_of_compile(tmp_path):
    result = ringsched("compile", "shift", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["audit"]["verdict"] == "right"
    entry = json.loads(result.stdout)
    assert (entry["verdict"], entry["params"], entry["output"]) == ("right", {"N": 4}, "shift.py")


@pytest.mark.parametrize("output", ["taken", "missing/kernel.py", "mine.yaml/kernel.py", "mine.yaml"])
def test_outputs_that_cannot_be_written(output, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "mine.yaml").write_text(ALL_GATHER)
    result = ringsched("compile", "mine.yaml", "-o", output, "--no-audit", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"error[RS611]: {output} cannot be written: " in result.stderr
    assert "help: " in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["mine.yaml", "taken"]
    assert (tmp_path / "mine.yaml").read_text() == ALL_GATHER


def test_a_file_of_someone_else_is_only_overwritten_by_name(tmp_path):
    (tmp_path / "shift.py").write_text("mine = 1\n")
    result = ringsched("compile", "shift", "--no-audit", cwd=tmp_path)
    assert result.returncode == 2
    assert "ringsched did not write" in result.stderr
    assert (tmp_path / "shift.py").read_text() == "mine = 1\n"
    assert ringsched("compile", "shift", "-o", "shift.py", "--no-audit", cwd=tmp_path).returncode == 0
    assert ringsched("compile", "shift", "--no-audit", cwd=tmp_path).returncode == 0  # now it is a kernel of ours


def test_a_written_file_has_the_usual_mode_and_a_link_stays(tmp_path):
    (tmp_path / "link.py").symlink_to("kernel.py")
    assert ringsched("compile", "shift", "-o", "link.py", "--no-audit", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.py").is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "kernel.py").stat().st_mode & 0o777 == 0o666 & ~umask
    assert ringsched("compile", "shift", "-o", os.devnull, "--no-audit").returncode == 0
    assert not Path(os.devnull).is_file()


def test_targets_and_shapes_are_checked_first(tmp_path):
    for arguments, code in (
        (["--target", "v5"], "RS601"),
        (["--target", "v5e:2x2", "--set", "N=5"], "RS603"),
        (["--target", "v5e:2x2", "--shape", "x=8x"], "RS112"),
        (["--target", "v5e:2x2", "--shape", "x=10x128"], "RS607"),
    ):
        result = ringsched("compile", "reduce_scatter", *arguments, "--no-audit", cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        assert f"error[{code}]" in result.stderr
        assert "help: " in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_target(tmp_path):
    pytest.importorskip("libtpu")
    result = ringsched("compile", "shift", "--target", "v5e:2x2", "--shape", "x=8x128:bf16", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    entry = json.loads(result.stdout)
    assert (entry["target"], entry["kernel"], entry["output"]) == ("v5e:2x2", "shift", "shift.py")
    assert entry["compile_seconds"] > 0 and entry["vmem_bytes"] > 0 and entry["semaphores"] > 0 and entry["cycles"] > 0
    assert entry["ideal_cycles"] is None and entry["utilization"] is None


# -- the small commands -----------------------------------------------------------------------------------------------


def test_explain():
    assert ringsched("explain", "rs301").stdout.startswith("RS301: a chunk is sent before it is held\n")
    lines = ringsched("explain").stdout.splitlines()
    assert "RS301  a chunk is sent before it is held" in lines and len(lines) > 40
    unknown = ringsched("explain", "RS3301")
    assert unknown.returncode == 2
    assert "Did you mean RS301?" in unknown.stderr


def test_init_and_fmt(tmp_path):
    assert ringsched("init", "mine", cwd=tmp_path).returncode == 0
    text = (tmp_path / "mine.yaml").read_text()
    assert ringsched("fmt", "--check", "mine.yaml", cwd=tmp_path).returncode == 0
    assert ringsched("verify", "mine.yaml", "--set", "N=1..5", cwd=tmp_path).returncode == 0
    again = ringsched("init", "mine", cwd=tmp_path)
    assert again.returncode == 2 and "error[RS611]" in again.stderr
    assert ringsched("init", "2x", cwd=tmp_path).returncode == 2
    (tmp_path / "mine.yaml").write_text(text.replace("chunks: [N]", "chunks: [ N ]"))
    check = ringsched("fmt", "--check", "mine.yaml", cwd=tmp_path)
    assert (check.returncode, check.stdout) == (1, "mine.yaml: not formatted\n")
    assert ringsched("fmt", "mine.yaml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "mine.yaml").read_text() == text
    assert ringsched("fmt", "missing.yaml", cwd=tmp_path).returncode == 2
    assert os.listdir(tmp_path) == ["mine.yaml"]


def test_schema_and_schedules():
    schema = json.loads(ringsched("schema").stdout)
    assert schema["title"] == "ringsched schedule"
    names = {line.split()[0] for line in ringsched("schedules").stdout.splitlines() if not line.startswith(" ")}
    assert names >= {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


# -- misuse and faults ------------------------------------------------------------------------------------------------


def test_misuse():
    for arguments, hint in (
        (["veryfy"], "Did you mean 'verify'?"),
        (["verify"], "Missing argument"),
        (["verify", "all_gather", "--jsn"], "--json"),
    ):
        result = ringsched(*arguments)
        assert result.returncode == 2
        assert hint in result.stderr
    assert ringsched("--version").stdout.startswith("ringsched ")


def run_patched(patch: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"{patch}\nimport sys, ringsched.cli\nsys.exit(ringsched.cli.run_command({list(arguments)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("error", ["ringsched.diagnostics.InternalError('two and two')", "KeyError('two and two')"])
def test_a_fault_of_ours_is_said_to_be_one(error):
    patch = f"import ringsched.diagnostics, ringsched.pipeline as p\ndef prove(s): raise {error}\np.prove = prove"
    result = run_patched(patch, "verify", "all_gather")
    assert result.returncode == 101
    assert "This is a bug in ringsched" in result.stderr
    assert "two and two" in result.stderr
    assert "ringsched verify all_gather" in result.stderr
    assert "Traceback" not in result.stderr
    result = run_patched(patch, "--traceback", "verify", "all_gather")
    assert result.returncode == 101
    assert "Traceback" in result.stderr


def test_an_interrupt():
    patch = "import ringsched.pipeline as p\ndef prove(s): raise KeyboardInterrupt\np.prove = prove"
    result = run_patched(patch, "verify", "all_gather")
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away():
    command = [sys.executable, "-m", "ringsched", "explain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_large_kernel_is_audited_at_a_smaller_size(tmp_path: Path) -> None:
    result = ringsched("compile", "all_gather", "--set", "N=12", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["audit"]["params"] == [{"N": 4}]
    result = ringsched("compile", "all_gather", "--set", "N=12", "--no-audit", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["audit"] is None


def test_verify_audits_where_it_is_asked_to() -> None:
    result = ringsched("verify", "reduce_scatter", "--set", "N=2..3", "--audit")
    assert result.returncode == 0
    assert "2 kernels audited, up to N = 3" in result.stdout
    assert "audited" not in ringsched("verify", "reduce_scatter").stdout


def test_overlap_is_an_option_of_all_that_compile(tmp_path: Path) -> None:
    result = ringsched("compile", "all_gather_matmul", "--overlap", "none", "--explain", "--no-audit", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("all_gather_matmul → all_gather_matmul.py: right for N = 4, overlap none (checked")
    assert re.search(r"products +all of them behind the all-gather\n +asked for by `overlap: none`", result.stderr)
    assert "overlap   none" in (tmp_path / "all_gather_matmul.py").read_text(encoding="utf-8")
    result = ringsched("verify", "all_gather_matmul", "--overlap", "none", "--set", "N=2..3")
    assert "right, checked for N = 2 … 3, overlap none (" in result.stdout
    entry = json.loads(ringsched("verify", "all_gather_matmul", "--overlap", "full", "--json").stdout)
    assert (entry["overlap"], entry["verdict"]) == ("full", "right")
    assert "overlap" not in json.loads(ringsched("verify", "all_gather_matmul", "--json").stdout)


def test_overlap_of_what_multiplies_nothing() -> None:
    for command in ("verify", "compile", "run"):
        result = ringsched(command, "all_gather", "--overlap", "none")
        assert result.returncode == 2
        assert "error[RS218]: `overlap` is for one schedule that multiplies, and all_gather mult" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--compare", "matmul"), "Error: --compare puts two reports of --target side by side."),
        (("--target", "v5p:2x2x1", "--compare", "nothing.py"), "error[RS613]: nothing.py cannot be read: No such file"),
        (
            ("--target", "v5p:2x2x1", "--compare", "mine.py"),
            "error[RS613]: mine.py is not a kernel module that ringsched",
        ),
        (("--target", "v5p:2x2x1", "--compare", "mine.json"), "error[RS613]: mine.json is no report on a target"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_is_compiled(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "mine.py").write_text("import jax\n", encoding="utf-8")
    (tmp_path / "mine.json").write_text(ringsched("verify", "matmul", "--json").stdout, encoding="utf-8")
    result = ringsched("compile", "matmul", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "matmul.py").exists()


@pytest.mark.slow
def test_a_comparison(tmp_path: Path) -> None:
    """Of a kernel with a module, a report and a schedule; one that cannot be compared still has its own figures."""
    pytest.importorskip("libtpu")
    common = ["--target", "v5p:2x2x1", "--shape", "x=64x256:bf16", "--no-audit"]
    alone = ringsched("compile", "matmul", *common, "--shape", "w=256x256:bf16", "--json", cwd=tmp_path)
    assert json.loads(alone.stdout)["operands"] == ["x=64x256:bf16", "w=256x256:bf16"]
    (tmp_path / "alone.json").write_text(alone.stdout, encoding="utf-8")
    for other in ("matmul.py", "alone.json", "matmul_reduce_scatter"):
        command = ["compile", "matmul_reduce_scatter", "--overlap", "none", *common, "--shape", "w=256x256:bf16"]
        result = ringsched(*command, "--compare", other, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        _, first, second, _, *rows = result.stdout.splitlines()
        assert first == "  A  matmul_reduce_scatter, overlap none" and second.startswith(f"  B  {other}")
        assert next(row.split() for row in rows if "matmul cycles" in row)[-1] == "1.000"
        entry = json.loads(ringsched(*command, "--compare", other, "--json", cwd=tmp_path).stdout)
        assert entry["compared"]["ideal_cycles"] == entry["ideal_cycles"] > 0 and entry["diagnostics"] == []
        assert entry["compared"]["file"].startswith(other) and entry["overlap"] == "none"
    result = ringsched("compile", "reduce_scatter", *common, "--compare", "matmul.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "issue cycles" in result.stdout and (tmp_path / "reduce_scatter.py").exists()
    assert "error[RS613]: matmul.py does not take x=64x256:bf16: its operands are x, w" in result.stderr
