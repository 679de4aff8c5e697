"""Programs of links → one Program for all layers.

    fetch the weights of layer 0; tell the writers here that this rank has started
    shard = x; wait for those that this rank writes to
    for each layer
        link 1      hidden = epilogue(gathered shard @ w1[layer])
        link 2      shard = epilogue(scattered sum of hidden @ w2[layer])
    o = shard

Buffers and semaphores of link k are called as in its own Program, with `_k` behind. Each is there once and is used anew
in every layer. A weight lies in HBM, and one layer of it in VMEM: that of the next layer is fetched from the last
product by this one on, and awaited before the products of the link before are done. Such copies are started, and
awaited, where a link waits or sends anyway: a core drains its matrix units at each such point.

What the Program computes. Each link's Program is proven by itself: it computes what it promises, ends, and leaves no
semaphore over. So one interleaving of the whole is this: all ranks run link 1 of layer 0 to its end, then link 2, and
so on; in it each link computes what it promises, of what the one before has left. Where the whole has no race, every
interleaving computes the same. (For up to 16 ranks, `verify.chain_values` also executes the whole with numbers.)

For how many layers. Races, deadlock and leftovers are checked for 1, 2 and 3 layers. All layers but the last have one
text, on the same memory and semaphores (layers of a weight in HBM are only read), so that any two layers in a row look
like the first two, or the last two, of three. In those, accesses to the same memory are ordered, and a wait takes what
its own layer signals. Let A and B be accesses to the same memory in layers k and k + m, m > 1. The instruction of B
stands in layer k + 1, too; there A is over before it begins, and the rank of B begins with it before it begins with B.
So A is over before B begins, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.expr import Binary, Compare, Expr, Int, Var
from ringsched.lower.lower import Lowered
from ringsched.lower.naming import INPUT, OUTPUT
from ringsched.lower.plan import Decision
from ringsched.program.program import (
    BARRIER,
    Buffer,
    Copy,
    Instruction,
    Loop,
    Multiply,
    Program,
    Region,
    Round,
    Semaphore,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
)
from ringsched.program.rewrite import renamed
from ringsched.program.simplify import simplify
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Chain, Link
from ringsched.topology import Topology

LAYER, LAYERS = Var(name="layer"), Var(name="layers")
PROVEN_LAYERS = (1, 2, 3)
_WEIGHT = "w"


def activation(number: int, links: int) -> str:
    """The buffer between link `number` and the next, 0: between the last and the first."""
    if number % links == 0:
        return "shard"
    kind = "hidden" if number % 2 else "shard"
    return kind if links == 2 else f"{kind}_{number}"


def weight(number: int) -> str:
    """The operand that link `number` (from 1) multiplies by."""
    return f"w{number}"


def fetched(number: int) -> str:
    """One layer of it, in VMEM."""
    return f"weights_{number}"


# -- do the links fit? ------------------------------------------------------------------------------------------------


def check_links(chain: Chain, topology: Topology, flats: Sequence[FlatSchedule]) -> None:
    """Raises RS216 where a link is not for the chain's ranks, or does not take what the one before gives."""
    found = [
        _other_ranks(link, f.topology, topology)
        for link, f in zip(chain.links, flats, strict=True)
        if f.topology != topology
    ]
    if found:
        raise DiagnosticError(found)
    for number, (link, flat) in enumerate(zip(chain.links, flats, strict=True)):
        before, given = chain.links[number - 1], flats[number - 1]
        wanted, there = _takes(link), _gives(before)
        if wanted == there and flat.promise.dims != given.promise.dims:
            wanted, there = (f"chunks {list(f.promise.dims)}" for f in (flat, given))
        if wanted == there:
            continue
        first = "; the last gives to the first, in the next layer" if number == 0 else ""
        found.append(
            Diagnostic(
                code="RS216",
                message=f"`{link.path}` does not fit behind `{before.path}`",
                primary=Label(span=link.span, text=f"takes {wanted}") if link.span else None,
                secondary=(Label(span=before.span, text=f"gives {there}"),) if before.span else (),
                help="a link that gathers goes before one that scatters, with the same `shard:` and the same `chunks:`"
                + first,
            )
        )
    if not found and chain.links[0].schedule.collective.kind != "all_gather":
        message = "a chain begins with a link that gathers"
        span = chain.links[0].span
        label = Label(span=span, text="scatters") if span else None
        found.append(Diagnostic(code="RS607", message=message, primary=label, help="put the links in another order"))
    if found:
        raise DiagnosticError(found)


