"""The verdict on an algorithm, in its own terms.

Right: it ends with as many messages in flight as its protocol allows, nothing races, and every rank holds what the
collective promises. Undecided: it is not known what its collective promises, and nothing else is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.importers.algorithm import COLLECTIVES, Algorithm, Step
from ringsched.importers.layout import Layout, layouts, too_large
from ringsched.importers.limits import other_slots, overwritten_input, runtime_limits
from ringsched.importers.network import Event, Network, join
from ringsched.importers.results import Outcome, broken, lost_operands, outcome, wrong
from ringsched.importers.running import hang, least_depth, run
from ringsched.importers.values import Held

MAX_MOVES = 4_000_000  # chunks of all steps

Verdict = Literal["right", "wrong", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`least_depth`: messages in flight on a connection at which it ends, None: at none, or it cannot be joined up.

    `layout`, `held`: of an algorithm that is right, else they may be None.
    """

    algorithm: Algorithm
    verdict: Verdict
    least_depth: int | None
    findings: tuple[Diagnostic, ...]
    advice: tuple[Diagnostic, ...]
    layout: Layout | None = None
    held: Held | None = None


def judge(algorithm: Algorithm) -> Judgement:
    """Nothing is raised: what is wrong is in `findings`."""
    if not algorithm.collective:
        return _recognized(algorithm)
    return _judge(algorithm)


def _recognized(algorithm: Algorithm) -> Judgement:
    """One that does not say its collective: the first that it is right for, else undecided at best."""
    judgement = _judge(algorithm)
    if judgement.least_depth is None or judgement.least_depth > algorithm.depth:
        return judgement  # whatever it is meant for
    for in_place in _places(algorithm):
        for name, kind in COLLECTIVES.items():
            found = _judge(replace(algorithm, collective=name, kind=kind, in_place=in_place))
            if found.verdict == "right":
                where = "in place" if in_place else "out of place"
                message = f"the file does not say which collective it is: it does what {name} promises, {where}"
                assumed = Diagnostic(code="RS913", message=message, primary=Label(span=algorithm.span))
                return replace(found, advice=(assumed, *found.advice))
    return judgement


def _places(algorithm: Algorithm) -> tuple[bool, ...]:
    """Whether it may be meant in place: surely if it writes no output."""
    if algorithm.in_place is not None:
        return (algorithm.in_place,)
    written = (step.written() for step in _steps(algorithm))
    return (False, True) if any(slot is not None and slot.buffer == "o" for slot in written) else (True,)


def _judge(algorithm: Algorithm) -> Judgement:
    advice = (*algorithm.advice, *runtime_limits(algorithm), *overwritten_input(algorithm))
    network, faults = join(algorithm)
    choices: tuple[Layout, ...] = ()
    try:
        choices = layouts(algorithm)
    except DiagnosticError as error:
        faults = (*error.diagnostics, *faults)
    if not faults and sum(step.count for step in _steps(algorithm)) > MAX_MOVES:
        faults = (too_large(algorithm, f"over {MAX_MOVES:,} chunk moves"),)
    if network is None or not choices or faults:
        verdict = _verdict(faults)
        return Judgement(algorithm=algorithm, verdict=verdict, least_depth=None, findings=faults, advice=advice)
    enough = least_depth(network)
    found: list[Diagnostic] = []
    if enough is None or enough > algorithm.depth:
        found.append(hang(network, None if enough is None else algorithm.depth, enough))
    if enough is None:
        return Judgement(algorithm=algorithm, verdict="wrong", least_depth=None, findings=tuple(found), advice=advice)
    chosen = _best(network, choices, run(network).order)
    found.extend(chosen.findings)
    if chosen.held is not None:
        found.extend(_results(network, chosen.layout, chosen.held))
        advice = (*advice, *other_slots(network, chosen.layout))
    return Judgement(
        algorithm=algorithm,
        verdict=_verdict(found),
        least_depth=enough,
        findings=tuple(found),
        advice=advice,
        layout=chosen.layout,
        held=chosen.held,
    )


def _steps(algorithm: Algorithm) -> Iterator[Step]:
    return (step for gpu in algorithm.gpus for block in gpu.blocks for step in block.steps)


def _verdict(found: Sequence[Diagnostic]) -> Verdict:
    if not found:
        return "right"
    return "undecided" if all(f.code.startswith("RS7") for f in found) else "wrong"


def _best(network: Network, choices: tuple[Layout, ...], order: tuple[Event, ...]) -> Outcome:
    """Of the roots that it may be meant for, the one with the least to say against it."""
    outcomes: list[Outcome] = []
    for layout in choices:
        if outcomes and layout.algorithm.kind in ("broadcast", "reduce"):  # the root changes nothing but the promise
            known = outcomes[0]
            outcomes.append(Outcome(layout=layout, findings=known.findings, held=known.held))
        else:
            outcomes.append(outcome(network, layout, order))

    def faults(one: Outcome) -> tuple[int, int]:
        return len(one.findings), len(broken(one.layout, one.held)) if one.held is not None else 0

    return min(outcomes, key=faults) if len(outcomes) > 1 else outcomes[0]


def _results(network: Network, layout: Layout, held: Held) -> tuple[Diagnostic, ...]:
    if layout.algorithm.kind is None:
        return lost_operands(network, layout, held) or (_unknown(layout.algorithm),)
    promises = broken(layout, held)
    return (wrong(network, layout, held, promises),) if promises else ()


def _unknown(algorithm: Algorithm) -> Diagnostic:
    what = f"what {algorithm.collective!r} promises" if algorithm.collective else "which collective it is"
    return Diagnostic(
        code="RS704",
        message=f"it is not known {what}",
        primary=Label(span=algorithm.span, text="so what it computes was not compared with anything"),
        notes=("it ends, nothing races, and no message is left over",),
        help="known are allgather, reduce_scatter, allreduce, alltoall, broadcast, reduce, gather and scatter",
    )
