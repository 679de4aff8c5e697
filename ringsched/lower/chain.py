"""Programs of links → one Program for all layers.

    fetch the weights of layer 0; tell the writers here that this rank has started
    shard = x; wait for those that this rank writes to
    for each layer
        link 1      hidden = epilogue(gathered shard @ w1[layer])
        link 2      shard = epilogue(scattered sum of hidden @ w2[layer]); in the last layer it is the result

Where every rank has the whole operand and is to get the whole result, it takes its shard of x, and what comes out of
the last layer is gathered, by the transfers of link 1:

    shard = x[r]
    for each layer …, in the last one  last = …
    closing         o = gathered last

Buffers and semaphores of link k are called as in its own Program, with `_k` behind; the closing gather comes after the
last link. Each is there once and is used anew in every layer. A weight lies in HBM, and one layer of it in VMEM: that
of the next layer is fetched from the last product by this one on, and awaited before the products of the link before
are done. Such copies are started, and awaited, where a link waits or sends anyway: a core drains its matrix units at
each such point.

What the Program computes. Each link's Program is proven by itself, and so is that of the closing gather: it computes
what it promises, ends, and leaves no semaphore over. So one interleaving of the whole is this: all ranks run link 1 of
layer 0 to its end, then link 2, and so on, and in the end the closing gather; in it each computes what it promises, of
what the one before has left. Where the whole has no race, every interleaving computes the same. (For up to 16 ranks,
`verify.chain_values` also executes the whole with numbers.)

For how many layers. Races, deadlock and leftovers are checked for 1, 2 and 3 layers. All layers but the last have one
text, on the same memory and semaphores (layers of a weight in HBM are only read), so that any two layers in a row look
like the first two, or the last two, of three. In those, accesses to the same memory are ordered, and a wait takes what
its own layer signals. Let A and B be accesses to the same memory in layers k and k + m, m > 1, that both layers may
have. The instruction of B stands in layer k + 1, too; there A is over before it begins, and the rank of B begins with
it before it begins with B. So A is over before B begins, however many layers there are. What only the last layer has
is the result that it stores, to memory that no other touches.

The closing gather has semaphores of its own, and no layer touches what it writes: o, and slots of its own if it has
any. It reads `last`, which its own rank has written in the last layer, by the core. So nothing in it can race with a
layer, nor hold one up, however many there are; what the barrier says of the layers' remote writes, that their targets
have entered the kernel, it says of those of the gather. Its own accesses, and those of the next call, are ordered as
they are behind one layer: the last layer and the gather have the same text, and all that comes before is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError
from ringsched.expr import Binary, Compare, Expr, Int, Var
from ringsched.lower.lower import Lowered
from ringsched.lower.naming import INPUT, OUTPUT
from ringsched.lower.plan import Decision
from ringsched.lower.streams import LAYER, LAYERS, await_weights, early, fetch, fetched, loaded, weight, with_weights
from ringsched.program.program import (
    BARRIER,
    RANK,
    Add,
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
    Signal,
    Wait,
    WaitDma,
    When,
)
from ringsched.program.rewrite import renamed
from ringsched.program.simplify import simplify
from ringsched.schedule.schedule import Link

PROVEN_LAYERS = (1, 2, 3)
LAST = "last"  # the shard that comes out of the last layer, where it is gathered
_WEIGHT = "w"
_LOADED_INPUT = f"loaded_{INPUT}"


def activation(number: int, links: int) -> str:
    """The buffer between link `number` and the next, 0: between the last and the first."""
    if number % links == 0:
        return "shard"
    kind = "hidden" if number % 2 else "shard"
    return kind if links == 2 else f"{kind}_{number}"


def finishing(links: int, *, whole: bool) -> dict[str, int]:
    """Buffer → the link whose epilogue is applied to what is computed into it."""
    found = {activation(number, links): number for number in range(1, links + 1)}
    return found | {LAST if whole else OUTPUT: links}


def chain_program(
    name: str, links: Sequence[Lowered], layers: int | None = None, *, closing: Lowered | None = None
) -> Program:
    """The Program for so many layers; None: for `layers` of them, its weights being said to have one.

    closing: gathers the result; then the operand is whole, too.
    """
    programs = [_named(link.program, number, len(links)) for number, link in enumerate(links, 1)]
    gather = None if closing is None else _closing(closing.program, len(links) + 1)
    count: Expr = LAYERS if layers is None else Int(value=layers)
    signals, waits = _barrier([*programs, *([] if gather is None else [gather])])
    bodies = with_weights([early(_without_barrier(p.body)) for p in programs], count)
    shard = Region(buffer=activation(0, len(links)))
    layer = Loop(
        var=LAYER.name,
        first=Int(value=0),
        last=simplify(Binary(op="-", left=count, right=Int(value=1))),
        body=_stored([i for body in bodies for i in body], shard.buffer, OUTPUT if gather is None else LAST, count),
    )
    fetches = tuple(fetch(number, Int(value=0)) for number in range(1, len(links) + 1))
    if gather is None:
        given = Round(target=shard, source=Region(buffer=INPUT), note="the first layer's operand")
        body = (*fetches, *signals, given, *waits, await_weights(1), layer)
    else:
        copy, wait = _own_shard(gather, shard)
        body = (*fetches, copy, *signals, *waits, wait, await_weights(1), layer, *_without_barrier(gather.body))
    return Program(
        name=name,
        coordinates=programs[0].coordinates,
        sides=programs[0].sides,
        buffers=tuple(_buffers(links, programs, gather, layers or 1)),
        semaphores=tuple(_semaphores(programs, gather)),
        body=body,
    )


def _own_shard(closing: Program, shard: Region) -> tuple[Copy, WaitDma]:
    """This rank's shard of the whole operand: a copy, and the wait for it."""
    own: tuple[Expr, ...] = tuple(Var(name=c) for c in closing.coordinates)
    if len(closing.buffer(OUTPUT).shape) - len(closing.buffer(LAST).shape) != len(own):
        own = (RANK,)
    done = SemaphoreRef(semaphore=_LOADED_INPUT)
    source = Region(buffer=INPUT, index=own)
    return (
        Copy(source=source, target=shard, done=done, note="take this rank's shard of the operand"),
        WaitDma(semaphore=done, region=shard, note="wait for the first layer's operand"),
    )