def _other_ranks(link: Link, theirs: Topology, ours: Topology) -> Diagnostic:
    there, here = (f"a {t.kind} of {' by '.join(map(str, t.sides))}" for t in (theirs, ours))
    return Diagnostic(
        code="RS216",
        message=f"the used schedule `{link.path}` does not fit: it is for {there}; this chain is for {here}",
        primary=Label(span=link.span, text="used here") if link.span else None,
        help="give the parameters of both the same names",
    )


def _takes(link: Link) -> str:
    compute = link.schedule.compute
    assert compute is not None
    return f"shards of {compute.shard}" if compute.moment == "on arrival" else "features of each rank's own"


def _gives(link: Link) -> str:
    compute = link.schedule.compute
    assert compute is not None
    if compute.moment == "on arrival":
        return "features of each rank's own"
    return f"shards of {compute.shard}" if link.schedule.collective.kind == "reduce_scatter" else "the whole sum"


# -- one Program ------------------------------------------------------------------------------------------------------


def chain_program(name: str, links: Sequence[Lowered], layers: int | None = None) -> Program:
    """The Program for so many layers; None: for `layers` of them, its weights being said to have one."""
    programs = [_named(link.program, number, len(links)) for number, link in enumerate(links, 1)]
    count: Expr = LAYERS if layers is None else Int(value=layers)
    signals, waits = _barrier(programs)
    bodies = _with_weights([_early(_without_barrier(p.body)) for p in programs], count)
    layer = Loop(
        var=LAYER.name,
        first=Int(value=0),
        last=simplify(Binary(op="-", left=count, right=Int(value=1))),
        body=tuple(i for body in bodies for i in body),
    )
    shard = Region(buffer=activation(0, len(links)))
    body = (
        *(_fetch(number, Int(value=0)) for number in range(1, len(links) + 1)),
        *signals,
        Round(target=shard, source=Region(buffer=INPUT), note="the first layer's operand"),
        *waits,
        _await(1),
        layer,
        Round(target=Region(buffer=OUTPUT), source=shard, note="the last layer's result"),
    )
    return Program(
        name=name,
        coordinates=programs[0].coordinates,
        sides=programs[0].sides,
        buffers=tuple(_buffers(links, programs, layers or 1)),
        semaphores=tuple(_semaphores(programs)),
        body=body,
    )


def decisions(links: Sequence[Link], lowered: Sequence[Lowered]) -> tuple[Decision, ...]:
    """Those of the links, and the chain's own."""
    found = [
        replace(decision, subject=f"{number}: {decision.subject}")
        for number, link in enumerate(lowered, 1)
        for decision in link.decisions
        if decision.subject != "barrier"
    ]
    found += [decision for decision in lowered[0].decisions if decision.subject == "barrier"]
    reason = (
        "a link begins when all ranks are done with the same link of the layer before: they have sent what it needs"
    )
    found.append(Decision(subject="layers", choice="one set of buffers and semaphores, without credits", reason=reason))
    reason = "one layer of each weight is in VMEM; the next is on its way while the other links multiply"
    found.append(Decision(subject="weights", choice=f"{len(links)} streamed from HBM, a layer ahead", reason=reason))
    return tuple(found)


def _named(program: Program, number: int, links: int) -> Program:
    """A link's Program, its buffers and semaphores named as in the chain."""
    buffers = {b.name: f"{b.name}_{number}" for b in program.buffers}
    buffers |= {INPUT: activation(number - 1, links), OUTPUT: activation(number, links), _WEIGHT: fetched(number)}
    semaphores = {s.name: s.name if s.name == BARRIER else f"{s.name}_{number}" for s in program.semaphores}
    return replace(
        program,
        buffers=tuple(replace(b, name=buffers[b.name]) for b in program.buffers),
        semaphores=tuple(replace(s, name=semaphores[s.name]) for s in program.semaphores),
        body=tuple(renamed(i, buffers, semaphores) for i in program.body),
    )


def _buffers(links: Sequence[Lowered], programs: Sequence[Program], layers: int) -> Iterator[Buffer]:
    count = len(links)
    yield links[0].program.buffer(INPUT)
    for number, link in enumerate(links, 1):
        yield Buffer(name=weight(number), space="input", shape=(layers, *link.program.buffer(_WEIGHT).shape))
    yield links[-1].program.buffer(OUTPUT)
    for number, program in enumerate(programs, 1):
        yield replace(program.buffer(activation(number - 1, count)), space="scratch")
    for number, program in enumerate(programs, 1):
        yield replace(program.buffer(fetched(number)), space="scratch")
    for program in programs:
        yield from (b for b in program.buffers if b.space == "scratch")


