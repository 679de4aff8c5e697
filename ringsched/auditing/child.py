"""The process in which kernels that ringsched wrote are audited: `python -m ringsched.auditing.child DIRECTORY`.

It starts while the kernels are still being made, for jax takes seconds to import: one line on stdin, a JSON list of
requests → audit.json in the directory, a list of verdicts.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ringsched.auditing.audit import AuditReport, audit
from ringsched.auditing.expectation import Collective
from ringsched.collective import as_module
from ringsched.processes import end_after


def main(directory: Path) -> None:
    """Audits what the requests name."""
    line = sys.stdin.readline()
    if not line:  # the one who asks has found the schedule wrong
        return
    asked = json.loads(line)
    end_after(asked["seconds"] + 5)
    answers = [answer for request in asked["requests"] for answer in answers_to(request)]
    (directory / "audit.json").write_text(json.dumps(answers), encoding="utf-8")


def answers_to(request: dict[str, Any]) -> list[dict[str, object]]:
    """The kernel, and with its gradient."""
    sides = tuple(request["sides"])
    axes = ("x", "y", "z")[: len(sides)] if len(sides) > 1 else ("i",)
    function = getattr(as_module(request["source"], request["function"]), request["function"])
    shape = request["shape"]
    whole = jax.ShapeDtypeStruct((math.prod(sides) * shape[0], *shape[1:]), jnp.dtype(request["dtype"]))
    spec = jax.sharding.PartitionSpec(axes)
    mesh = dict(zip(axes, sides, strict=True))

    def kernel(x: jax.Array) -> jax.Array:
        result: jax.Array = function(x, axis_name=axes if len(axes) > 1 else axes[0])
        return result

    def with_gradient(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        result, pull = jax.vjp(kernel, x)
        return result, *pull(result)

    expect = Collective(kind=request["kind"], root=request["root"], permutation=tuple(request["permutation"]))
    found = [audit(kernel, mesh_axes=mesh, args=[whole], in_specs=spec, out_specs=spec, expect=expect)]
    if request["gradient"]:
        found.append(audit(with_gradient, mesh_axes=mesh, args=[whole], in_specs=spec, out_specs=spec))
    return [_answer(report) for report in found]


def _answer(report: AuditReport) -> dict[str, object]:
    return {"verdict": report.verdict, "values": report.values, "seconds": report.seconds, "text": str(report)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
