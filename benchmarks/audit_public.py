"""Audits public kernels as they are: python benchmarks/audit_public.py --jax FOLDER --tpu-inference FOLDER …

FOLDER is a checkout; none of its code is kept here. JAX's tests and documentation run with `jax.shard_map` replaced: a
function with kernels is audited on the operands that it is given, and returns zeros; a function without any, which they
compare with on the same operands, says what is expected. So what fails afterwards in a test is of no interest.

    python benchmarks/audit_public.py --jax ../jax --tpu-inference ../tpu-inference --tpu-collectives ../TPU-Collectives
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import os
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

DEVICES = 8
JAX_TESTS = ("tpu_pallas_distributed_test", "tpu_pallas_interpret_distributed_test", "tpu_pallas_async_test")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", type=Path)
    parser.add_argument("--tpu-inference", type=Path)
    parser.add_argument("--tpu-collectives", type=Path)
    parser.add_argument("-k", default="", help="only what has this in its name")
    parser.add_argument("--show", action="store_true", help="all that the audit says")
    given = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    auditor = Auditor(pattern=given.k, show=given.show, jit=jax.jit)
    if given.jax is not None:
        for name in JAX_TESTS:
            auditor.tests(given.jax / "tests" / "pallas", name)
        auditor.jax_all_gather()
    if given.tpu_inference is not None:
        auditor.tpu_inference(given.tpu_inference)
    if given.tpu_collectives is not None:
        auditor.tpu_collectives(given.tpu_collectives)
    if given.jax is not None:  # last: the page sets a mesh for all that follows
        auditor.page(given.jax / "docs" / "pallas" / "tpu" / "distributed.md")
    return 0


class Auditor:
    """Audits what comes to `jax.shard_map`. `title`: of what runs now; `jit`: JAX's own."""

    def __init__(self, *, pattern: str, show: bool, jit: Any) -> None:
        self.pattern, self.show = pattern, show
        self.title = ""
        self.jit = jit
        self.last: tuple[Callable[..., Any], dict[str, Any]] | None = None

    # -- where kernels come from

    def tests(self, folder: Path, name: str) -> None:
        """The tests of one file, on a device that says that it is a TPU where they ask."""
        from jax._src import test_util

        interpreted = "interpret" in name
        is_tpu = {"is_device_tpu_at_least": lambda *_: True, "is_device_tpu": lambda *_: True}
        patched = {} if interpreted else {**is_tpu, "test_device_matches": lambda kinds: "tpu" in kinds}
        with self.in_place(), _patched(test_util, patched), _on_path(folder), _quietly():
            module = importlib.import_module(name)
            for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
                self.title = f"{name}: {test.id().rpartition('.')[2]}"
                self.last = None
                if self.pattern in self.title:
                    test.run(unittest.TestResult())

    def page(self, path: Path) -> None:
        """The code cells of a page, one after the other."""
        import jax

        cells = re.findall(r"```\{code-cell\} *\S*\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
        space: dict[str, Any] = {"__name__": path.stem}
        # No operand has to be there, and some are larger than the memory of a machine like this one.
        large = {"uniform": lambda _, shape, dtype="float32", *__, **___: _nothing(shape, dtype)}
        with self.in_place(), _patched(jax.random, large), _patched(jax, {"device_put": lambda x, *_, **__: x}):
            for cell in cells:
                text = re.sub(r"^(---\n.*?---\n|:.*\n)", "", cell, flags=re.S)
                kernel = re.search(r"def (\w+_kernel)\(", text)
                self.title = f"{path.name}: {kernel[1] if kernel else 'cell'}"
                self.last = None
                if "shard_map" in text and self.pattern not in self.title:
                    continue
                try:
                    with _quietly():
                        exec(compile(text, str(path), "exec"), space)
                except Exception as error:  # the page's code is not ours
                    print(f"{self.title}: {error!r}"[:300], file=sys.stderr)

    def jax_all_gather(self) -> None:
        import jax
        from jax.experimental.pallas.ops.tpu import all_gather
        from jax.sharding import PartitionSpec

        for count in (2, 3, 4, 8):
            self.title = f"ops/tpu/all_gather.py: N = {count}"
            mesh = jax.sharding.Mesh(jax.devices()[:count], ("x",))
            with self.in_place(), _quietly(), contextlib.suppress(Exception):
                if self.pattern in self.title:
                    self.last = None
                    all_gather.all_gather(jax.numpy.zeros((8 * count, 128)), mesh=mesh, axis_name="x")
                    jax.shard_map(
                        lambda x: jax.lax.all_gather(x, "x", tiled=True),
                        mesh=mesh,
                        in_specs=PartitionSpec("x"),
                        out_specs=PartitionSpec(),
                        check_vma=False,
                    )(jax.numpy.zeros((8 * count, 128)))

    def tpu_inference(self, folder: Path) -> None:
        """The kernels of `kernels/collectives`, without what the packages above them import."""
        import jax

        for name in ("tpu_inference", "tpu_inference.kernels"):
            package = types.ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")))]
            sys.modules[name] = package
        module = importlib.import_module("tpu_inference.kernels.collectives.all_gather_matmul")
        tiles = importlib.import_module("tpu_inference.kernels.collectives.all_gather_matmul_tuned_block_sizes")
        tiles.get_tpu_version = lambda: 6
        for count, (grid_k, grid_n), transposed in [
            (count, grid, transposed)
            for count in (2, 4)
            for grid in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2))
            for transposed in (False, True)
        ]:
            self.title = f"tpu-inference all_gather_matmul: N = {count}, grid {grid_k} × {grid_n}"
            self.title += ", transposed" if transposed else ""
            if self.pattern not in self.title:
                continue
            self.last = None
            mesh = jax.sharding.Mesh(jax.devices()[:count], ("x",))
            rows, depth, width = 16 * count, 128 * grid_k, 128 * grid_n * count
            x = jax.ShapeDtypeStruct((rows, depth), "bfloat16")
            y = jax.ShapeDtypeStruct((width, depth) if transposed else (depth, width), "bfloat16")

            def whole(x: Any, y: Any, transposed: bool = transposed) -> Any:
                return jax.lax.all_gather(x, "x", tiled=True) @ (y.T if transposed else y)

            with self.in_place(expect=whole), _quietly(), contextlib.suppress(Exception):
                call = functools.partial(
                    module.all_gather_matmul, mesh=mesh, axis_name="x", bn=128, bk=128, rhs_transpose=transposed
                )
                jax.eval_shape(call, x, y)

    def tpu_collectives(self, folder: Path) -> None:
        with _on_path(folder):
            plain, products = importlib.import_module("collectives"), importlib.import_module("collective_matmul")
        mesh = {"i": 4}
        one = {"mesh_axes": mesh, "args": ["f32[64,8,128]"], "in_specs": "i", "out_specs": "i"}
        self.title = "TPU-Collectives exchange"
        self.judge(
            plain.exchange_with_neighbor_pallas_launch, {**one, "expect": plain.exchange_with_neighbor_reference}
        )
        for rounds in (1, 2):
            for name, expect in (
                ("reduce_scatter", plain.reduce_scatter_reference),
                ("all_gather", plain.all_gather_reference),
            ):
                self.title = f"TPU-Collectives {name}, {rounds} rounds"
                launch = getattr(plain, f"{name}_pallas_launch")
                self.judge(functools.partial(launch, loop_iters=rounds), {**one, "expect": expect})
            rows, depth, width = products.N_BATCH, products.K1, 4 * products.K2  # of the whole mesh
            for name, shapes, specs in (
                ("all_gather_matmul", ((rows, depth), (depth, width)), ("-,i", "-,i")),
                ("matmul_reduce_scatter", ((rows, width), (width, depth)), ("-,i", "i")),
            ):
                self.title = f"TPU-Collectives {name}, {rounds} rounds"
                launch = getattr(products, f"{name}_pallas_launch")
                asked = {
                    "mesh_axes": mesh,
                    "args": [f"bf16[{a},{b}]" for a, b in shapes],
                    "in_specs": specs,
                    "out_specs": "-,i",
                    "expect": getattr(products, f"{name}_reference"),
                }
                self.judge(functools.partial(launch, loop_iters=rounds), asked)

    # -- what becomes of them

    @contextlib.contextmanager
    def in_place(self, expect: Any = None) -> Iterator[None]:
        """`jax.shard_map` is ours, and `jax.jit` leaves it the operands as they are."""
        import jax
        from jax._src import shard_map

        real = shard_map.shard_map

        def ours(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(ours, **options)
            return functools.partial(self.called, real, function, options, expect)

        def unjitted(function: Any = None, **_: Any) -> Any:
            return (lambda each: each) if function is None else function

        with _patched(shard_map, {"shard_map": ours}), _patched(jax, {"shard_map": ours, "jit": unjitted}):
            yield

    def called(self, real: Any, function: Any, options: dict[str, Any], expect: Any, *operands: Any) -> Any:
        import jax

        from ringsched.auditing.tracing import AuditError, is_constant

        asked = {
            "mesh_axes": dict(options["mesh"].shape),
            "args": [each if is_constant(each) else jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands],
            "in_specs": options["in_specs"],
            "out_specs": options["out_specs"],
        }
        if expect is not None:
            asked["expect"] = expect
        with _patched(jax, {"shard_map": real, "jit": self.jit}):  # the audit itself uses them
            try:
                if self.last is not None and _shapes(self.last[1]["args"]) == _shapes(asked["args"]):
                    kernel, before = self.last
                    self.judge(kernel, {**before, "expect": function})
                else:
                    self.judge(function, asked)
                    self.last = function, asked
            except AuditError as error:
                if "calls no Pallas kernel" not in str(error):
                    self.say(f"not audited: {error}")
            mesh = jax.sharding.Mesh(options["mesh"].devices, options["mesh"].axis_names)
            results = jax.eval_shape(real(function, **{**options, "mesh": mesh, "check_vma": False}), *operands)
        return jax.tree.map(lambda each: _nothing(each.shape, each.dtype), results)

    def judge(self, function: Any, asked: dict[str, Any]) -> None:
        import ringsched

        if self.pattern not in self.title:
            return
        report = ringsched.audit(function, **asked)
        codes = ", ".join(sorted({each.code for each in report.diagnostics if not each.code.startswith("RS9")}))
        first = next((each.message for each in report.diagnostics if not each.code.startswith("RS9")), "")
        devices = "×".join(map(str, asked["mesh_axes"].values()))
        self.say(f"N {devices} | {report.verdict} | values {report.values} | {codes} | {first[:110]}")
        if self.show:
            print(report, file=sys.__stdout__, flush=True)

    def say(self, text: str) -> None:
        print(f"{self.title} | {text}", file=sys.__stdout__, flush=True)


def _nothing(shape: Sequence[int], dtype: Any) -> Any:
    """Zeros that take no memory."""
    import numpy as np

    return np.broadcast_to(np.zeros((), dtype), shape)


def _shapes(arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(*each.shape, each.dtype) for each in arguments]


@contextlib.contextmanager
def _patched(owner: Any, values: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            yield from _flat(each)


if __name__ == "__main__":
    sys.exit(main())
