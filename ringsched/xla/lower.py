"""FlatSchedule → Exchange: each step's transfers as partial permutations, and runs of equal steps as loops.

What a step moves is known in numbers (`verify.resolve`). A statement that every rank runs becomes a shift where its
receivers differ and where the chunks that arrive have names in the receiver's own terms. Such names are guessed, by
putting the sender's coordinates into the statement, and kept only if they give the right chunks at every rank in every
turn; what has none, and transfers that are pinned to ranks, become rounds.

Products come between the steps where all of these are shifts, else behind them, or before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ringsched.expr import Expr, Var, binary, names, substitute
from ringsched.program.simplify import simplify
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import Range, Slice
from ringsched.verify.resolve import Move, Resolver
from ringsched.xla.constants import named_sides
from ringsched.xla.exchange import Exchange, Loop, Message, Own, Round, Shift, Step
from ringsched.xla.products import first_products, interleaved, own_chunks
from ringsched.xla.rounds import rounds
from ringsched.xla.shifts import Turn, shift_of, substituted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Consecutive steps of the same statements. `variables`: of each, the loop variable that counts up, if any."""

    turns: tuple[tuple[Turn, ...], ...]
    variables: tuple[str | None, ...]


def exchange_of(flat: FlatSchedule, parameters: Collection[str] | None = None) -> Exchange:
    """The Exchange of a schedule whose data flow is right. parameters: that may be named; None: all."""
    resolver = Resolver(flat)
    sides = named_sides(flat.topology)
    named = tuple(
        name
        for name, value in flat.env.items()
        if sides.get(name, value) == value and (parameters is None or name in parameters)
    )
    numbered = [_turns(flat.steps[number], list(resolver.step(number))) for number in range(len(flat.steps))]
    steps = [step for step in numbered if step]
    compute = flat.schedule.compute
    nodes = None if compute is None else _interleaved(flat, named, steps)
    if nodes is None:
        nodes = _nodes(flat, named, steps)
        if compute is not None:
            nodes = [*nodes, Own()] if compute.moment == "on arrival" else [Own(), *nodes]
    return Exchange(flat=flat, nodes=tuple(nodes), parameters=named)


def _interleaved(
    flat: FlatSchedule, parameters: tuple[str, ...], steps: Sequence[tuple[Turn, ...]]
) -> list[Step | Loop | Own] | None:
    """The nodes with products between the steps, where that can be."""
    turns = interleaved(flat, steps)
    if turns is None:
        return None
    nodes = _nodes(flat, parameters, turns)
    inner = [node.step if isinstance(node, Loop) else node for node in nodes]
    if any(isinstance(message, Round) for step in inner if isinstance(step, Step) for message in step.messages):
        return None
    gathers = flat.schedule.compute is not None and flat.schedule.compute.moment == "on arrival"
    return [own_chunks(flat), *nodes] if gathers else nodes


def _nodes(
    flat: FlatSchedule, parameters: tuple[str, ...], steps: Sequence[tuple[Turn, ...]]
) -> list[Step | Loop | Own]:
    nodes: list[Step | Loop | Own] = []
    for run in _runs(flat, steps):
        loop = _loop(flat, parameters, run) if len(run.turns) > 1 else None
        if loop is not None:
            nodes += [*_begun(flat, run.turns[0], loop.step, {loop.var: loop.first}), loop]
            continue
        for turns in run.turns:
            step = _step(flat, parameters, turns)
            nodes += [*_begun(flat, turns, step, {}), step]
    return nodes


def _begun(flat: FlatSchedule, turns: tuple[Turn, ...], step: Step, known: Mapping[str, int]) -> Iterator[Own]:
    """What has to be multiplied before it is sent in this step, or in the first turn of a loop."""
    for turn, message in zip(turns, step.messages, strict=False):
        if isinstance(message, Shift):
            for own in first_products(flat, turn, message):
                index, each = substituted(own.index, known), own.each
                if each is not None:
                    first, last = substitute(each.first, known), substitute(each.last, known)
                    each = Range(var=each.var, first=first, last=last)
                simple = (part if isinstance(part, Slice) else simplify(part, {}) for part in index)
                yield Own(index=tuple(simple), each=each)


