"""What is right and may still not be taken, or not be meant: advice.

RS911 limits of the runtime; RS912 slots that the two ends name differently; RS914 input that is overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ringsched.diagnostics import Diagnostic, Label, Span
from ringsched.importers.algorithm import Algorithm, Block, Gpu
from ringsched.importers.layout import Layout
from ringsched.importers.network import Network

_Exceed = Callable[[str, str, Span, str], None]

# Of the runtime's published sources. Older versions take more steps (256) and know no LL128.
MAX_STEPS = 64
MAX_COUNT = 71
MAX_CHANNELS = 32
MAX_BLOCKS_PER_CHANNEL = 32


def runtime_limits(algorithm: Algorithm) -> tuple[Diagnostic, ...]:
    """RS911, each kind of excess once."""
    found: dict[str, Diagnostic] = {}

    def exceed(key: str, message: str, span: Span, text: str) -> None:
        finding = Diagnostic(code="RS911", message=message, primary=Label(span=span, text=text))
        found.setdefault(key, finding)

    for gpu in algorithm.gpus:
        _blocks(gpu, exceed)
        for block in gpu.blocks:
            if len(block.steps) > MAX_STEPS:
                exceed(
                    "steps",
                    f"the runtime takes at most {MAX_STEPS} steps in a block",
                    block.span,
                    f"{len(block.steps)}",
                )
            connected = block.send is not None or block.receive is not None
            if connected and not 0 <= block.channel < MAX_CHANNELS:
                exceed("channel", f"the runtime has channels 0 … {MAX_CHANNELS - 1}", block.span, f"{block.channel}")
            _steps(block, exceed)
    return tuple(found.values())


def _blocks(gpu: Gpu, exceed: _Exceed) -> None:
    ids = [block.id for block in gpu.blocks]
    if ids != list(range(len(ids))):
        span = next(block.span for place, block in enumerate(gpu.blocks) if block.id != place)
        exceed("ids", "the runtime wants blocks numbered 0, 1, 2 … without a gap", span, "a gap before this one")
    for ends in ([b for b in gpu.blocks if b.send is not None], [b for b in gpu.blocks if b.receive is not None]):
        channel, number = next(iter(Counter(b.channel for b in ends).most_common(1)), (0, 0))
        if number > MAX_BLOCKS_PER_CHANNEL:
            message = f"the runtime takes at most {MAX_BLOCKS_PER_CHANNEL} peers on a channel of a rank"
            exceed("peers", message, gpu.span, f"{number} on channel {channel}")


def _steps(block: Block, exceed: _Exceed) -> None:
    numbers = [step.number for step in block.steps]
    if numbers != list(range(len(numbers))):
        span = next(step.span for place, step in enumerate(block.steps) if step.number != place)
        exceed("numbers", "the runtime counts steps from 0, whatever their numbers are", span, "not the next number")
    waiting = False
    for step in block.steps:
        if step.count > MAX_COUNT:
            exceed("count", f"the runtime takes at most {MAX_COUNT} chunks in a step", step.span, f"{step.count}")
        if step.type == "nop":
            waiting = waiting or bool(step.needs)
        elif waiting and not step.needs:
            exceed(
                "nop",
                "the runtime wants the step after a waiting `nop` to wait as well",
                step.span,
                "waits for nothing",
            )
            waiting = False
        else:
            waiting = False
    if waiting:
        exceed(
            "last", "the runtime leaves out a `nop` that ends a block", block.steps[-1].span, "nothing comes after it"
        )


def other_slots(network: Network, layout: Layout) -> tuple[Diagnostic, ...]:
    """RS912: a send that names another slot of the receiver than the step that receives. The receiver's counts."""
    found: list[Diagnostic] = []
    for connection, (sender, receiver) in zip(network.connections, network.ends, strict=True):
        sent = [s.step for s in network.blocks[sender].steps if s.step.sends]
        received = [s.step for s in network.blocks[receiver].steps if s.step.receives]
        for a, b in zip(sent, received, strict=True):
            said = layout.cell(connection.receiver, a.target, 0)
            done = layout.cell(connection.receiver, b.target, 0)
            if a.type == "s" and b.written() is not None and said is not None and done is not None and said != done:
                found.append(
                    Diagnostic(
                        code="RS912",
                        message=f"sent for {a.target} of rank {connection.receiver}, and put into {b.target}",
                        primary=Label(span=b.span, text=f"receives into {b.target}"),
                        secondary=(Label(span=a.span, text=f"says {a.target}"),),
                        notes=("the receiving step decides",),
                    )
                )
    if len(found) > 1:
        found[:] = [replace(found[0], notes=(*found[0].notes, f"and {len(found) - 1} more messages"))]
    return tuple(found)


def overwritten_input(algorithm: Algorithm) -> tuple[Diagnostic, ...]:
    """RS914: out of place, the input is the caller's."""
    if algorithm.in_place or algorithm.kind is None:
        return ()
    for gpu in algorithm.gpus:
        for block in gpu.blocks:
            for step in block.steps:
                target = step.written()
                if target is not None and target.buffer == "i":
                    return (
                        Diagnostic(
                            code="RS914",
                            message=f"rank {gpu.rank} overwrites its input, though the algorithm is out of place",
                            primary=Label(span=step.span, text=f"writes {target}"),
                            help='sum up in scratch memory, or say inplace="1"',
                        ),
                    )
    return ()
