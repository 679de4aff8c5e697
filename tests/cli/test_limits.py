"""What is too large, cannot be written or is interrupted: a clear message, the right exit code, nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ringsched.cli import run_command
from ringsched.commands.output import write_file

COMMAND = [sys.executable, "-m", "ringsched"]
FULL = Path("/dev/full")

PARTS = """schedule: parts
collective: all_gather
topology: {ring: N}
params: {N: 4, parts: 2}
chunks: [N, parts]
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - s) % N]
        to: r + 1
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, float]:
    start = time.perf_counter()
    status = run_command(arguments)
    return status, capsys.readouterr().err, time.perf_counter() - start


@pytest.mark.parametrize(
    ("setting", "status", "said"),
    [
        ("parts=1000000000", 1, "error[RS307]: a chunk dimension of 1000000000 makes over 16,777,216 chunks"),
        ("N=1000000000", 1, "error[RS210]: a ring of 1000000000 ranks is over the limit of 65536"),
        ("N=2..200000", 2, "error[RS112]: `--set` asks for 199,999 sizes, and at most 1,000 are checked at a time"),
        ("N=2..40", 0, ""),
    ],
)
def test_sizes(setting: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(PARTS, encoding="utf-8")
    found, err, seconds = run(["verify", str(path), "--set", setting], capsys)
    assert (found, said in err) == (status, True)
    assert seconds < 5


def test_a_size_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(PARTS.replace("parts: 2", "parts: 1000000000"), encoding="utf-8")
    status, err, seconds = run(["verify", str(path)], capsys)
    assert status == 1 and "error[RS307]" in err
    assert seconds < 5


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "all_gather"],
        ["verify", "all_gather", "--json"],
        ["show", "all_gather"],
        ["explain", "RS301"],
        ["schedules"],
        ["--help"],
        ["schema"],
    ],
    ids=" ".join,
)
def test_no_room_for_the_output(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert "error[RS611]: the output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_no_room_for_the_messages() -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, "verify", "nosuch"], stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "arguments", [["verify", "a.yaml"], ["fmt", "a.yaml"], ["show", "all_gather", "-o", "a.yaml"]], ids=" ".join
)
def test_a_loop_of_links(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").symlink_to("b.yaml")
    Path("b.yaml").symlink_to("a.yaml")
    status, err, _ = run(arguments, capsys)
    assert status == 2 and "Too many levels of symbolic links" in err
    assert sorted(os.listdir()) == ["a.yaml", "b.yaml"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """But not what another one still writes, nor what is somebody else's."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".k.py.ringsched-{dead.pid}.abc").write_text("half")
    (tmp_path / f".k.py.ringsched-{os.getpid()}.abc").write_text("another one writes it")
    (tmp_path / f".other.py.ringsched-{dead.pid}.abc").write_text("of another file")
    (tmp_path / ".k.py.swp").write_text("an editor's")
    write_file(tmp_path / "k.py", "whole")
    assert sorted(os.listdir(tmp_path)) == sorted(
        [".k.py.swp", f".k.py.ringsched-{os.getpid()}.abc", f".other.py.ringsched-{dead.pid}.abc", "k.py"]
    )
    assert (tmp_path / "k.py").read_text() == "whole"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_it_starts(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """From where the interpreter runs our first line on; before that it is Python that is interrupted."""
    found = Counter[int]()
    for after in (0.0, 0.02, 0.05, 0.1, 0.2):
        code = "import os; print(flush=True); import ringsched.__main__ as m; m.main()"
        command = [sys.executable, "-c", code, "verify", "all_reduce_mesh", "--set", "X=8", "--set", "Y=8"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.06 + after)
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=30)
            assert b"Traceback" not in err, err
        found[process.returncode] += 1
    assert found == {status: 5}
    assert os.listdir(tmp_path) == []
