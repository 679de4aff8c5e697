"""`ringsched show`: table, JSON, picture, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def show(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringsched", "show", *map(str, arguments)],
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_table() -> None:
    done = show("all_gather_bidirectional", "--set", "N=8")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    summary = "all_gather on a ring of 8: 4 steps, 3.5 units; no schedule takes fewer than 4 and 3.5"
    assert done.stdout.splitlines()[0] == f"all_gather_bidirectional  {summary}"
    assert ["1", "32", "16", "0", "→", "1", "(r", "+", "1)", "1"] in rows
    assert ["4", "16", "16", "0", "→", "1", "(r", "+", "1)", "0.5"] in rows
    assert ["all", "112", "3.5"] in rows
    assert ["r", "-", "1", "3.5", "3.5"] in rows


def test_json_and_picture(tmp_path: Path) -> None:
    svg = tmp_path / "drawn.svg"
    done = show("reduce_scatter", "--set", "N=3", "--json", "-o", svg)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found == {
        "schedule": "reduce_scatter",
        "params": {"N": 3},
        "collective": "reduce_scatter",
        "topology": "ring",
        "sides": [3],
        "steps": 2,
        "units": 2,
        "latency": 2,
        "bound_steps": 1,
        "bound_units": 1,
        "chunk_units": 1,
        "per_step": [{"step": k, "chunks": 3, "busiest": [0, 1], "units": 1} for k in (1, 2)],
        "links": [[0, 1, 2], [0, 2, 0], [1, 0, 0], [1, 2, 2], [2, 0, 2], [2, 1, 0]],
        "path": str(svg),
    }
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_picture_on_stdout() -> None:
    done = show("shift", "-o", "-")
    assert ElementTree.fromstring(done.stdout).tag.endswith("svg")


def test_a_wrong_schedule_is_shown_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    text = "schedule: wrong\ncollective: all_gather\ntopology: {line: 3}\nchunks: [3]\nsteps:\n"
    file.write_text(text + "  - {send: 'chunk[0]', from: 1, to: 2}\n")
    done = show(file)
    assert done.returncode == 0
    assert "all_gather on a line of 3: 1 step, 1 unit; " in done.stdout


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    file = tmp_path / "off.yaml"
    text = "schedule: off\ncollective: all_gather\ntopology: {line: 3}\nchunks: [3]\nsteps:\n"
    file.write_text(text + "  - {send: 'chunk[r]', to: r + 1}\n")
    done = show(file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[RS208]: a transfer goes past the end of the line" in done.stderr
    assert show(tmp_path / "none.yaml").returncode == 2
    chain = show("tp_mlp")
    assert chain.returncode == 2
    assert "tp_mlp is a chain; show the schedules that it uses, one by one." in chain.stderr
    large = show("all_gather", "--set", "N=2000", "-o", tmp_path / "large.svg")
    assert large.returncode == 2
    assert "draw 1024 or fewer" in large.stderr
    assert not (tmp_path / "large.svg").exists()
