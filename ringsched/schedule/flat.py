"""Schedule → FlatSchedule: parameters bound, `use:` inlined, loops unrolled into a list of steps.

A step keeps its transfers as symbolic statements (the same object for all iterations of a loop, so that the lowering
can roll them up again) together with the values of the loop variables. All names are those of the outermost schedule:
parameters and loop variables of a used schedule are replaced on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import assert_never

from ringsched.collectives import Promise, promise_of
from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.expr import EvaluationError, Expr, Int, Var, binary, flipping, integer, names, substitute
from ringsched.schedule.made import CannotMake, made
from ringsched.schedule.schedule import (
    Beside,
    ChunkRef,
    Item,
    Loop,
    Range,
    Rank,
    Schedule,
    Slice,
    Step,
    Synth,
    Transfer,
    Use,
)
from ringsched.topology import Topology, evaluation_diagnostic, topology_of

MAX_TRANSFERS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTransfer:
    """`statement` under `env` (parameters and loop variables); `each` holds the bounds of its own range."""

    statement: Transfer
    env: dict[str, int]
    each: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatSchedule:
    """`steps[k]` are the transfers of step k; `env` the parameters.

    flips: the schedule speaks of a rank's bits, so if it is the same at all ranks, then up to an exclusive or.
    """

    schedule: Schedule
    env: dict[str, int]
    topology: Topology
    promise: Promise
    steps: tuple[tuple[FlatTransfer, ...], ...]
    flips: bool = False

    def onward(self, index: int, by: int, side: int) -> int:
        """The index that is `by` further on, in the sense in which all ranks are alike."""
        return index ^ by if self.flips else (index + by) % side

    def back(self, index: int, by: int, side: int) -> int:
        """The index that `by` further on is `index`."""
        return index ^ by if self.flips else (index - by) % side

    def further(self, own: Expr, by: int, side: int) -> Expr:
        """`onward` as an expression; `own` is a rank's own index."""
        if not by:
            return own
        return binary("^", own, by) if self.flips else binary("%", binary("+", own, by), side)


def flatten(schedule: Schedule) -> FlatSchedule:
    """Raises RS202 … RS205 (expressions), RS210, RS307, RS308 (sizes), RS211 (too many transfers), RS216 (`use:`)."""
    env = {p.name: p.value for p in schedule.parameters}
    topology = topology_of(schedule, env)
    promise = promise_of(schedule, topology, env)
    body = _inline(schedule.items, _Scope(names={}, bound=frozenset(env), on=None, promise=promise, env=env))
    _count(body, env, MAX_TRANSFERS)
    steps = tuple(_run(body, env, promise))
    flips = schedule.compute is None and _flips(topology, steps)
    return FlatSchedule(schedule=schedule, env=env, topology=topology, promise=promise, steps=steps, flips=flips)


def _flips(topology: Topology, steps: tuple[tuple[FlatTransfer, ...], ...]) -> bool:
    """Whether ranks are a power of two, and some send to a rank that differs in its bits."""
    if topology.kind != "ring" or topology.ranks & (topology.ranks - 1) or topology.ranks == 1:
        return False
    statements = {transfer.statement for step in steps for transfer in step}
    return any(flipping(e, "r") for statement in statements for e in statement.to.coordinates)


