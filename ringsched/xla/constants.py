"""The constants of a module: sides, parameters, sizes, tables."""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.collectives import OWNED
from ringsched.expr import Expr, names
from ringsched.topology import Topology
from ringsched.xla.exchange import Exchange
from ringsched.xla.translate import Table, Translator
from ringsched.xla.words import SIDE_NAMES


def translator_of(exchange: Exchange, tables: dict[Table, str] | None = None) -> Translator:
    """`tables`: those that the module already has."""
    flat = exchange.flat
    bounds = {c: (0, side - 1) for c, side in zip(flat.topology.coordinates, flat.topology.sides, strict=True)}
    ranks = {"r": (0, flat.topology.ranks - 1)}
    return Translator(env=flat.env, bounds=ranks | bounds, tables={} if tables is None else tables)


def side_lines(topology: Topology) -> list[str]:
    """The sides, by the names that kernels call them."""
    if len(topology.sides) == 1:
        return [f"N = {topology.ranks}  # ranks", "SIDES = (N,)", "RANKS = N"]
    names = SIDE_NAMES[: len(topology.sides)]
    sides = ", ".join(map(str, topology.sides))
    return [f"{', '.join(names)} = {sides}  # sides", f"SIDES = ({', '.join(names)})", f"RANKS = {' * '.join(names)}"]


def named_sides(topology: Topology) -> dict[str, int]:
    """The names and values of `side_lines`."""
    return {"N": topology.ranks} if len(topology.sides) == 1 else dict(zip(SIDE_NAMES, topology.sides, strict=False))


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

    known = named_sides(flat.topology)
    lines = side_lines(flat.topology)
    lines += [f"{name} = {flat.env[name]}" for name in exchange.parameters if name not in known]
    lines.append(f"CHUNKS = {sizes(flat.schedule.chunks, flat.promise.dims)}")
    return [*lines, *translator.table_lines()]


def parts_line(exchange: Exchange) -> str:
    """How a rank's own chunks are numbered."""
    promise = exchange.flat.promise
    return f"PARTS = CHUNKS[{OWNED[promise.kind] * promise.group}:]  # of a shard"
