"""`ringsched synth`: what it writes and prints, and how it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.schedule.printer import format_text
from ringsched.verify.dataflow import findings_of


def synth(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringsched", "synth", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_file_and_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    result = synth("--collective", "all_gather", "--topology", "mesh:2x3", "-o", str(path), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found.pop("seconds") > 0
    assert found == {
        "collective": "all_gather",
        "topology": "mesh:2x3",
        "steps": 3,
        "units": 2.5,
        "bound_steps": 3,
        "bound_units": 2.5,
        "reason": "each corner has 2 links in and needs 5 shards",
        "how": "going both ways round a ring of all ranks",
        "verdict": "right",
        "path": str(path),
    }
    text = path.read_text(encoding="utf-8")
    assert findings_of(flatten(load(path))) == ()
    assert format_text(text, str(path)) == text
    assert text.startswith(
        """\
schedule: all_gather_mesh_2x3
description: |-
  2.5 units in 3 steps, by going both ways round a ring of all ranks. A unit is a rank's shard over one link.
  At the bound: each corner has 2 links in and needs 5 shards.
  Made by ringsched synth --collective all_gather --topology mesh:2x3
collective: all_gather
topology: {mesh: [2, 3]}
chunks: [2, 3, 2]
steps:
  - step:
      - send: chunk[0, 0]
        from: [0, 0]
        to: [0, 1]
"""
    )


def test_the_text_goes_to_stdout_the_same_each_time(tmp_path: Path) -> None:
    arguments = ("--collective", "reduce", "--topology", "links:0-1,1-2,0-2,2-3", "--root", "3", "--parts", "4")
    first, second = (synth(*arguments, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.returncode == 0
    assert first.stdout == second.stdout
    assert first.stderr.startswith(
        "reduce on links:0-1,1-2,0-2,2-3: right (data flow), 5 units in 5 steps. 25.0 % above"
    )
    path = tmp_path / "reduce.yaml"
    path.write_text(first.stdout, encoding="utf-8")
    schedule = load(path)
    assert schedule.description.endswith(
        "Made by ringsched synth --collective reduce on these links --root 3 --parts 4"
    )
    assert findings_of(flatten(schedule)) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_gather", "torus:4x1"), "error[RS240]: --topology torus:4x1: a side of 1 has no links"),
        (("all_gather", "links:0-1,2-3"), "none lead from rank 0 to 2, 3"),
        (("all_gathre", "ring:4"), "Did you mean all_gather?"),
        (("all_gather", "ring:4", "--root", "1"), "--root is for broadcast and reduce; all_gather has no root."),
        (("broadcast", "ring:4", "--root", "4"), "error[RS308]: the root 4 is not one of the 4 ranks"),
        (("all_to_all", "mesh:32x32"), "error[RS241]: the schedule is too large"),
        (("all_gather", "ring:4", "--parts", "0"), "Invalid value for '--parts'"),
        (("all_gather", "ring:4", "-o", "/"), "error[RS611]: / cannot be written"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    collective, topology, *rest = arguments
    result = synth("--collective", collective, "--topology", topology, *rest)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr
