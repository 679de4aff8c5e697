"""Times the compiler as a user meets it: whole processes, with their peak memory.

    python benchmarks/compiler_speed.py [--runs 3]

Prints a Markdown table (median of the runs, the machine in the caption); the README's figures come from here.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

CASES = [
    ("`ringsched --help`", ["--help"], "0.15 s"),
    ("verify all_reduce, N = 128", ["verify", "all_reduce", "--set", "N=128"], "1 s"),
    ("verify all_reduce, N = 256", ["verify", "all_reduce", "--set", "N=256"], "1 s"),
    ("verify all_reduce, N = 1024", ["verify", "all_reduce", "--set", "N=1024"], "3 s, 300 MB"),
    ("verify reduce_scatter, N = 256", ["verify", "reduce_scatter", "--set", "N=256"], "1 s"),
    ("verify all_gather, N = 256", ["verify", "all_gather", "--set", "N=256"], "1 s"),
    ("verify all_to_all, N = 64", ["verify", "all_to_all", "--set", "N=64"], "3 s"),
    (
        "compile reduce_scatter, N = 256, --no-audit",
        ["compile", "reduce_scatter", "--set", "N=256", "--no-audit"],
        "2 s",
    ),
    ("compile all_gather, N = 256, --no-audit", ["compile", "all_gather", "--set", "N=256", "--no-audit"], "2 s"),
    ("compile all_reduce, N = 256, --no-audit", ["compile", "all_reduce", "--set", "N=256", "--no-audit"], "2 s"),
    ("compile all_reduce, N = 256", ["compile", "all_reduce", "--set", "N=256"], ""),
]


def run(arguments: list[str], directory: str) -> tuple[float, float]:
    """Seconds and peak MB of one process; raises where it fails."""
    start = time.perf_counter()
    process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", _ENTRY, directory, *arguments])
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"ringsched {' '.join(arguments)} failed with status {status}")
    return seconds, usage.ru_maxrss / 1024


_ENTRY = """
import os, sys
os.chdir(sys.argv[1])
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
sys.argv = ["ringsched", *sys.argv[2:]]
from ringsched.__main__ import main
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"Measured, whole process, median of {runs}; {machine}.\n")
    print("| command | seconds | peak MB | goal |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name, arguments, goal in CASES:
            found = [run(arguments, directory) for _ in range(runs)]
            seconds = statistics.median(s for s, _ in found)
            memory = max(m for _, m in found)
            print(f"| {name} | {seconds:.2f} | {memory:.0f} | {goal} |", flush=True)
        modules = sorted(Path(directory).glob("*.py"))
        assert modules, "compile wrote nothing"


if __name__ == "__main__":
    main()
