"""An Exchange that multiplies → its module; the Exchanges of a chain's links → theirs.

The functions are those of the kernels' modules, but for what only kernels have: memory, tiles, cores. Shapes, checks
and epilogues are the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ringsched.codegen.chain import Texts
from ringsched.codegen.lines import call, fixed_part, header, spaced
from ringsched.codegen.local import LocalProduct
from ringsched.codegen.multiply import Product
from ringsched.schedule.schedule import Chain, Multiply
from ringsched.xla.constants import TYPED, constant_lines, translator_of
from ringsched.xla.exchange import Exchange, Own
from ringsched.xla.steps import Steps
from ringsched.xla.translate import Table

IMPORTS = """\
import copy
import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax
{more}from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
"""
MAPPED = "jax.jit(jax.shard_map(apply, mesh=mesh, check_vma=False, **specs))"


def product_text(exchange: Exchange, *, name: str, heading: str, facts: list[tuple[str, str]]) -> str:
    """The module of a schedule that multiplies; `facts` go into the header."""
    promise = exchange.flat.promise
    product = (LocalProduct if promise.kind == "none" else Product).of(name, promise, _compute(exchange))
    translator = translator_of(exchange)
    steps = Steps(exchange=exchange, translator=translator).lines()
    lines = [*header(name, heading, facts, "x, w", _imports(promise.kind == "all_reduce"))]
    lines += [*constant_lines(exchange, translator), *_cutting(exchange, product.by_rows)]
    if not product.gathers:
        lines.append(f"SHARES = {'RANKS' if product.shares() != '1' else '1'}  # of a sum")
    lines += ["", "", *_public(product), "", "", *product.sharded(MAPPED)]
    parts = ["template_operands_product.py", "template_operands.py"]
    own = ["template_product.py", "template.py"]
    if promise.kind != "none":
        lines += ["", "", *steps]
        own.insert(0, "template_gathered.py" if product.gathers else "template_summed.py")
    if promise.kind == "all_reduce":
        own.insert(1, "template_sum.py")
    return _joined(lines, parts, own)


def chain_text(chain: Chain, exchanges: Sequence[Exchange], *, heading: str, facts: list[tuple[str, str]]) -> str:
    """The module of a chain, of whose links the Exchanges are; `facts` go into the header."""
    first = exchanges[0]
    texts = Texts(chain=chain, promise=first.flat.promise, ranks="RANKS")
    tables: dict[Table, str] = {}
    functions = []
    for number, exchange in enumerate(exchanges, 1):
        steps = Steps(exchange=exchange, translator=translator_of(exchange, tables), name=f"_transfers_{number}")
        functions += ["", "", *steps.lines()]
    lines = header(chain.name, heading, facts, ", ".join(["x", *texts.weights]), _imports(texts.whole))
    lines += constant_lines(first, translator_of(first, tables))
    lines += [*_cutting(first, texts.by_rows), "SHARES = RANKS  # of a sum", "", *texts.constants()]
    lines += ["", "", *_chain_public(texts), "", "", *texts.sharded(MAPPED)]
    lines += ["", "", *_layers(texts)]
    if texts.whole:
        lines += ["", "", *_whole(), "", "", *texts.by_lax()]
    lines += functions
    own = ["template_gathered.py", "template_summed.py", *(["template_sum.py"] if texts.whole else [])]
    parts = ["template_operands_chain.py", "template_operands.py"]
    return _joined(lines, parts, [*own, "template_product.py", "template.py"])


def _compute(exchange: Exchange) -> Multiply:
    """With what became of the overlap."""
    compute = exchange.flat.schedule.compute
    assert compute is not None
    apart = any(isinstance(node, Own) and not node.index for node in exchange.nodes)
    return replace(compute, overlap="none") if apart else compute


def _imports(typed: bool) -> str:
    return IMPORTS.format(more=TYPED if typed else "")


def _joined(lines: list[str], shared: Sequence[str], own: Sequence[str]) -> str:
    texts = [fixed_part(part, "ringsched.xla") for part in own]
    return "\n\n".join([spaced(lines), *map(fixed_part, shared), *texts])


def _cutting(exchange: Exchange, by_rows: bool) -> list[str]:
    return [
        f"ALONG = {0 if by_rows else 1}  # shards are {'rows' if by_rows else 'columns'} of a matrix",
        f"GROUP = {exchange.flat.promise.group}  # how many dimensions of CHUNKS say whose a chunk is",
    ]


# ---- a single product -----------------------------------------------------------------------------------------------


def _public(product: Product) -> list[str]:
    """For use inside shard_map."""
    options = ["x", "w", "*", "axis_name", "epilogue=None", "scale=None", "bias=None", "residual=None"]
    options += ["transposed=False", "out_dtype=None", *([] if product.gathers else ["partial_dtype=None"])]
    rule = ["call", "x", "weights", '{"transposed": transposed}', *product.rule("RANKS")]
    return [
        *call(f"def {product.name}(", options, 0, "):"),
        *product.described(),
        "    Raises ValueError where shapes do not match.",
        '    """',
        f'    call = _Call("{product.name}", axis_name)',
        "    x, weights = _operands(call, x, w)",
        *call("shape = _check_product(", rule, 4),
        f"    extras = _extras(call, scale, bias, residual, shape, {product.sides()})",
        "    function = _epilogue(call.name, epilogue)",
        "    finish = _Epilogue(function, len(weights) > 1).of(**extras)",
        "    out_dtype = _result_dtype(x, scale, out_dtype)",
        "    weights = [w.T for w in weights] if transposed else weights",
        *_sums(product),
        "    return finish(y).astype(out_dtype)",
    ]