# -- inlining: every statement in the outermost schedule's terms, made once -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    statements: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    range: Range
    body: tuple[_Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    runs: tuple[tuple[_Node, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """A used schedule: its parameters, and the chunks it works on, in outer terms; checked before its body runs."""

    use: Use
    parameters: tuple[tuple[str, Expr], ...]
    on: ChunkRef | None
    body: tuple[_Node, ...]


_Node = _Step | _Loop | _Beside | _Used


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """`names`: what a schedule's names mean outside; `bound`: the outer names in use; `on`: its chunks outside.

    `promise`, `env`: of the outermost schedule.
    """

    names: dict[str, Expr]
    bound: frozenset[str]
    on: ChunkRef | None
    promise: Promise
    env: dict[str, int]

    def outer(self, expr: Expr) -> Expr:
        if not self.names:
            return expr
        try:
            return substitute(expr, self.names)
        except EvaluationError as error:  # a constant part without a value
            raise DiagnosticError([evaluation_diagnostic(error, {})]) from None

    def name(self, var: str) -> str:
        renamed = self.names.get(var)
        return renamed.name if isinstance(renamed, Var) else var

    def range(self, range_: Range) -> Range:
        first, last = self.outer(range_.first), self.outer(range_.last)
        return Range(var=self.name(range_.var), first=first, last=last, span=range_.span)


def _inline(items: tuple[Item, ...], scope: _Scope) -> tuple[_Node, ...]:
    nodes: list[_Node] = []
    for item in items:
        match item:
            case Step():
                nodes.append(_Step(statements=tuple(_outward(t, scope) for t in item.transfers)))
            case Loop():
                range_ = scope.range(item.range)
                inner = replace(scope, bound=scope.bound | {range_.var})
                nodes.append(_Loop(range=range_, body=_inline(item.body, inner)))
            case Use():
                nodes.append(_used(item, scope))
            case Beside():
                nodes.append(_Beside(runs=tuple((_used(use, scope),) for use in item.uses)))
            case Synth():
                nodes.extend(_inline(_constructed(item, scope), scope))
            case _:
                assert_never(item)
    return tuple(nodes)


def _used(use: Use, scope: _Scope) -> _Used:
    """A used schedule: its parameters stand for outer expressions, its loop variables are renamed where they clash."""
    arguments = {name: scope.outer(expr) for name, expr in use.arguments}
    parameters: dict[str, Expr] = {p.name: arguments.get(p.name, Int(value=p.value)) for p in use.schedule.parameters}
    meanings = dict(parameters)
    taken = scope.bound | {"r", "x", "y", "z"}
    for var in _variables(use.schedule.items):
        fresh = var
        while fresh in taken:
            fresh += "_"
        taken |= {fresh}
        meanings[var] = Var(name=fresh)
    on = _compose(use.on, scope) if use.on is not None else scope.on
    inner = replace(scope, names=meanings, on=on)
    return _Used(use=use, parameters=tuple(parameters.items()), on=on, body=_inline(use.schedule.items, inner))


def _constructed(item: Synth, scope: _Scope) -> tuple[Item, ...]:
    """The steps that `synth:` stands for; RS220 where there are none for this topology or these chunks."""
    var = "s"
    while var in scope.bound or var in scope.names:
        var += "_"
    dims = _visible(scope.on, scope.env, scope.promise.dims)
    try:
        return made(item.kind, scope.promise.topology, dims, scope.promise.root, var)
    except CannotMake as problem:
        diagnostic = Diagnostic(
            code="RS220",
            message=f"`synth: {item.kind}` cannot be made: {problem}",
            primary=Label(span=item.span) if item.span else None,
            counterexample=scope.env or None,
            help="number the chunks by the coordinates of their owners; a last dimension gives the parts of a shard",
        )
        raise DiagnosticError([diagnostic]) from None


def _variables(items: tuple[Item, ...]) -> list[str]:
    found: list[str] = []
    for item in items:
        match item:
            case Loop():
                found.append(item.range.var)
                found.extend(_variables(item.body))
            case Step():
                found.extend(t.each.var for t in item.transfers if t.each)
            case Use() | Beside() | Synth():
                pass
            case _:
                assert_never(item)
    return list(dict.fromkeys(found))


def _compose(on: ChunkRef, scope: _Scope) -> ChunkRef:
    """`on` of a use within a use, in outermost terms."""
    own = ChunkRef(index=tuple(_outer_index(i, scope) for i in on.index), span=on.span)
    return own if scope.on is None else _through(own, scope.on)


def _outer_index(index: Expr | Slice, scope: _Scope) -> Expr | Slice:
    if isinstance(index, Slice):
        start = scope.outer(index.start) if index.start is not None else None
        stop = scope.outer(index.stop) if index.stop is not None else None
        return Slice(start=start, stop=stop, span=index.span)
    return scope.outer(index)


def _through(chunk: ChunkRef, on: ChunkRef) -> ChunkRef:
    """The chunk of a used schedule as a chunk of the outer one: `on` with its slices filled in, in order."""
    inner = list(chunk.index)
    index: list[Expr | Slice] = []
    for place in on.index:
        if not isinstance(place, Slice):
            index.append(place)
            continue
        given = inner.pop(0) if inner else Slice()
        index.append(_within(given, place))
    return ChunkRef(index=(*index, *inner), span=chunk.span)


def _within(given: Expr | Slice, place: Slice) -> Expr | Slice:
    base = place.start
    if isinstance(given, Slice):
        if given == Slice():
            return place
        start = given.start if base is None or given.start is None else _plus(base, given.start)
        stop = given.stop if base is None or given.stop is None else _plus(base, given.stop)
        return Slice(
            start=start if start is not None else base, stop=stop if stop is not None else place.stop, span=given.span
        )
    return given if base is None else _plus(base, given)


def _plus(base: Expr, given: Expr) -> Expr:
    """`base + given`, at the place of `given`."""
    return binary("+", base, given, given.span)


def _outward(transfer: Transfer, scope: _Scope) -> Transfer:
    """A statement of a used schedule in the outer schedule's terms."""
    if not scope.names and scope.on is None:
        return transfer
    chunk = ChunkRef(index=tuple(_outer_index(i, scope) for i in transfer.chunk.index), span=transfer.chunk.span)
    if scope.on is not None:
        chunk = _through(chunk, scope.on)
    return Transfer(
        chunk=chunk,
        to=_outer_rank(transfer.to, scope),
        op=transfer.op,
        when=tuple(scope.outer(c) for c in transfer.when),
        each=scope.range(transfer.each) if transfer.each is not None else None,
        sender=_outer_rank(transfer.sender, scope) if transfer.sender else None,
        span=transfer.span,
    )


def _outer_rank(rank: Rank, scope: _Scope) -> Rank:
    return Rank(coordinates=tuple(scope.outer(c) for c in rank.coordinates), span=rank.span)


# -- counting: refuse what is too large before any loop is unrolled ---------------------------------------------------


def _count(nodes: tuple[_Node, ...], env: dict[str, int], budget: int) -> int:
    """How many transfers, and turns of loops without any, the nodes make; RS211 above `budget`.

    A loop whose body counts the same in every turn is multiplied, not run; any other spends at least 1 a turn.
    """
    total = 0
    for node in nodes:
        match node:
            case _Step():
                for statement in node.statements:
                    first, last = _bounds(statement.each, env) if statement.each else (0, 0)
                    total = _within_budget(total + max(0, last - first + 1), budget, statement.span)
            case _Loop():
                total += _count_loop(node, env, budget - total)
            case _Beside():
                for run in node.runs:
                    total += _count(run, env, budget - total)
            case _Used():
                total += _count(node.body, env, budget - total)
            case _:
                assert_never(node)
    return total


def _count_loop(loop: _Loop, env: dict[str, int], budget: int) -> int:
    first, last = _bounds(loop.range, env)
    turns = max(0, last - first + 1)
    if turns == 0:
        return 0
    var, span = loop.range.var, loop.range.span
    if var not in _bound_names(loop.body):
        once = _count(loop.body, {**env, var: first}, MAX_TRANSFERS)
        return _within_budget(turns * max(1, once), budget, span)
    _within_budget(turns, budget, span)
    total = 0
    inner = dict(env)
    for value in range(first, last + 1):
        inner[var] = value
        total += max(1, _count(loop.body, inner, budget - total))
        _within_budget(total, budget, span)
    return total


def _bound_names(nodes: tuple[_Node, ...]) -> frozenset[str]:
    """The names that the bounds of loops and of `each` depend on."""
    found: frozenset[str] = frozenset()
    for node in nodes:
        match node:
            case _Step():
                for statement in node.statements:
                    if statement.each is not None:
                        found |= names(statement.each.first) | names(statement.each.last)
            case _Loop():
                found |= names(node.range.first) | names(node.range.last) | _bound_names(node.body)
            case _Beside():
                found = found.union(*(_bound_names(run) for run in node.runs))
            case _Used():
                found |= _bound_names(node.body)
            case _:
                assert_never(node)
    return found


def _within_budget(total: int, budget: int, span: Span | None) -> int:
    if total > budget:
        count = MAX_TRANSFERS - budget + total
        raise DiagnosticError(
            [
                Diagnostic(
                    code="RS211",
                    message=f"the schedule has at least {count:,} transfers a rank; the limit is {MAX_TRANSFERS:,}",
                    primary=Label(span=span, text="here the limit is passed") if span else None,
                    help="make the loop shorter; a collective over N ranks needs a small multiple of N steps",
                )
            ]
        )
    return total


def _value(expr: Expr, env: Mapping[str, int]) -> int:
    try:
        return integer(expr, env)
    except EvaluationError as error:
        raise DiagnosticError([evaluation_diagnostic(error, dict(env))]) from None


def _bounds(range_: Range, env: Mapping[str, int]) -> tuple[int, int]:
    return _value(range_.first, env), _value(range_.last, env)


# -- running: the steps one after the other ---------------------------------------------------------------------------


def _run(nodes: tuple[_Node, ...], env: dict[str, int], outer: Promise) -> Iterator[tuple[FlatTransfer, ...]]:
    for node in nodes:
        match node:
            case _Step():
                yield tuple(_bind(statement, env) for statement in node.statements)
            case _Loop():
                first, last = _bounds(node.range, env)
                for value in range(first, last + 1):
                    yield from _run(node.body, {**env, node.range.var: value}, outer)
            case _Beside():
                runs = [_run(run, env, outer) for run in node.runs]
                for steps in zip_longest(*runs, fillvalue=()):
                    yield tuple(t for step in steps for t in step)
            case _Used():
                _check_fit(node, env, outer)
                yield from _run(node.body, env, outer)
            case _:
                assert_never(node)


def _bind(statement: Transfer, env: dict[str, int]) -> FlatTransfer:
    each = _bounds(statement.each, env) if statement.each is not None else None
    return FlatTransfer(statement=statement, env=env, each=each)


def _check_fit(used: _Used, env: dict[str, int], outer: Promise) -> None:
    """RS216 where a used schedule is for other ranks or for other chunks than it is given."""
    inner = {name: _value(expr, env) for name, expr in used.parameters}
    schedule = used.use.schedule
    topology = topology_of(schedule, inner)
    if topology.ranks != outer.topology.ranks or topology.coordinates != outer.topology.coordinates:
        theirs, ours = (f"a {t.kind} of {' by '.join(map(str, t.sides))}" for t in (topology, outer.topology))
        raise _misfit(used, f"it is for {theirs}; this schedule is for {ours}", env)
    given = _visible(used.on, env, outer.dims)
    wanted = tuple(_value(expr, inner) for expr in schedule.chunks)
    if given[: len(wanted)] != wanted:
        raise _misfit(used, f"it has {math.prod(wanted)} chunks {list(wanted)}; it is given {list(given)}", env)


def _visible(on: ChunkRef | None, env: dict[str, int], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The chunk space that a used schedule is given: the dimensions that `on` takes whole or as a slice."""
    if on is None:
        return dims
    sizes = []
    for index, size in zip(on.index, dims, strict=False):
        if isinstance(index, Slice):
            start = _value(index.start, env) if index.start is not None else 0
            stop = _value(index.stop, env) if index.stop is not None else size
            sizes.append(stop - start)
    return (*sizes, *dims[len(on.index) :])


def _misfit(used: _Used, reason: str, env: dict[str, int]) -> DiagnosticError:
    span = used.use.span
    return DiagnosticError(
        [
            Diagnostic(
                code="RS216",
                message=f"the used schedule `{used.use.path}` does not fit: {reason}",
                primary=Label(span=span, text="used here") if span else None,
                counterexample=env or None,
                help="set its parameters with `with:`, and give it its chunks with `on:`",
            )
        ]
    )