def _turns(transfers: Sequence[FlatTransfer], moves: Sequence[Move]) -> tuple[Turn, ...]:
    """What each statement of a step moves; those that move nothing are left out."""
    found: dict[int, list[Move]] = {}
    for move in moves:
        found.setdefault(id(move.transfer), []).append(move)
    return tuple(Turn(transfer=t, moves=tuple(found[id(t)])) for t in transfers if id(t) in found)


def _runs(flat: FlatSchedule, steps: Sequence[tuple[Turn, ...]]) -> Iterator[_Run]:
    start = 0
    while start < len(steps):
        end = start + 1
        variables: tuple[str | None, ...] = (None,) * len(steps[start])
        while end < len(steps):
            advance = _advance(steps[end - 1], steps[end])
            if advance is None or (end > start + 1 and advance != variables):
                break
            variables, end = advance, end + 1
        yield _Run(turns=tuple(steps[start:end]), variables=variables)
        start = end


def _advance(before: tuple[Turn, ...], after: tuple[Turn, ...]) -> tuple[str | None, ...] | None:
    """For each statement the variable that is one more in the next step; None where it is no next turn of a loop."""
    if len(before) != len(after):
        return None
    found: list[str | None] = []
    for one, other in zip(before, after, strict=True):
        if other.sends_first or other.needs_first or one.multiplies != other.multiplies:
            return None
        if one.transfer.statement is not other.transfer.statement or not (one.plain and other.plain):
            return None
        env, then = one.transfer.env, other.transfer.env
        changed = [name for name in env if env[name] != then.get(name)]
        if len(changed) > 1 or env.keys() != then.keys():
            return None
        if changed and then[changed[0]] != env[changed[0]] + 1:
            return None
        found.append(changed[0] if changed else None)
    return tuple(found) if any(found) else None


def _loop(flat: FlatSchedule, parameters: tuple[str, ...], run: _Run) -> Loop | None:
    """A run as a loop; None where one of its statements has no names that are right in every turn."""
    own = next(name for name in run.variables if name is not None)
    first = run.turns[0][run.variables.index(own)].transfer.env[own]
    var = own
    while var in parameters:
        var += "_"
    shifts: list[Message] = []
    for position, name in enumerate(run.variables):
        turns = [turn[position] for turn in run.turns]
        bound: dict[str, Expr] = {}
        if name is not None:  # of schedules side by side, each has a variable of its own
            bound[name] = binary("+", Var(name=var), turns[0].transfer.env[name] - first)
        shift = shift_of(flat, parameters, turns, bound, (var, first))
        if shift is None:
            return None
        shifts.append(shift)
    even = not any(var in _fixed_names(shift) for shift in shifts if isinstance(shift, Shift))
    last = first + len(run.turns) - 1
    return Loop(var=var, first=first, last=last, even=even, step=Step(messages=tuple(shifts)))


def _fixed_names(shift: Shift) -> frozenset[str]:
    """The names that pairs and numbers of chunks depend on."""
    found = [*shift.pairs.to, *shift.pairs.when]
    if shift.each is not None:
        found += [shift.each.first, shift.each.last]
    for part in (*shift.sent, *shift.arrived):
        if isinstance(part, Slice):
            found += [end for end in (part.start, part.stop) if end is not None]
    return frozenset().union(*(names(expr) for expr in found))


def _step(flat: FlatSchedule, parameters: tuple[str, ...], turns: tuple[Turn, ...]) -> Step:
    messages: list[Message] = []
    rest: list[Move] = []
    lonely = sum(len(turn.routes) == 1 for turn in turns) > 1  # transfers of one rank each travel together
    for turn in turns:
        pooled = not turn.plain or (lonely and len(turn.routes) == 1)
        shift = None if pooled else shift_of(flat, parameters, [turn], {}, None)
        if shift is None:
            rest += turn.moves
        else:
            messages.append(shift)
    step = Step(messages=(*messages, *rounds(rest)))
    values = {name: value for turn in turns for name, value in turn.transfer.env.items() if name not in flat.env}
    return replace(step, label=", ".join(f"{name} = {value}" for name, value in values.items()))
