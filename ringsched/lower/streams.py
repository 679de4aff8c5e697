"""The weights of a layer: in HBM, and one layer of each in VMEM, on its way while the other links multiply.

The copy of the next layer's starts behind the last product by this one; it is awaited before the products of the link
before are done. Both stand where a link waits or sends anyway: a core drains its matrix units at each such point.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.expr import Binary, Compare, Expr, Int, Var
from ringsched.lower.multiply import multiplies
from ringsched.program.program import (
    Copy,
    Instruction,
    Loop,
    Region,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
)

LAYER, LAYERS = Var(name="layer"), Var(name="layers")


def weight(number: int) -> str:
    """The operand that link `number` (from 1) multiplies by."""
    return f"w{number}"


def fetched(number: int) -> str:
    """One layer of it, in VMEM."""
    return f"weights_{number}"


def _synchronises(i: Instruction) -> bool:
    match i:
        case Send() | Copy() | WaitDma() | Signal() | Wait():
            return True
        case Loop() | When():
            return any(map(_synchronises, i.body))
        case _:
            return False


def _behind_last(body: Sequence[Instruction]) -> int:
    """The place behind the last instruction that synchronises."""
    return max((k + 1 for k, i in enumerate(body) if _synchronises(i)), default=len(body))


def early(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Waits at the very end go to the point of synchronisation before: no one's data depends on when they are done."""
    end = len(body)
    while end and isinstance(body[end - 1], WaitDma):
        end -= 1
    start = end
    while start and not _synchronises(body[start - 1]):
        start -= 1
    return (*body[:start], *body[end:], *body[start:end]) if start else body


def with_weights(bodies: list[tuple[Instruction, ...]], layers: Expr) -> list[list[Instruction]]:
    """The links' code in one layer, with the copies that fetch the next layer's weights and the waits for them."""
    result = [list(body) for body in bodies]
    following = Binary(op="+", left=LAYER, right=Int(value=1))
    more = (Compare(first=following, rest=(("<", layers),)),)
    for number, body in enumerate(bodies, 1):
        start = When(conditions=more, body=(fetch(number, following),))
        used = max((k for k, i in enumerate(body) if multiplies(i)), default=-1)
        behind = [(number - 1, k) for k in range(used + 1, len(body))]
        behind += [(link, k) for link in range(number, len(bodies)) for k in range(len(result[link]))]
        at_end = (len(bodies) - 1, len(result[-1]))
        link, place = next(((link, k) for link, k in behind if _synchronises(result[link][k])), at_end)
        result[link].insert(place, start)
    for number, code in enumerate(result, 1):
        wait = await_weights(number % len(result) + 1)
        guarded = When(conditions=more, body=(wait,)) if number == len(result) else wait
        code.insert(_behind_last(code), guarded)
    return result


def loaded(number: int) -> SemaphoreRef:
    return SemaphoreRef(semaphore=f"loaded_{number}")


def fetch(number: int, layer: Expr) -> Copy:
    source = Region(buffer=weight(number), index=(layer,))
    note = "fetch the first layer's weights" if layer == Int(value=0) else "fetch the next layer's weights"
    return Copy(source=source, target=Region(buffer=fetched(number)), done=loaded(number), note=note)


def await_weights(number: int) -> WaitDma:
    note = "wait for the weights of the next link"
    return WaitDma(semaphore=loaded(number), region=Region(buffer=fetched(number)), note=note)