def _semaphores(programs: Sequence[Program]) -> Iterator[Semaphore]:
    for number in range(1, len(programs) + 1):
        yield Semaphore(name=_loaded(number).semaphore, kind="dma")
    for program in programs:
        yield from (s for s in program.semaphores if s.kind != "barrier")
    yield from [s for program in programs for s in program.semaphores if s.kind == "barrier"][:1]


# -- the barrier ------------------------------------------------------------------------------------------------------


def _barrier(programs: Sequence[Program]) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
    """Signals and waits of one barrier for all links: each rank that writes here in any of them is told."""
    parts = {p: tuple(i for i in program.body if _of_barrier(i)) for p, program in enumerate(programs)}
    if all(part == parts[0] for part in parts.values()):
        return _halves(parts[0])
    signals: dict[tuple[Expr, ...], Signal] = {}
    for i in (i for part in parts.values() for i in part):
        if isinstance(i, When):
            message = "the links' barriers cannot be joined: who writes to whom differs between ranks and links"
            raise DiagnosticError([Diagnostic(code="RS607", message=message, help="take links of the same ranks")])
        if isinstance(i, Signal):
            signals.setdefault(i.peer, i)
    wait = next(i for part in parts.values() for i in part if isinstance(i, Wait))
    return tuple(signals.values()), (replace(wait, amount=len(signals)),)


def _halves(barrier: tuple[Instruction, ...]) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
    waits = tuple(i for i in barrier if _awaits(i))
    return tuple(i for i in barrier if not _awaits(i)), waits


def _awaits(i: Instruction) -> bool:
    return isinstance(i, Wait) or (isinstance(i, When) and any(map(_awaits, i.body)))


def _of_barrier(i: Instruction) -> bool:
    match i:
        case Signal() | Wait():
            return i.semaphore.semaphore == BARRIER
        case When():
            return any(map(_of_barrier, i.body))
        case _:
            return False


def _without_barrier(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    return tuple(i for i in body if not _of_barrier(i))


# -- points of synchronisation ----------------------------------------------------------------------------------------


def _synchronises(i: Instruction) -> bool:
    match i:
        case Send() | Copy() | WaitDma() | Signal() | Wait():
            return True
        case Loop() | When():
            return any(map(_synchronises, i.body))
        case _:
            return False


def _multiplies(i: Instruction) -> bool:
    return isinstance(i, Multiply) or (isinstance(i, Loop | When) and any(map(_multiplies, i.body)))


def _behind_last(body: Sequence[Instruction]) -> int:
    """The place behind the last instruction that synchronises."""
    return max((k + 1 for k, i in enumerate(body) if _synchronises(i)), default=len(body))


def _early(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Waits at the very end go to the point of synchronisation before: no one's data depends on when they are done."""
    end = len(body)
    while end and isinstance(body[end - 1], WaitDma):
        end -= 1
    start = end
    while start and not _synchronises(body[start - 1]):
        start -= 1
    return (*body[:start], *body[end:], *body[start:end]) if start else body


# -- weights ----------------------------------------------------------------------------------------------------------


def _with_weights(bodies: list[tuple[Instruction, ...]], layers: Expr) -> list[list[Instruction]]:
    """The links' code in one layer, with the copies that fetch the next layer's weights and the waits for them."""
    result = [list(body) for body in bodies]
    following = Binary(op="+", left=LAYER, right=Int(value=1))
    more = (Compare(first=following, rest=(("<", layers),)),)
    for number, body in enumerate(bodies, 1):
        start = When(conditions=more, body=(_fetch(number, following),))
        used = max((k for k, i in enumerate(body) if _multiplies(i)), default=-1)
        behind = [(number - 1, k) for k in range(used + 1, len(body))]
        behind += [(link, k) for link in range(number, len(bodies)) for k in range(len(result[link]))]
        at_end = (len(bodies) - 1, len(result[-1]))
        link, place = next(((link, k) for link, k in behind if _synchronises(result[link][k])), at_end)
        result[link].insert(place, start)
    for number, code in enumerate(result, 1):
        wait = _await(number % len(result) + 1)
        guarded = When(conditions=more, body=(wait,)) if number == len(result) else wait
        code.insert(_behind_last(code), guarded)
    return result


def _loaded(number: int) -> SemaphoreRef:
    return SemaphoreRef(semaphore=f"loaded_{number}")


def _fetch(number: int, layer: Expr) -> Copy:
    source = Region(buffer=weight(number), index=(layer,))
    note = "fetch the first layer's weights" if layer == Int(value=0) else "fetch the next layer's weights"
    return Copy(source=source, target=Region(buffer=fetched(number)), done=_loaded(number), note=note)


def _await(number: int) -> WaitDma:
    note = "wait for the weights of the next link"
    return WaitDma(semaphore=_loaded(number), region=Region(buffer=fetched(number)), note=note)
