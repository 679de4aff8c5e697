"""Audits the kernels of shipped schedules, and their gradients, at their own size, and prints a table.

    python benchmarks/audit_matrix.py [SCHEDULE…] [--sizes 16 2x8] [--deadline 600]

Sizes as in run_matrix.py; without names, the schedules for tori, meshes and log steps. Seconds are those that a
compilation would wait for the audit's process, which starts with it. Exits with 1 where a verdict is not *right*.
"""

from __future__ import annotations

import argparse
import sys

from run_matrix import LINKS, settings

from ringsched.auditing.generated import Auditor
from ringsched.commands.audited import request_for
from ringsched.diagnostics import InternalError
from ringsched.pipeline import compile_schedule, open_schedule


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=LINKS, metavar="SCHEDULE")
    parser.add_argument("--sizes", nargs="*", default=["16", "2x8"])
    parser.add_argument("--deadline", type=float, default=600.0)
    options = parser.parse_args()
    failed = 0
    for name in options.schedules:
        names = [p.name for p in open_schedule(name).parameters]
        for size in options.sizes:
            parameters = settings(names, name, size)
            if not parameters:
                continue
            with Auditor() as process:
                request = request_for(compile_schedule(open_schedule(name, parameters)))
                try:
                    found = process.audit([request], options.deadline)
                    verdict = found.undecided or "right"
                    seconds = f"{found.seconds:.1f}"
                except InternalError as error:
                    verdict, seconds = f"FAILED\n{error}", ""
            failed += verdict != "right"
            print(f"| {name} | {'×'.join(map(str, request.sides))} | {verdict} | {seconds} |", flush=True)
    print(f"{failed} not right")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