def _sums(product: Product) -> list[str]:
    """`y`: complete sums, in 32 bits."""
    partial = "    partial = out_dtype if partial_dtype is None else jnp.dtype(partial_dtype)"
    match product.promise.kind:
        case "none":
            return ["    y = _joined([_dot(x, w) for w in weights], 1)"]
        case "all_reduce":
            return [
                partial,
                "",
                "    def total(x, w):",
                "        return _summed_products(_transfers, call, x, w, partial)",
                "",
                "    def term(x, w):",
                "        return _dot(x, w).astype(partial)",
                "",
                "    if call.check_vma:",
                "        y = _typed_sum(total, term, call.axes, x, *weights)",
                "    else:",
                "        y = total(x, *weights)",
                "    y = y.astype(_wide(partial))",
            ]
        case "reduce_scatter":
            return [partial, "    y = _summed_products(_transfers, call, x, *weights, partial)"]
        case _:
            return ["    y = _joined(_gathered_products(_transfers, call, x, weights), 1)"]


# ---- a chain --------------------------------------------------------------------------------------------------------


def _chain_public(texts: Texts) -> list[str]:
    run = "    return _layers(call, x, weights, finishes, out_dtype, partial)"
    if texts.whole:
        run = "    return _whole(call, x, weights, finishes, out_dtype, partial)"
    return [
        *texts.described([]),
        "    Raises ValueError where shapes do not match.",
        '    """',
        f'    call = _Call("{texts.name}", axis_name)',
        *texts.taken(),
        *texts.options(),
        run,
    ]


def _layers(texts: Texts) -> list[str]:
    """`_layers(call, x, weights, …)`: shard to shard."""
    lines = [
        "def _layers(call, x, weights, finishes, out_dtype, partial):",
        '    """All layers, from shard to shard; what a layer gives is in 32 bits."""',
        "    dtype, wide = x.dtype, _wide(x.dtype)",
        "",
        "    def layer(y, weights):",
        "        y = y.astype(dtype)",
    ]
    for number in range(1, texts.count + 1):
        index, transfers = number - 1, f"_transfers_{number}"
        if texts.gathers(number):
            lines.append(f"        (y,) = _gathered_products({transfers}, call, y, [weights[{index}]])")
        else:
            lines.append(f"        y = _summed_products({transfers}, call, y, weights[{index}], partial)")
        dtype = "wide" if number == texts.count else "dtype"
        lines.append(f"        y = _finished(y, finishes[{index}], {dtype})")
    return [
        *lines,
        "        return y, None",
        "",
        "    y, _ = lax.scan(layer, x.astype(wide), weights)",
        "    return y.astype(out_dtype)",
    ]


def _whole() -> list[str]:
    """`_whole(call, x, weights, …)`: all of the activation to all of it."""
    return [
        "def _whole(call, x, weights, *rest):",
        '    """All layers, from the whole activation to the whole of it."""',
        "",
        "    def total(x, weights):",
        "        size = x.shape[ALONG] // RANKS",
        "        start = lax.axis_index(call.axes) * size",
        "        y = lax.dynamic_slice_in_dim(call.vary(x), start, size, ALONG)",
        "        y = _layers(call, y, weights, *rest)",
        "        held = _own_placed(y, call.axes)",
        "        held, _ = _transfers_1(held, call.axes, _Gathered([], []))",
        "        return _same.bind(_unblocked(held, ALONG, size, RANKS), axes=call.axes)",
        "",
        "    def by_lax(x, weights):",
        "        return _by_lax(x, weights, call.axes, *rest)",
        "",
        "    # As that of `lax.psum` behind each pair of products.",
        "    apply = jax.custom_vjp(total)",
        "    apply.defvjp(",
        "        lambda *operands: (total(*operands), operands),",
        "        lambda operands, ct: jax.vjp(by_lax, *operands)[1](ct),",
        "    )",
        "    return apply(x, tuple(weights))",
    ]
