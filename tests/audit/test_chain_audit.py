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


def whole_by_lax(x: Any, w1: Any, w2: Any) -> Any:
    x = the_same(x)
    for layer in range(w1.shape[0]):
        x = lax.psum(jax.nn.gelu(x @ w1[layer]) @ w2[layer], "i")
    return x


def the_same(x: Any) -> Any:
    """What the first rank has: the arguments of an audit are the ranks' own, whatever their specs are."""
    return lax.all_gather(x, "i")[0]


def audit_whole(function: Any, ranks: int, layers: int, cores: int = 1) -> AuditReport:
    """x is the same at all ranks."""
    width, hidden = ranks * WIDTH, ranks * HIDDEN
    shapes = ((ROWS * ranks, width), (layers, width, hidden), (layers, hidden, width))
    return rs.audit(
        lambda x, *weights: function(the_same(x), *weights, axis_name="i"),
        mesh_axes={"i": ranks},
        args=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        in_specs=[P("i"), P(None, None, "i"), P(None, "i", None)],
        out_specs=P("i"),
        expect=whole_by_lax,
        cores=cores,
    )


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


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_kernel_of_the_whole_activation_is_right(ranks: int, layers: int) -> None:
    report = audit_whole(rs.compile("tp_mlp_whole"), ranks, layers)
    assert (report.verdict, report.values) == ("right", "right"), str(report)


@pytest.mark.parametrize(("ranks", "layers"), [(2, 2), (3, 2)])
def test_the_kernel_of_the_whole_activation_is_right_on_two_cores(ranks: int, layers: int) -> None:
    report = audit_whole(rs.compile("tp_mlp_whole"), ranks, layers, cores=2)
    assert (report.verdict, report.values) == ("right", "right"), str(report)


class Module:
    """The text of a chain's module, cut around its kernel. calls: of what synchronises, in the kernel."""

    def __init__(self, name: str) -> None:
        source = compile_schedule(open_schedule(name, {"N": 3})).source
        self.name = name
        self.head, body = source.split("def _kernel(")
        self.kernel, self.tail = body.split("\n\n\n", 1)
        self.calls = list(re.finditer(r"\n *(_wait|_send|_signal|pl\.semaphore_wait|_copy)\(", self.kernel))

    def without(self, match: re.Match[str]) -> AuditReport:
        """Audited without one call in the kernel, which may go on over several lines."""
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(self.kernel[end], 0)
            end += 1
        indent = re.match(r"\n *", match[0])
        assert indent
        return self.audited(f"{self.kernel[: match.start()]}{indent[0]}pass{self.kernel[end:]}")

    def audited(self, kernel: str) -> AuditReport:
        """With another text of the kernel."""
        source = f"{self.head}def _kernel({kernel}\n\n\n{self.tail}"
        function = getattr(as_module(source, self.name), self.name)
        return (audit if self.name == "tp_mlp" else audit_whole)(function, 3, 3)


MODULES = {name: Module(name) for name in ("tp_mlp", "tp_mlp_whole")}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, module in MODULES.items() for number in range(len(module.calls))]
)
def test_a_call_less_is_found(name: str, number: int) -> None:
    call = MODULES[name].calls[number]
    assert MODULES[name].without(call).verdict == "wrong", call[0]


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
    check_another("tp_mlp", old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x_ref.at[r, 0]", "x_ref.at[0, 0]"),
        ("last_ref.at[0],\n                slots_1_2_ref", "shard_ref.at[0],\n                slots_1_2_ref"),
        ("_send(last_ref.at[0]", "_send(shard_ref.at[0]"),
        ("_copy(last_ref.at[0], o_ref.at[r, 0]", "_copy(last_ref.at[0], o_ref.at[0, 0]"),
    ],
)
def test_something_else_of_the_whole_activation_is_computed(old: str, new: str) -> None:
    check_another("tp_mlp_whole", old, new)


def check_another(name: str, old: str, new: str) -> None:
    module = MODULES[name]
    assert old in module.kernel
    report = module.audited(module.kernel.replace(old, new))
    assert report.verdict == "wrong" or report.values == "wrong", (old, str(report))


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sharded", "whole"])
def test_the_other_forms(tmp_path: Path, activation: str) -> None:
    """Along rows, and with four links."""
    from ringsched.commands.audited import audit_small, auditor

    features = ("all_gather_matmul_features", "matmul_reduce_scatter_features")
    for links in (("all_gather_matmul_bidirectional", "matmul_reduce_scatter_bidirectional"), features + features):
        file = tmp_path / "chain.yaml"
        uses = "".join(f"  - use: {link}\n    epilogue: silu\n" for link in links)
        head = f"schedule: chain\ntopology: {{ring: N}}\nparams: {{N: 3}}\nactivation: {activation}\n"
        file.write_text(f"{head}chain:\n{uses}")
        with auditor(True) as process:
            assert process is not None
            outcome = audit_small(process, [compile_schedule(open_schedule(file))])
        assert not outcome.undecided


TORUS = "topology: {torus: [X, Y]}\nparams: {X: 2, Y: 3}\n"
GATHER = f"""\
schedule: gather
collective: all_gather
{TORUS}chunks: [X, Y]
compute: {{multiply: on arrival, shard: features}}
steps:
  - for: s in 0 .. X - 2
    do:
      - send: chunk[(x - s) % X, y]
        to: [x + 1, y]
  - for: i in 0 .. X - 1
    do:
      - for: s in 0 .. Y - 2
        do:
          - send: chunk[(x + i) % X, (y - s) % Y]
            to: [x, y + 1]
"""
SCATTER = f"""\
schedule: scatter
collective: reduce_scatter
{TORUS}chunks: [X, Y]
compute: {{multiply: before sending, shard: features}}
steps:
  - for: i in 0 .. X - 1
    do:
      - for: s in 0 .. Y - 2
        do:
          - send: chunk[(x + i) % X, (y - s - 1) % Y]
            to: [x, y + 1]
            op: reduce
  - for: s in 0 .. X - 2
    do:
      - send: chunk[(x - s - 1) % X, y]
        to: [x + 1, y]
        op: reduce
"""


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sharded", "whole"])
def test_on_a_torus(tmp_path: Path, activation: str) -> None:
    """A rank's shard is that of both its coordinates."""
    from ringsched.commands.audited import audit_small, auditor

    (tmp_path / "gather.yaml").write_text(GATHER)
    (tmp_path / "scatter.yaml").write_text(SCATTER)
    file = tmp_path / "chain.yaml"
    uses = "  - use: gather\n    epilogue: gelu\n  - use: scatter\n"
    file.write_text(f"schedule: chain\n{TORUS}activation: {activation}\nchain:\n{uses}")
    with auditor(True) as process:
        assert process is not None
        outcome = audit_small(process, [compile_schedule(open_schedule(file))])
    assert not outcome.undecided
