"""Shipped schedules compiled for a TPU on meshes that have axes beside the ranks': python benchmarks/mesh_axes.py

Each one, and its gradient, inside `jax.shard_map` under both settings of `check_vma`, on meshes ("d", "i") of four
devices, or ("d", "x", "y") for a schedule over two sides. A row for each program; the last line counts them.

    python benchmarks/mesh_axes.py all_gather matmul --target v6e:2x2
    python benchmarks/mesh_axes.py --three --target v5p:2x2x2
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringsched.target.aot import child_environment

SUMS = ("all_reduce", "matmul_all_reduce")  # whose results are the same at all ranks, and have the type that says so
# Over two sides, on meshes of three axes; and those that are for eight ranks or more, or take too long here.
TWO_SIDED = ("_torus", "_torus_by_axes", "_mesh")
LEFT_OUT = ("_3d",)
MESHES = ((1, 4), (2, 2))
THREE = ((1, 2, 2), (2, 2, 2))


def names_of(names: Sequence[str], sides: int) -> list[str]:
    """Those asked for, else all shipped schedules over so many sides."""
    from ringsched.schedule.loader import shipped_names

    if names:
        return list(names)
    shipped = [name for name in shipped_names() if not name.endswith(LEFT_OUT)]
    return [name for name in shipped if name.endswith(TWO_SIDED) == (sides == 2)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="v5p:2x2x1")
    parser.add_argument("--three", action="store_true", help="meshes of three axes: two-sided schedules")
    given = parser.parse_args(arguments)
    compiled = total = 0
    for row in compiled_programs(names_of(given.names, 2 if given.three else 1), given.target, given.three):
        total += 1
        compiled += row["why"] is None
        print(
            f"{row['name']:44} {tuple(row['mesh'])!s:10} check_vma={row['check_vma']!s:5} "
            f"{'gradient' if row['gradient'] else 'value':8} {row['seconds']:5.1f} s  {row['why'] or 'compiled'}",
            flush=True,
        )
    print(f"{compiled} of {total} programs compile for {given.target}")
    return 0 if compiled == total else 1


def compiled_programs(
    names: Sequence[str], target: str, three: bool, seconds: float = 1800
) -> Iterator[dict[str, Any]]:
    """A row for each program, from a process of its own: libtpu is noisy, and may end it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = child_environment(target, Path(folder))
        environment["LIBTPU_INIT_ARGS"] = ""  # no dumps
        command = [sys.executable, __file__, "--child", target, str(int(three)), *names]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen(command, env=os.environ | environment, **options) as process:
            hung = threading.Timer(seconds, process.kill)
            hung.start()
            try:
                yield from (json.loads(line) for line in process.stdout or () if line.startswith("{"))
            finally:
                hung.cancel()
                process.kill()


def child(target: str, three: bool, names: Sequence[str]) -> None:
    """Compiles each program and prints a line of JSON."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=target).devices
    for name in names:
        for mesh in THREE if three else MESHES:
            if math.prod(mesh) > len(devices):
                continue
            for check_vma in (True, False):
                for gradient in (False, True):
                    start = time.monotonic()
                    why = _compile(name, devices, mesh, check_vma, gradient)
                    row = {"name": name, "mesh": mesh, "check_vma": check_vma, "gradient": gradient, "why": why}
                    print(json.dumps(row | {"seconds": time.monotonic() - start}), flush=True)


def _compile(name: str, devices: Sequence[Any], shape: tuple[int, ...], check_vma: bool, gradient: bool) -> str | None:
    """Why it does not compile; None: it does."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import ringsched as rs

    names = ("d", "i") if len(shape) == 2 else ("d", "x", "y")
    mesh = Mesh(np.array(devices[: math.prod(shape)]).reshape(shape), names)
    ranks, axes = math.prod(shape[1:]), names[1:]
    axis_name = axes if len(axes) > 1 else axes[0]
    function = rs.compile(name)
    every = P((*names,))
    # Weights are the same along "d", as in every data-parallel program.
    match name.split("_")[0]:
        case "tp":
            whole = name.endswith("whole")
            shapes = [(128 * shape[0], 256 * ranks), (2, 256 * ranks, 256 * ranks), (2, 256 * ranks, 256 * ranks)]
            specs = [P("d") if whole else P("d", axes), P(None, None, axes), P(None, axes, None)]
            results = specs[0]
        case _ if "matmul" in name:
            shapes = [
                (math.prod(shape) * 64, 256),
                (256 * (ranks if "gather_matmul_features" in name else 1), 256 * ranks),
            ]
            specs = [every, P(None, axes)]
            results = P("d", axes) if name not in SUMS else P("d")
        case _:
            shapes, specs = [(math.prod(shape) * ranks * 64, 256)], [every]
            results = P("d") if name.startswith("all_reduce") else every
    operands = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]

    def value(*operands: jax.Array) -> Any:
        return function(*operands, axis_name, interpret=False)

    def loss(*operands: jax.Array) -> jax.Array:
        return jnp.sum(value(*operands).astype(jnp.float32) ** 2)

    numbers = tuple(range(len(operands)))
    body = jax.grad(loss, numbers) if gradient else value
    out = tuple(specs) if gradient else results
    mapped = jax.shard_map(body, mesh=mesh, in_specs=tuple(specs), out_specs=out, check_vma=check_vma)
    try:
        jax.jit(mapped).lower(*operands).compile()
    # The compiler raises whatever it likes: it is the answer.
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], bool(int(sys.argv[3])), sys.argv[4:])
    else:
        sys.exit(main())
