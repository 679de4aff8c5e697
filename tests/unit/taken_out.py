"""Programs with a wait or a send taken out, to see that it is missed."""

from dataclasses import replace

from ringsched.program.program import Instruction, Loop, Send, Wait, WaitDma, When


def leaves(body: tuple[Instruction, ...]) -> list[Instruction]:
    """Waits and sends, in the order in which `without` counts them."""
    found: list[Instruction] = []
    for i in body:
        if isinstance(i, Loop | When):
            found += leaves(i.body)
        elif isinstance(i, Wait | WaitDma | Send):
            found.append(i)
    return found


def without(body: tuple[Instruction, ...], number: int) -> tuple[Instruction, ...]:
    """The body less its `number`-th wait or send."""
    return _without(body, number)[0]


def _without(body: tuple[Instruction, ...], number: int) -> tuple[tuple[Instruction, ...], int]:
    kept: list[Instruction] = []
    for i in body:
        if isinstance(i, Loop | When):
            inner, number = _without(i.body, number)
            i = replace(i, body=inner)
        elif isinstance(i, Wait | WaitDma | Send):
            number -= 1
            if number == -1:
                continue
        kept.append(i)
    return tuple(kept), number
