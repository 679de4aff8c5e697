"""Shipped schedules compiled for a TPU on meshes that have axes beside the ranks': python benchmarks/mesh_axes.py

Each one, and its gradient, inside `jax.shard_map` under both settings of `check_vma`, on meshes ("d", "i") of four
devices, or ("d", "x", "y") for a schedule over two sides. A row for each program; the last line counts them.
NAME:invarying is a schedule called with `to="invarying"`.

    python benchmarks/mesh_axes.py all_gather matmul --target v6e:2x2
    python benchmarks/mesh_axes.py --three --target v5p:2x2x2
    python benchmarks/mesh_axes.py --axes 2,4 --axes 4,2 --target v5p:2x2x2
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringsched.processes import end_after
from ringsched.target.aot import child_environment, device_count

SUMS = ("all_reduce", "matmul_all_reduce")  # whose results are the same at all ranks, and have the type that says so
INVARYING = ":invarying"
# By the end of the name: over two sides, on meshes of three axes; over three sides, on meshes of four.
TWO_SIDED = ("_torus", "_torus_by_axes", "_mesh")
THREE_SIDED = ("_torus_3d",)
MESHES = ((1, 4), (2, 2))
THREE = ((1, 2, 2), (2, 2, 2))
START = 120.0  # seconds, for jax and libtpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One program to compile."""

    name: str
    mesh: tuple[int, ...]  # the first axis is not the ranks'
    check_vma: bool
    gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of it; `why` it did not compile, None where it did."""

    request: Request
    seconds: float
    why: str | None


def names_of(sides: int) -> list[str]:
    """All shipped schedules over so many sides, and those with results of either type a second time."""
    from ringsched.schedule.loader import shipped_names

    found = [name for name in shipped_names() if _sides(name) == sides]
    return [*found, *(name + INVARYING for name in found if name in ("all_gather", "broadcast"))]


def _sides(name: str) -> int:
    return 3 if name.endswith(THREE_SIDED) else 2 if name.endswith(TWO_SIDED) else 1


def requests_of(names: Sequence[str], meshes: Sequence[tuple[int, ...]]) -> list[Request]:
    """Every program of these names, else of all shipped schedules over as many sides as a mesh has axes for them."""
    return [
        Request(name=name, mesh=mesh, check_vma=check_vma, gradient=gradient)
        for name, mesh in _pairs(names, meshes)
        for check_vma, gradient in itertools.product((True, False), (False, True))
    ]


def _pairs(names: Sequence[str], meshes: Sequence[tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    if names:
        return list(itertools.product(names, meshes))
    sides = sorted({len(mesh) - 1 for mesh in meshes})
    every = [name for number in sides for name in names_of(number)]
    return [(name, mesh) for name in every for mesh in meshes if _sides(name) == len(mesh) - 1]


def axes_of(text: str) -> tuple[int, ...]:
    """ "2,4" → (2, 4)."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if not 2 <= len(sizes) <= 4 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"two to four sizes such as 2,4, not {text!r}")
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="v5p:2x2x1")
    parser.add_argument("--three", action="store_true", help="meshes of three axes: two-sided schedules")
    parser.add_argument("--axes", type=axes_of, action="append", help="a mesh, the ranks' axes last; may be repeated")
    given = parser.parse_args(arguments)
    devices = device_count(given.target)
    # Of the usual meshes those that fit; one that was asked for has to.
    meshes = given.axes or [mesh for mesh in (THREE if given.three else MESHES) if math.prod(mesh) <= devices]
    if any(math.prod(mesh) > devices for mesh in meshes):
        parser.error(f"{given.target} has {devices} devices")
    requests = requests_of(given.names, meshes)
    if not requests:
        parser.error("no shipped schedule is for these axes")
    compiled = 0
    for row in compiled_programs(requests, given.target):
        compiled += row.why is None
        request = row.request
        print(
            f"{request.name:44} {request.mesh!s:12} check_vma={request.check_vma!s:5} "
            f"{'gradient' if request.gradient else 'value':8} {row.seconds:5.1f} s  {row.why or 'compiled'}",
            flush=True,
        )
    print(f"{compiled} of {len(requests)} programs compile for {given.target}")
    return 0 if compiled == len(requests) else 1


