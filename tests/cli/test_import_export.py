"""`ringsched import` and `ringsched export`: exit codes, what goes where, what is written."""

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ringsched.cli import run_command

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpus" / "msccl"
SHARED = next((found for folder in ROOT.parents if (found := folder / "shared" / "msccl").is_dir()), None)


def ringsched(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in this process."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(cwd or before)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command([str(argument) for argument in arguments])
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_a_right_file(tmp_path: Path) -> None:
    result = ringsched("import", "msccl", CORPUS / "broadcast_star.xml", "-o", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 0
    assert "broadcast_star.xml: right (broadcast of 3 ranks with root 1; runs with any number of mess" in result.stdout
    assert result.stderr == "wrote mine.yaml, 2 steps\n"
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert text.startswith(
        "schedule: mine\ndescription: Imported from an MSCCL broadcast of 3 ranks, broadcast_test.\n"
    )
    assert ringsched("verify", "mine.yaml", cwd=tmp_path).returncode == 0


def test_to_stdout_and_without_output(tmp_path: Path) -> None:
    result = ringsched("import", "msccl", CORPUS / "reduce_line.xml", "-o", "-", cwd=tmp_path)
    assert result.stdout.startswith("schedule: reduce_test\n") and "right (reduce of 3 ranks" in result.stderr
    result = ringsched("import", "msccl", CORPUS / "reduce_line.xml", cwd=tmp_path)
    assert result.returncode == 0 and list(tmp_path.iterdir()) == []


def test_json(tmp_path: Path) -> None:
    result = ringsched("import", "msccl", CORPUS / "all_reduce_exchange.xml", "-o", "mine.yaml", "--json", cwd=tmp_path)
    entry = json.loads(result.stdout)
    seconds = entry.pop("seconds")
    assert 0 <= seconds < 10
    assert entry == {
        "file": str(CORPUS / "all_reduce_exchange.xml"),
        "collective": "all_reduce",
        "ranks": 3,
        "root": None,
        "protocol": "LL128",
        "depth": 8,
        "verdict": "right",
        "least_depth": 1,
        "diagnostics": [],
        "steps": 1,
        "schedule": "mine.yaml",
    }
    assert result.stderr == ""


def test_a_wrong_file_is_not_written(tmp_path: Path) -> None:
    text = (CORPUS / "reduce_line.xml").read_text(encoding="utf-8")
    assert 'type="rrs"' in text
    (tmp_path / "wrong.xml").write_text(text.replace('type="rrs"', 'type="rcs"'), encoding="utf-8")
    result = ringsched("import", "msccl", "wrong.xml", "-o", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error[RS819]: o[0] of rank 0 is not what reduce with root 0 promises\n")
    assert result.stdout.startswith("wrong.xml: wrong (1 error, reduce of 3 ranks with root 0, in place; runs with any")
    assert not (tmp_path / "mine.yaml").exists()
    entry = json.loads(ringsched("import", "msccl", "wrong.xml", "--json", cwd=tmp_path).stdout)
    assert (entry["verdict"], entry["least_depth"], entry["schedule"]) == ("wrong", 1, None)
    (finding,) = entry["diagnostics"]
    assert (finding["code"], finding["path"], finding["line"]) == ("RS819", "wrong.xml", 4)


def test_an_undecided_file(tmp_path: Path) -> None:
    text = (CORPUS / "reduce_line.xml").read_text(encoding="utf-8").replace('coll="reduce"', 'coll="custom"')
    (tmp_path / "custom.xml").write_text(text, encoding="utf-8")
    result = ringsched("import", "msccl", "custom.xml", "-o", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 3
    assert result.stderr.startswith("error[RS704]: it is not known what 'custom' promises\n")
    assert "custom.xml: undecided (custom of 3 ranks" in result.stdout
    assert not (tmp_path / "mine.yaml").exists()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<algo", encoding="utf-8")
    result = ringsched("import", "msccl", "bad.xml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "bad.xml: not judged\n")
    assert result.stderr.startswith("error[RS131]: bad.xml is not well-formed XML: unclosed token\n  --> bad.xml:1:1\n")
    entry = json.loads(ringsched("import", "msccl", "bad.xml", "--json", cwd=tmp_path).stdout)
    assert (entry["verdict"], entry["least_depth"]) == ("not checked", None)
    for name, code in (("nothing.xml", "RS101"), (".", "RS102"), ("/dev/null", "RS101")):
        result = ringsched("import", "msccl", name, cwd=tmp_path)
        assert result.returncode == 2 and result.stderr.startswith(f"error[{code}]: "), result.stderr


def test_a_file_that_no_schedule_can_say(tmp_path: Path) -> None:
    """The verdict on it stands."""
    file = CORPUS / "all_reduce_line.xml"
    result = ringsched("import", "msccl", file, "-o", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 3 and "all_reduce_line.xml: right (allreduce" in result.stdout
    assert result.stderr.startswith(
        "error[RS705]: no schedule can say this: rank 1 has to hold two values of chunk [0]"
    )
    assert not (tmp_path / "mine.yaml").exists()
    result = ringsched("import", "msccl", file, "--json", cwd=tmp_path)
    entry = json.loads(result.stdout)
    assert (result.returncode, entry["verdict"], entry["steps"]) == (0, "right", None)
    assert [finding["code"] for finding in entry["diagnostics"]] == ["RS705"]


def test_a_schedule_that_could_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringsched.commands.importing.MAX_BYTES", 100)
    result = ringsched("import", "msccl", CORPUS / "reduce_line.xml", "-o", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 3 and not (tmp_path / "mine.yaml").exists()
    assert result.stderr.startswith("error[RS705]: no schedule can say this: its file would have ")


def test_the_file_itself_is_not_overwritten(tmp_path: Path) -> None:
    text = (CORPUS / "reduce_line.xml").read_text(encoding="utf-8")
    (tmp_path / "a.xml").write_text(text, encoding="utf-8")
    result = ringsched("import", "msccl", "a.xml", "-o", "a.xml", cwd=tmp_path)
    assert result.returncode == 2 and "error[RS611]: a.xml cannot be written" in result.stderr
    assert (tmp_path / "a.xml").read_text(encoding="utf-8") == text


@pytest.mark.skipif(SHARED is None, reason="the files of other writers are not here")
def test_files_of_others_take_less_than_a_second() -> None:
    """Of the processor, as a whole process: others may be at work on the machine."""
    assert SHARED is not None
    for name in ("ar_allpairs_n4", "forestcoll_ag_torus2x4"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "ringsched", "import", "msccl", str(SHARED / f"{name}.xml")]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_export_and_import(tmp_path: Path) -> None:
    result = ringsched("export", "msccl", "reduce_scatter", "--set", "N=3", "-o", "a.xml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        "wrote a.xml: reducescatter of 3 ranks, 2 blocks of at most 2 steps on 1 channel; judged right: it runs with "
        "1 or more messages in flight, Simple has 2\n"
    )
    assert ringsched("import", "msccl", "a.xml", "-o", "b.yaml", cwd=tmp_path).returncode == 0
    assert "collective: reduce_scatter" in (tmp_path / "b.yaml").read_text(encoding="utf-8")
    text = ringsched("export", "msccl", "reduce_scatter", "--set", "N=3").stdout
    assert text == (tmp_path / "a.xml").read_text(encoding="utf-8")
    entry = json.loads(ringsched("export", "msccl", "reduce_scatter", "--set", "N=3", "--json").stdout)
    assert (entry["text"], entry["verdict"], entry["least_depth"], entry["channels"]) == (text, "right", 1, 1)


def test_exports_that_are_refused(tmp_path: Path) -> None:
    for form in ("msccl", "chakra"):
        for name in ("all_gather_matmul", "tp_mlp"):
            result = ringsched("export", form, name, cwd=tmp_path)
            assert result.returncode == 2
            assert result.stderr.startswith(f"error[RS831]: {name} cannot be exported: it multiplies\n")
    assert ringsched("export", "msccl", "shift").returncode == 2
    wrong = (
        (ROOT / "schedules" / "all_gather.yaml").read_text(encoding="utf-8").replace("(r - s) % N", "(r - s - 1) % N")
    )
    (tmp_path / "wrong.yaml").write_text(wrong, encoding="utf-8")
    result = ringsched("export", "msccl", "wrong.yaml", "-o", "a.xml", cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.startswith("error[RS301]: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wrong.yaml"]
    entry = json.loads(ringsched("export", "msccl", "shift", "--json").stdout)
    assert [finding["code"] for finding in entry["diagnostics"]] == ["RS831"]


def test_traces(tmp_path: Path) -> None:
    result = ringsched("export", "chakra", "shift", "--set", "N=2", "--bytes", "64", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "wrote shift.0.et … shift.1.et: 4 nodes, an operand of 64 bytes on each rank\n"
    assert (tmp_path / "shift.0.et").read_bytes().startswith(b"\x07\x0a\x050.0.4")
    result = ringsched(
        "export", "chakra", "shift", "--set", "N=2", "--format", "json", "--json", "-o", "t", cwd=tmp_path
    )
    entry = json.loads(result.stdout)
    assert entry["files"] == ["t.0.json", "t.1.json"] and entry["nodes"] == 4
    assert len(json.loads((tmp_path / "t.1.json").read_text(encoding="utf-8"))["workload_graph"]) == 2
