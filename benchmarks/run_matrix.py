"""Runs every shipped schedule's kernel at several sizes and dtypes, as `ringsched run` does, and prints a table.

    python benchmarks/run_matrix.py [--sizes 2 3 4 5 8] [--dtypes f32 bf16 i32]

Takes about half an hour; ends with the number of runs that failed, which is also the exit code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from ringsched.schedule.loader import shipped_names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[2, 3, 4, 5, 8])
    parser.add_argument("--dtypes", nargs="*", default=["f32", "bf16", "i32"])
    options = parser.parse_args()
    failed = 0
    for name in shipped_names():
        for size in options.sizes:
            for dtype in options.dtypes:
                command = [
                    sys.executable,
                    "-m",
                    "ringsched",
                    "run",
                    name,
                    "--set",
                    f"N={size}",
                    "--dtype",
                    dtype,
                    "--json",
                ]
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                report = json.loads(result.stdout or "{}")
                right = result.returncode == 0 and report.get("ok") is True
                failed += not right
                verdict = f"max error {report.get('max_error')}" if right else f"FAILED\n{result.stderr}"
                print(f"{name:<30} N = {size}  {dtype:<5} {verdict}", flush=True)
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
