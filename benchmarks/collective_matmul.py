"""Static cycles of the collective matmuls: what the TPU compiler makes of them, no TPU needed.

    python benchmarks/collective_matmul.py [--target v5p:2x2x1] [--only NAME]

The shapes are x [256, 1024], W1 [1024, 16384] and W2 [16384, 1024] over 4 devices in bf16, a layer of a tensor-parallel
MLP. Cycles are those of one core. Where a device has two cores, some schedules are compiled for both, too: each core
has half of the rows, and the ratio is that to the cycles on a single core. Behind these come the shapes of serving, see
serving_matmul.py, for three chips; not with --only.
"""

import argparse
import sys
import time

import serving_matmul

from ringsched.operand import Operand
from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.target.aot import TargetError, compile_for_target
from ringsched.target.report import TargetReport

ROWS, DEPTH, WIDTH, RANKS, LAYERS = 256, 1024, 16384, 4, 3
SHAPES = {
    "all_gather_matmul": ((ROWS // RANKS, DEPTH), (DEPTH, WIDTH // RANKS)),
    "all_gather_matmul_features": ((ROWS, DEPTH // RANKS), (DEPTH, WIDTH // RANKS)),
    "matmul_reduce_scatter": ((ROWS, WIDTH // RANKS), (WIDTH // RANKS, DEPTH)),
    "matmul_reduce_scatter_features": ((ROWS, WIDTH // RANKS), (WIDTH // RANKS, DEPTH)),
    "matmul_all_reduce": ((ROWS, WIDTH // RANKS), (WIDTH // RANKS, DEPTH)),
    "tp_mlp": ((ROWS, DEPTH // RANKS), (LAYERS, DEPTH, WIDTH // RANKS), (LAYERS, WIDTH // RANKS, DEPTH)),
    "tp_mlp_whole": ((ROWS, DEPTH), (LAYERS, DEPTH, WIDTH // RANKS), (LAYERS, WIDTH // RANKS, DEPTH)),
}
BOTH_CORES = (
    "all_gather_matmul_features_bidirectional",
    "matmul_reduce_scatter_features_bidirectional",
    "tp_mlp",
)
ONE_WAY = ("matmul_all_reduce", "tp_mlp", "tp_mlp_whole")  # have no twin that goes both ways under another name


def main() -> None:
    """Prints a row for each schedule."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="v5p:2x2x1")
    parser.add_argument("--only", default="", help="schedules whose name has this in it")
    arguments = parser.parse_args()
    print(f"{'schedule':<46} {'cores':>5} {'cycles':>8} {'of peak':>8} {'VMEM MiB':>9} {'seconds':>8}")
    for base, shapes in SHAPES.items():
        for name in (base,) if base in ONE_WAY else (base, f"{base}_bidirectional"):
            if arguments.only in name:
                one = row(name, shapes, arguments.target, 1)
                if name in BOTH_CORES and one is not None:
                    row(name, shapes, arguments.target, 2, one)
    if not arguments.only:
        serving_matmul.table("v6e:2x4", serving_matmul.ROWS)
        serving_matmul.table("v5p:2x2x2", serving_matmul.FEWER)
        serving_matmul.table("tpu7x:2x2x1", serving_matmul.FEWER)


def row(
    name: str, shapes: tuple[tuple[int, ...], ...], target: str, cores: int, one: TargetReport | None = None
) -> TargetReport | None:
    """One schedule, compiled. one: on a single core; where a device has no other, nothing is printed."""
    compiled = compile_schedule(open_schedule(name, {"N": RANKS}))
    names = ("x", "w") if len(shapes) == 2 else ("x", "w1", "w2")
    operands = tuple(Operand(name=n, shape=s, dtype="bfloat16") for n, s in zip(names, shapes, strict=True))
    start = time.perf_counter()
    try:
        report = compile_for_target(
            source=compiled.source,
            function=name,
            sides=(RANKS,),
            operands=operands,
            target=target,
            cores=cores,
        )
    except TargetError as error:
        print(f"{name:<46} {error}", flush=True)
        return None
    if cores == 2 and report.cores == 1:
        return None
    seconds = time.perf_counter() - start
    cycles = "-" if report.cycles is None else f"{report.cycles:,}"
    peak = "-" if report.utilization is None else f"{report.utilization:.1%}"
    vmem = "-" if report.vmem_bytes is None else f"{report.vmem_bytes / 2**20:.1f}"
    ratio = f"  {report.cycles / one.cycles:.3f}" if one is not None and one.cycles and report.cycles else ""
    print(f"{name:<46} {cores:>5} {cycles:>8} {peak:>8} {vmem:>9} {seconds:>8.1f}{ratio}", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
