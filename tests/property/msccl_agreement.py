"""What the judge says of an algorithm, and what executing it shows."""

from __future__ import annotations

from msccl_execution import Algorithm, Fault, attempts, depths

from ringsched.diagnostics import DiagnosticError
from ringsched.importers.elements import parse
from ringsched.importers.judge import Judgement, judge
from ringsched.importers.reader import algorithm_of


def judged(text: str) -> Judgement | None:
    """None: it cannot be read."""
    try:
        return judge(algorithm_of(parse(text.encode(), "mutant.xml")))
    except DiagnosticError:
        return None


def root_of(judgement: Judgement | None) -> int:
    return judgement.layout.root if judgement is not None and judgement.layout is not None else 0


def shown(text: str, judgement: Judgement | None, seeds: int) -> str | None:
    """What goes wrong in some order of turns; None where nothing does in those that are tried.

    At the protocol's depth, at the least that is said to be enough, and at none; with signals, and without.
    """
    try:
        algorithm = Algorithm(text, root=root_of(judgement))
    except Fault as fault:
        return str(fault)
    least = judgement.least_depth if judgement is not None and judgement.verdict == "right" else None
    needed: dict[tuple[int, bool], int] = {}  # messages in flight in the same order of turns with more room
    for depth in depths(algorithm, least):
        for number, (choose, hold) in enumerate(attempts(algorithm, seeds)):
            for flags in (False, True) if hold is None else (False,):
                if depth is not None and needed[number, flags] < depth:
                    continue  # all would go the same way again
                found, needed[number, flags] = algorithm.traced(choose, depth, flags, hold)
                if found is not None:
                    return found
    return None
