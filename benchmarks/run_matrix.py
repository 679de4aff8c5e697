"""Runs every shipped schedule's kernel at several sizes and dtypes, as `ringsched run` does, and prints a table.

    python benchmarks/run_matrix.py [SCHEDULE…] [--links] [--sizes 2 3 4 5 8] [--dtypes f32 bf16 i32] [--timeout 600]

A size is a number of ranks, or sides (2x8, 2x2x4) for the schedules that have as many. --links: those for tori,
meshes and log steps. Schedules that multiply are run with f32, bf16 and i8 (chains: no i8), and 2, 3, 4 and 8 ranks.
Takes about half an hour; ends with the number of runs that failed, and exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from ringsched.pipeline import open_schedule
from ringsched.schedule.loader import shipped_names
from ringsched.schedule.schedule import Chain, Multiply

SIZES, DTYPES = ("2", "3", "4", "5", "8"), ("f32", "bf16", "i32")
PRODUCT_SIZES, PRODUCT_DTYPES = ("2", "3", "4", "8"), ("f32", "bf16", "i8")
LOG_STEPS = ("_doubling", "_halving", "_swing", "_bruck")
LINKS = [name for name in shipped_names() if "_torus" in name or name.endswith(("_mesh", *LOG_STEPS))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--sizes", nargs="*")
    parser.add_argument("--dtypes", nargs="*")
    parser.add_argument("--timeout", type=int, help="seconds of a run")
    options = parser.parse_args()
    failed = 0
    for name in options.schedules or (LINKS if options.links else shipped_names()):
        schedule = open_schedule(name)
        compute = None if isinstance(schedule, Chain) else schedule.compute
        sizes, dtypes = (SIZES, DTYPES) if compute is None else (PRODUCT_SIZES, PRODUCT_DTYPES)
        if isinstance(schedule, Chain):
            sizes, dtypes = PRODUCT_SIZES, PRODUCT_DTYPES[:2]
        for size in options.sizes or sizes:
            parameters = settings([p.name for p in schedule.parameters], name, size)
            for dtype in options.dtypes or dtypes if parameters else ():
                shapes = () if compute is None else tuple(product_shapes(compute, int(size), dtype))
                command = [sys.executable, "-m", "ringsched", "run", name, *shapes, "--json"]
                command += [word for axis, side in parameters.items() for word in ("--set", f"{axis}={side}")]
                command += [] if shapes else ["--dtype", dtype]
                command += ["--timeout", str(options.timeout)] if options.timeout else []
                start = time.perf_counter()
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                report = json.loads(result.stdout or "{}")
                right = result.returncode == 0 and report.get("ok") is True
                failed += not right
                error = f"max error {report.get('max_error')}"
                verdict = error if right else f"FAILED\n{result.stderr}\n{report.get('diagnostics')}"
                seconds = time.perf_counter() - start
                print(f"{name:<44} {size:>5} ranks  {dtype:<5} {seconds:>5.0f} s  {verdict}", flush=True)
    print(f"{failed} failed")
    return min(failed, 1)


SIDES = {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3), 16: (4, 4)}
CUBES = {8: (2, 2, 2), 16: (2, 2, 4)}


def settings(names: Sequence[str], name: str, size: str) -> dict[str, int]:
    """The parameters for so many ranks, or for these sides; none where the schedule is not for them."""
    axes = [axis for axis in "XYZ" if axis in names]
    if "x" in size:
        sides = tuple(map(int, size.split("x")))
        return dict(zip(axes, sides, strict=True)) if len(sides) == len(axes) else {}
    ranks = int(size)
    if "N" in names:
        powers = name.endswith(("_doubling", "_halving", "_swing")) and ranks & (ranks - 1)
        return {} if powers else {"N": ranks}
    return dict(zip(axes, (CUBES if "Z" in axes else SIDES).get(ranks, ()), strict=False))


def product_shapes(compute: Multiply, size: int, dtype: str) -> Iterator[str]:
    """Operands that fill two tiles where a shard is cut in two: with one, a part would be nothing but padding."""
    rows, depth, cols = 64, 256, 256
    deep = depth
    if compute.moment == "on arrival":
        deep = size * depth if compute.shard == "features" else depth
    elif compute.shard == "rows":
        rows *= size
    else:
        cols *= size
    yield from ("--shape", f"x={rows}x{depth}:{dtype}", "--shape", f"w={deep}x{cols}:{dtype}")


if __name__ == "__main__":
    sys.exit(main())
