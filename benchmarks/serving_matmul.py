"""Static cycles of an all-gather-matmul at shapes of serving: what the TPU compiler makes of it, no TPU needed.

    python benchmarks/serving_matmul.py [--target v6e:2x4] [--rows 16 1024]

y [m, 57344] = x [m, 8192] @ w [8192, 57344] in bf16 over 8 devices: the up-projection of a large model. Neither the
weight nor, for many rows, x fits VMEM. Ideal cycles are those of the products alone at the peak of the matrix units;
what a core waits for links or HBM is not in static figures, so the time that the kernel's own model expects is shown
beside them, and how many bytes come and go between HBM and VMEM, against those of the weight.
"""

import argparse
import re
import time
from collections.abc import Sequence

from ringsched.operand import Operand
from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.target.aot import TargetError, compile_for_target
from ringsched.target.report import MATMUL_UNITS

NAME, RANKS, DEPTH, WIDTH = "all_gather_matmul_bidirectional", 8, 8192, 57344
ROWS = (16, 32, 64, 128, 256, 1024, 2048, 8192)
FEWER = (16, 1024, 2048, 8192)


def main() -> None:
    """Prints a row for each number of rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="v6e:2x4")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--timeout", type=float, default=600)
    arguments = parser.parse_args()
    table(arguments.target, arguments.rows, arguments.timeout)


def table(target: str, rows: Sequence[int], timeout: float = 600) -> None:
    """A row for each number of rows of x."""
    source = compile_schedule(open_schedule(NAME, {"N": RANKS})).source
    print(f"\n{NAME}, [m, {DEPTH}] @ [{DEPTH}, {WIDTH}] over {RANKS} devices of {target}")
    print(f"{'rows':>5} {'cycles':>10} {'of ideal':>8} {'VMEM MiB':>8} {'compile s':>9} {'model µs':>8}  operands")
    for m in rows:
        print(row(source, m, target, timeout), flush=True)


def row(source: str, rows: int, target: str, timeout: float) -> str:
    """One shape, compiled."""
    operands = (
        Operand(name="x", shape=(rows // RANKS, DEPTH), dtype="bfloat16"),
        Operand(name="w", shape=(DEPTH, WIDTH // RANKS), dtype="bfloat16"),
    )
    start = time.perf_counter()
    try:
        report = compile_for_target(
            source=source, function=NAME, sides=(RANKS,), operands=operands, target=target, timeout=timeout
        )
    except TargetError as error:
        return f"{rows:>5} {error}"
    seconds = time.perf_counter() - start
    note = report.notes[0].partition(": ")[2] if report.notes else ""
    modelled = re.search(r"modelled (\d+)", note)
    said = "; ".join(part for part in note.split("; ") if not part.startswith(("VMEM ", "modelled")))
    cycles = "-" if report.cycles is None else f"{report.cycles:,}"
    if report.cores == 2:
        said = f"on each of two cores: {said}"
    peak = "-"
    if report.cycles is not None:
        peak = f"{ideal_cycles(rows, target) / (report.cores or 1) / report.cycles:.1%}"
    vmem = "-" if report.vmem_bytes is None else f"{report.vmem_bytes / 2**20:.1f}"
    model = modelled[1] if modelled else "-"
    return f"{rows:>5} {cycles:>10} {peak:>8} {vmem:>8} {seconds:>9.1f} {model:>8}  {said}"


def ideal_cycles(rows: int, target: str) -> float:
    """Of one core, as ringsched.target.report counts them: 16 rows times a block of 256 x 256, or 128 x 128, a step."""
    cycles, units = MATMUL_UNITS[target.split(":")[0]]
    side = 128 if cycles == 16 else 256
    return rows / 16 * (DEPTH / side) * (WIDTH / RANKS / side) * cycles / units


if __name__ == "__main__":
    main()
