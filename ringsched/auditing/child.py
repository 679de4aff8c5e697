"""The process in which kernels that ringsched wrote are audited: `python -m ringsched.auditing.child DIRECTORY`.

It starts while the kernels are still being made, for jax takes seconds to import: one line on stdin, a JSON list of
requests → audit.json in the directory, a list of verdicts.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ringsched.auditing.audit import AuditReport, audit
from ringsched.auditing.expectation import Collective, Expect
from ringsched.collective import as_module
from ringsched.processes import end_after


def main(directory: Path) -> None:
    """Audits what the requests name."""
    line = sys.stdin.readline()
    if not line:  # the one who asks has found the schedule wrong
        return
    asked = json.loads(line)
    end_after(asked["seconds"] + 5)
    # jax stays, and most of what an audit makes lives until its end: looking for garbage took a quarter of its time.
    gc.freeze()
    gc.set_threshold(100_000)
    answers = [answer for request in asked["requests"] for answer in answers_to(request)]
    (directory / "audit.json").write_text(json.dumps(answers), encoding="utf-8")


def answers_to(request: dict[str, Any]) -> list[dict[str, object]]:
    """The kernel, and with its gradient; one that multiplies also where two cores of a device share the work."""
    found = _reports(request, {}, 1)
    if request["compute"] is not None or request["layers"] is not None:
        found += _reports(request, {"cores": 2}, 2)
    return [_answer(report) for report in found]


def _reports(request: dict[str, Any], options: dict[str, int], cores: int) -> list[AuditReport]:
    """options: of the function. cores: of a device."""
    sides = tuple(request["sides"])
    axes = ("x", "y", "z")[: len(sides)] if len(sides) > 1 else ("i",)
    function = getattr(as_module(request["source"], request["function"]), request["function"])
    ranks, dtype = math.prod(sides), jnp.dtype(request["dtype"])
    whole = [jax.ShapeDtypeStruct((ranks * shape[0], *shape[1:]), dtype) for shape in request["shapes"]]
    spec = jax.sharding.PartitionSpec(axes)
    mesh = dict(zip(axes, sides, strict=True))
    specs = {"in_specs": (spec,) * len(whole), "out_specs": spec}
    same = request["layers"] is not None and request["layers"]["whole"]  # x at all ranks: that of the first

    def kernel(x: jax.Array, *weights: jax.Array) -> jax.Array:
        x = _first(x, axes) if same else x
        result: jax.Array = function(x, *weights, axis_name=axes if len(axes) > 1 else axes[0], **options)
        return result

    def with_gradient(*operands: jax.Array) -> tuple[jax.Array, ...]:
        result, pull = jax.vjp(kernel, *operands)
        return result, *pull(result)

    expect: Expect = Collective(kind=request["kind"], root=request["root"], permutation=tuple(request["permutation"]))
    if request["compute"] is not None:
        moment, shard = request["compute"]
        expect = _product(request["kind"], moment, shard, axes)
    if request["layers"] is not None:
        expect = _layers(**request["layers"], axes=axes)
    found = [audit(kernel, mesh_axes=mesh, args=whole, expect=expect, cores=cores, **specs)]
    if request["gradient"]:
        found.append(audit(with_gradient, mesh_axes=mesh, args=whole, cores=cores, **specs))
    return found


def _product(kind: str, moment: str, shard: str, axes: tuple[str, ...]) -> Expect:
    """The collective matmul by jax.lax."""
    along = 0 if shard == "rows" else 1

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        if kind == "none":
            return x @ w
        if moment == "on arrival":
            return _gathered(x, axes, along) @ w
        if kind == "all_reduce":
            return lax.psum(x @ w, axes)
        return _scattered(x @ w, axes, along)

    return product


def _layers(
    shard: str, moments: Sequence[str], epilogues: Sequence[str | None], whole: bool, axes: tuple[str, ...]
) -> Expect:
    """The layers of a chain by jax.lax."""
    along = 0 if shard == "rows" else 1

    def layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
        x = _first(x, axes) if whole else x
        for layer in range(weights[0].shape[0]):
            for w, moment, epilogue in zip(weights, moments, epilogues, strict=True):
                if moment == "on arrival":
                    x = (x if whole else _gathered(x, axes, along)) @ w[layer]
                elif whole:
                    x = lax.psum(x @ w[layer], axes)
                else:
                    x = _scattered(x @ w[layer], axes, along)
                x = x if epilogue is None else _EPILOGUES[epilogue](x)
        return x

    return layers


# One mesh axis after the other: what is expected is traced under vmap, which takes no collectives over several.


def _first(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """What the first rank has."""
    for axis in axes:
        x = lax.all_gather(x, axis)[0]
    return x


def _gathered(x: jax.Array, axes: tuple[str, ...], along: int) -> jax.Array:
    for axis in reversed(axes):
        x = lax.all_gather(x, axis, axis=along, tiled=True)
    return x


def _scattered(x: jax.Array, axes: tuple[str, ...], along: int) -> jax.Array:
    for axis in axes:
        x = lax.psum_scatter(x, axis, scatter_dimension=along, tiled=True)
    return x


_EPILOGUES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
}


def _answer(report: AuditReport) -> dict[str, object]:
    return {"verdict": report.verdict, "values": report.values, "seconds": report.seconds, "text": str(report)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
