"""The audit of chains: the kernel against the layers by jax.lax, and kernels with something taken away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.collective import as_module
from ringsched.pipeline import compile_schedule, open_schedule

ROWS, WIDTH, HIDDEN = 16, 256, 128


def layers_by_lax(x: Any, w1: Any, w2: Any) -> Any:
    for layer in range(w1.shape[0]):
        hidden = jax.nn.gelu(lax.all_gather(x, "i", axis=1, tiled=True) @ w1[layer])
        x = lax.psum_scatter(hidden @ w2[layer], "i", scatter_dimension=1, tiled=True)
    return x


def audit(function: Any, ranks: int, layers: int, cores: int = 1) -> AuditReport:
    width, hidden = ranks * WIDTH, ranks * HIDDEN
    shapes = ((ROWS, width), (layers, width, hidden), (layers, hidden, width))
    return rs.audit(
        lambda *operands: function(*operands, axis_name="i", cores=cores),
        mesh_axes={"i": ranks},
        args=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        in_specs=[P(None, "i"), P(None, None, "i"), P(None, "i", None)],
        out_specs=P(None, "i"),
        expect=layers_by_lax,
        cores=cores,
    )


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_kernel_is_right(ranks: int, layers: int) -> None:
    report = audit(rs.compile("tp_mlp"), ranks, layers)
    assert (report.verdict, report.values) == ("right", "right"), str(report)


@pytest.mark.parametrize(("ranks", "layers"), [(2, 3), (3, 2), (4, 2)])
def test_the_kernel_is_right_on_two_cores(ranks: int, layers: int) -> None:
    report = audit(rs.compile("tp_mlp"), ranks, layers, cores=2)
    assert (report.verdict, report.values) == ("right", "right"), str(report)


SOURCE = compile_schedule(open_schedule("tp_mlp", {"N": 3})).source
HEAD, BODY = SOURCE.split("def _kernel(")
KERNEL, TAIL = BODY.split("# How the layers", 1)
CALLS = list(re.finditer(r"\n *(_wait|_send|_signal|pl\.semaphore_wait|_copy)\(", KERNEL))


def without(match: re.Match[str]) -> str:
    """The module without one call in the kernel, which may go on over several lines."""
    depth, end = 1, match.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(KERNEL[end], 0)
        end += 1
    indent = re.match(r"\n *", match[0])
    assert indent
    return f"{HEAD}def _kernel({KERNEL[: match.start()]}{indent[0]}pass{KERNEL[end:]}# How the layers{TAIL}"


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_call_less_is_found(number: int) -> None:
    report = audit(as_module(without(CALLS[number]), "tp_mlp").tp_mlp, 3, 3)
    assert report.verdict == "wrong", CALLS[number][0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("finish=finishes[0]", "finish=finishes[1]"),
        ("w1_ref.at[layer + 1]", "w1_ref.at[layer]"),
        ("@pl.loop(0, layers)", "@pl.loop(0, 1)"),
        ("weights_2_ref, (r + 1) % N", "weights_2_ref, r"),
    ],
)
def test_something_else_is_computed(old: str, new: str) -> None:
    assert old in KERNEL
    source = f"{HEAD}def _kernel({KERNEL.replace(old, new)}# How the layers{TAIL}"
    report = audit(as_module(source, "tp_mlp").tp_mlp, 3, 3)
    assert report.verdict == "wrong" or report.values == "wrong", (old, str(report))


def test_the_other_forms(tmp_path: Path) -> None:
    """Along rows, and with four links."""
    from ringsched.commands.audited import audit_small, auditor

    features = ("all_gather_matmul_features", "matmul_reduce_scatter_features")
    for links in (("all_gather_matmul_bidirectional", "matmul_reduce_scatter_bidirectional"), features + features):
        file = tmp_path / "chain.yaml"
        uses = "".join(f"  - use: {link}\n    epilogue: silu\n" for link in links)
        file.write_text(f"schedule: chain\ntopology: {{ring: N}}\nparams: {{N: 3}}\nchain:\n{uses}")
        with auditor(True) as process:
            assert process is not None
            outcome = audit_small(process, [compile_schedule(open_schedule(file))])
        assert not outcome.undecided
