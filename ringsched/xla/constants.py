"""The constants of a module: parameters, sizes, tables."""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.collectives import OWNED
from ringsched.expr import Expr, names
from ringsched.xla.exchange import Exchange
from ringsched.xla.translate import Table, Translator

# imports of template_sum.py
TYPED = """\
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
"""


def translator_of(exchange: Exchange, tables: dict[Table, str] | None = None) -> Translator:
    """`tables`: those that the module already has."""
    flat = exchange.flat
    bounds = {c: (0, side - 1) for c, side in zip(flat.topology.coordinates, flat.topology.sides, strict=True)}
    ranks = {"r": (0, flat.topology.ranks - 1)}
    return Translator(env=flat.env, bounds=ranks | bounds, tables={} if tables is None else tables)


def constant_lines(exchange: Exchange, translator: Translator) -> list[str]:
    """Written last: the steps have told the translator which tables they need."""
    flat = exchange.flat

    def sizes(exprs: Sequence[Expr], numbers: tuple[int, ...]) -> str:
        """As the schedule says them, where its parameters have their own names here."""
        texts = list(map(str, numbers))
        for position, expr in enumerate(exprs):
            if names(expr) <= set(exchange.parameters):
                texts[position] = translator.number(expr)
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    lines = [f"{name} = {flat.env[name]}" for name in exchange.parameters]
    lines += [f"SIDES = {sizes(flat.schedule.topology.sides, flat.topology.sides)}"]
    lines += ["RANKS = math.prod(SIDES)", f"CHUNKS = {sizes(flat.schedule.chunks, flat.promise.dims)}"]
    if OWNED[flat.promise.kind]:
        lines.append(f"PARTS = CHUNKS[{OWNED[flat.promise.kind] * flat.promise.group}:]  # of a shard")
    return [*lines, *translator.table_lines()]