def _stored(body: Sequence[Instruction], shard: str, result: str, layers: Expr) -> tuple[Instruction, ...]:
    """What is stored in `shard` goes to `result` in the last layer, from the sum itself: it is rounded once."""
    following = Binary(op="+", left=LAYER, right=Int(value=1))
    more, last = (Compare(first=following, rest=((op, layers),)) for op in ("<", ">="))
    found: list[Instruction] = []
    for i in body:
        match i:
            case Loop() | When():
                found.append(replace(i, body=_stored(i.body, shard, result, layers)))
            case Add() | Multiply() | Round() if i.target.buffer == shard:
                if shard in _sources(i):
                    raise InternalError(f"a link adds to what it has stored in {shard}")
                there = replace(i, target=replace(i.target, buffer=result))
                found += [When(conditions=(more,), body=(i,)), When(conditions=(last,), body=(there,))]
            case _:
                found.append(i)
    return tuple(found)


def _sources(i: Add | Multiply | Round) -> set[str]:
    """The buffers that it reads."""
    match i:
        case Add():
            return {i.left.buffer, i.right.buffer}
        case Multiply():
            return {i.source.buffer, i.weight.buffer, *(() if i.plus is None else (i.plus.buffer,))}
        case Round():
            return {i.source.buffer}


def decisions(links: Sequence[Link], lowered: Sequence[Lowered], *, whole: bool) -> tuple[Decision, ...]:
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
    if whole:
        reason = "what a layer ends with is gathered while the next one multiplies; behind the last, by itself"
        choice = f"gathered once, behind the last layer, by the transfers of `{links[0].path}`"
        found.append(Decision(subject="result", choice=choice, reason=reason))
    return tuple(found)


def _named(program: Program, number: int, links: int) -> Program:
    """A link's Program, its buffers and semaphores named as in the chain."""
    known = {INPUT: activation(number - 1, links), OUTPUT: activation(number, links), _WEIGHT: fetched(number)}
    return _renamed(program, number, known)


def _closing(program: Program, number: int) -> Program:
    """The closing gather, likewise."""
    return _renamed(program, number, {INPUT: LAST, OUTPUT: OUTPUT})


def _renamed(program: Program, number: int, known: dict[str, str]) -> Program:
    buffers = {b.name: known.get(b.name, f"{b.name}_{number}") for b in program.buffers}
    semaphores = {s.name: s.name if s.name == BARRIER else f"{s.name}_{number}" for s in program.semaphores}
    return replace(
        program,
        buffers=tuple(replace(b, name=buffers[b.name]) for b in program.buffers),
        semaphores=tuple(replace(s, name=semaphores[s.name]) for s in program.semaphores),
        body=tuple(renamed(i, buffers, semaphores) for i in program.body),
    )


def _buffers(
    links: Sequence[Lowered], programs: Sequence[Program], gather: Program | None, layers: int
) -> Iterator[Buffer]:
    count = len(links)
    result = links[-1].program.buffer(OUTPUT) if gather is None else gather.buffer(OUTPUT)
    yield links[0].program.buffer(INPUT) if gather is None else Buffer(name=INPUT, space="input", shape=result.shape)
    for number, link in enumerate(links, 1):
        yield Buffer(name=weight(number), space="input", shape=(layers, *link.program.buffer(_WEIGHT).shape))
    yield result
    for number, program in enumerate(programs, 1):
        yield replace(program.buffer(activation(number - 1, count)), space="scratch")
    if gather is not None:
        yield replace(gather.buffer(LAST), space="scratch")
    for number, program in enumerate(programs, 1):
        yield replace(program.buffer(fetched(number)), space="scratch")
    for program in [*programs, *([] if gather is None else [gather])]:
        yield from (b for b in program.buffers if b.space == "scratch")


def _semaphores(programs: Sequence[Program], gather: Program | None) -> Iterator[Semaphore]:
    if gather is not None:
        yield Semaphore(name=_LOADED_INPUT, kind="dma")
    for number in range(1, len(programs) + 1):
        yield Semaphore(name=loaded(number).semaphore, kind="dma")
    used = [s for program in [*programs, *([] if gather is None else [gather])] for s in program.semaphores]
    yield from (s for s in used if s.kind != "barrier")
    yield from [s for s in used if s.kind == "barrier"][:1]


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
