"""Runs every shipped schedule's kernel at several sizes and dtypes, as `ringsched run` does, and prints a table.

    python benchmarks/run_matrix.py [SCHEDULE…] [--sizes 2 3 4 5 8] [--dtypes f32 bf16 i32]

Schedules that multiply are run with f32, bf16 and i8 (chains: no i8), and 2, 3, 4 and 8 ranks. Takes about half an
hour; ends with the number of runs that failed, and exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from ringsched.pipeline import open_schedule
from ringsched.schedule.loader import shipped_names
from ringsched.schedule.schedule import Chain, Multiply

SIZES, DTYPES = (2, 3, 4, 5, 8), ("f32", "bf16", "i32")
PRODUCT_SIZES, PRODUCT_DTYPES = (2, 3, 4, 8), ("f32", "bf16", "i8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=shipped_names(), metavar="SCHEDULE")
    parser.add_argument("--sizes", type=int, nargs="*")
    parser.add_argument("--dtypes", nargs="*")
    options = parser.parse_args()
    failed = 0
    for name in options.schedules:
        schedule = open_schedule(name)
        compute = None if isinstance(schedule, Chain) else schedule.compute
        sizes, dtypes = (SIZES, DTYPES) if compute is None else (PRODUCT_SIZES, PRODUCT_DTYPES)
        if isinstance(schedule, Chain):
            sizes, dtypes = PRODUCT_SIZES, PRODUCT_DTYPES[:2]
        for size in options.sizes or sizes:
            parameters = settings([p.name for p in schedule.parameters], name, size)
            for dtype in options.dtypes or dtypes if parameters else ():
                shapes = () if compute is None else tuple(product_shapes(compute, size, dtype))
                command = [sys.executable, "-m", "ringsched", "run", name, *parameters, *shapes, "--json"]
                command += [] if shapes else ["--dtype", dtype]
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                report = json.loads(result.stdout or "{}")
                right = result.returncode == 0 and report.get("ok") is True
                failed += not right
                verdict = f"max error {report.get('max_error')}" if right else f"FAILED\n{result.stderr}"
                print(f"{name:<44} {size:>2} ranks  {dtype:<5} {verdict}", flush=True)
    print(f"{failed} failed")
    return min(failed, 1)


SIDES = {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3), 16: (4, 4)}


def settings(names: list[str], name: str, size: int) -> list[str]:
    """The parameters for so many ranks; none where the schedule is not for them."""
    if names == ["N"]:
        powers = name.endswith(("_doubling", "_halving", "_swing")) and size & (size - 1)
        return [] if powers else ["--set", f"N={size}"]
    sides = (2, 2, 2) if "Z" in names and size == 8 else SIDES.get(size, ()) if "Z" not in names else ()
    return [word for axis, side in zip("XYZ", sides, strict=False) for word in ("--set", f"{axis}={side}")]


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
