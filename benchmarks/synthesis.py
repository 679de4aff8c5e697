"""What `ringsched synth` reaches, beside the bounds and the goals: steps, units, and the time it takes.

    python benchmarks/synthesis.py [--only mesh] [--xml FOLDER]

Prints Markdown tables; docs/synthesis.md has them. Seconds are those of one call in a process that has
started: bound, search or construction, and the data-flow check. `--only`: rows whose topology begins so, and no others.
The second table has whole processes: `ringsched verify` of large schedules, and `ringsched import msccl` of each file
of the folder that `--xml` names, of which the slowest is shown.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

from ringsched.plans.plan import PlanKind
from ringsched.synth.place import parse_topology
from ringsched.synth.search import shown, synthesise

# collective, topology, and the most units that are allowed (None: no goal but the bound)
CASES: list[tuple[PlanKind, str, Fraction | None]] = [
    *(
        (kind, where, None)
        for where in ("ring:8", "ring:16", "torus:4x4", "torus:8x8", "torus:16x16", "torus:4x8", "torus:4x4x4")
        for kind in ("all_gather", "reduce_scatter")
    ),
    ("all_gather", "torus:8x8x8", None),
    ("all_gather", "torus:32x32", None),
    ("all_gather", "mesh:4x4", Fraction(33, 4)),
    ("reduce_scatter", "mesh:4x4", Fraction(33, 4)),
    ("all_gather", "mesh:8x8", Fraction(693, 20)),
    ("reduce_scatter", "mesh:8x8", Fraction(693, 20)),
    ("all_gather", "mesh:5x5", None),
    ("all_gather", "mesh:7x7", None),
    ("all_gather", "mesh:4x4x4", None),
    ("all_reduce", "torus:4x4", None),
    ("all_reduce", "torus:8x8", None),
    ("all_reduce", "mesh:4x4", Fraction(11)),
    ("all_reduce", "mesh:8x8", None),
    ("all_to_all", "torus:4x4", Fraction(42, 5)),
    ("all_to_all", "torus:8x8", Fraction(336, 5)),
    ("all_to_all", "torus:4x4x4", Fraction(168, 5)),
    ("all_to_all", "mesh:4x4", None),
    ("all_to_all", "mesh:8x8", None),
    ("broadcast", "mesh:4x4", None),
    ("broadcast", "torus:4x4", None),
    ("broadcast", "mesh:8x8", None),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--xml", type=Path, default=None, help="a folder of MSCCL XML files")
    options = parser.parse_args()
    only = options.only
    synthesise(parse_topology("mesh:2x2"), "all_gather")  # imports
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print("| collective | topology | bound: units (steps) | reached: units (steps) | above | seconds |")
    print("|---|---|---|---|---|---|")
    for kind, where, goal in CASES:
        if not where.startswith(only):
            continue
        start = time.perf_counter()
        found = synthesise(parse_topology(where), kind)
        seconds = time.perf_counter() - start
        assert found.verdict == "right"
        above = found.units / found.bound.units - 1
        missed = f", goal {shown(goal)} missed" if goal is not None and found.units > goal else ""
        print(
            f"| {kind} | {where} | {shown(found.bound.units)} ({found.bound.steps}) "
            f"| {shown(found.units)} ({found.steps}) | {100 * float(above):.1f} %{missed} | {seconds:.2f} |",
            flush=True,
        )

    if not only:
        whole_processes(options.xml)


PROCESSES = [  # command, and the most seconds that are allowed
    ("verify all_gather_torus --set X=16 --set Y=16", 5),
    ("verify reduce_scatter_torus --set X=16 --set Y=16", 5),
    ("verify all_reduce_torus --set X=16 --set Y=16", 5),
    ("verify all_gather_torus --set X=32 --set Y=32", 20),
    ("verify reduce_scatter_torus --set X=32 --set Y=32", 20),
    ("verify all_reduce_torus --set X=32 --set Y=32", 20),
    ("verify all_reduce_halving_doubling --set N=256", 2),
]


def whole_processes(folder: Path | None) -> None:
    print("\n| command | seconds | goal |")
    print("|---|---|---|")
    for command, goal in PROCESSES:
        print(f"| `ringsched {command}` | {seconds(command.split()):.2f} | {goal} |", flush=True)
    files = sorted(folder.glob("*.xml")) if folder is not None else []
    if files:
        slowest = max(seconds(["import", "msccl", str(file), "--json"]) for file in files)
        print(f"| `ringsched import msccl`, the slowest of {len(files)} files | {slowest:.2f} | 1 |")


def seconds(arguments: list[str]) -> float:
    """Of one process, the faster of two; it must not find a bug."""
    found = []
    for _ in range(2):
        start = time.perf_counter()
        result = subprocess.run([sys.executable, "-m", "ringsched", *arguments], capture_output=True, check=False)
        found.append(time.perf_counter() - start)
        assert result.returncode in (0, 1), result.stderr.decode()
    return min(found)


if __name__ == "__main__":
    main()