def compiled_programs(requests: Sequence[Request], target: str, seconds: float = 300) -> Iterator[Row]:
    """A row for each program, in their order, from another process: libtpu is noisy, and may end it.

    One that ends the process, or takes longer than `seconds`, has not compiled; the next gets a new process.
    """
    left = list(requests)
    while left:
        start = time.monotonic()
        count, code = yield from _rows(left, target, seconds)
        left = left[count:]
        if left:
            why = f"the process ended with exit code {code}; it has {seconds:g} s a program"
            yield Row(request=left.pop(0), seconds=time.monotonic() - start, why=why)


def _rows(requests: Sequence[Request], target: str, seconds: float) -> Generator[Row, None, tuple[int, int]]:
    """The rows of one process; returns their number, and its exit code."""
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.json"
        file.write_text(json.dumps([asdict(request) for request in requests]))
        environment = child_environment(target, Path(folder)) | {"LIBTPU_INIT_ARGS": ""}  # no dumps
        command = [sys.executable, __file__, "--child", target, str(file), str(seconds)]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen(command, env=os.environ | environment, **options) as process:
            try:
                for line in process.stdout or ():
                    if line.startswith("{"):
                        yield Row(request=requests[count], **json.loads(line))
                        count += 1
                # It ends itself at its deadline.
                code = process.wait()
            finally:
                process.kill()
    return count, code


def child(target: str, requests: Path, seconds: float) -> None:
    """Compiles each program and prints a line of JSON."""
    end_after(START)
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=target).devices
    for given in json.loads(requests.read_text()):
        end_after(seconds)
        start = time.monotonic()
        why = _compile(Request(**given | {"mesh": tuple(given["mesh"])}), devices)
        print(json.dumps({"seconds": time.monotonic() - start, "why": why}), flush=True)


def _compile(request: Request, devices: Sequence[Any]) -> str | None:
    """Why it does not compile; None: it does."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding

    import ringsched as rs

    names = ("d", "i") if len(request.mesh) == 2 else ("d", "x", "y", "z")[: len(request.mesh)]
    mesh = Mesh(np.array(devices[: math.prod(request.mesh)]).reshape(request.mesh), names)
    axes = names[1:]
    axis_name = axes if len(axes) > 1 else axes[0]
    shapes, specs, results = _operands(request, names)
    options = {"to": "invarying"} if request.name.endswith(INVARYING) else {}
    operands = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]

    def value(*operands: jax.Array) -> Any:
        return function(*operands, axis_name, interpret=False, **options)

    def loss(*operands: jax.Array) -> jax.Array:
        return jnp.sum(value(*operands).astype(jnp.float32) ** 2)

    body = jax.grad(loss, tuple(range(len(operands)))) if request.gradient else value
    out = tuple(specs) if request.gradient else results
    types = {"in_specs": tuple(specs), "out_specs": out, "check_vma": request.check_vma}
    try:
        function = rs.compile(request.name.removesuffix(INVARYING))
        lowered = jax.jit(jax.shard_map(body, mesh=mesh, **types)).lower(*operands)
        lowered.compile()
    # The compiler raises whatever it likes: it is the answer.
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None if "tpu_custom_call" in lowered.as_text() else "it compiles, without a kernel"


def _operands(request: Request, names: tuple[str, ...]) -> tuple[list[tuple[int, ...]], list[Any], Any]:
    """Whole shapes and the specs of the operands, and that of the result.

    Weights are the same along "d", as in every data-parallel program.
    """
    from jax.sharding import PartitionSpec as P

    name, invarying = request.name.removesuffix(INVARYING), request.name.endswith(INVARYING)
    data, axes, every = request.mesh[0], names[1:], P(names)
    ranks = math.prod(request.mesh[1:])
    if name.startswith("tp_"):
        activations = P("d") if name.endswith("whole") else P("d", axes)
        shapes = [(128 * data, 256 * ranks), (2, 256 * ranks, 256 * ranks), (2, 256 * ranks, 256 * ranks)]
        return shapes, [activations, P(None, None, axes), P(None, axes, None)], activations
    if "matmul" in name:
        deep = ranks if "gather_matmul_features" in name else 1
        shapes = [(data * ranks * 64, 256), (256 * deep, 256 * ranks)]
        return shapes, [every, P(None, axes)], P("d") if name in SUMS else P("d", axes)
    same = invarying or name.startswith("all_reduce")
    return [(data * ranks * ranks * 64, 256)], [every], P("d") if same else every


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(main())
