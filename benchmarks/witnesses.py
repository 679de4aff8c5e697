"""Finds a run for every finding on many random small programs, and replays it; tampers with it; runs what is right.

    python benchmarks/witnesses.py [COUNT [SEED]]

Exits with 1 where a run does not show its finding, a replay claims what is not there, or a right program shows a fault.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from ringsched.program.trace import Execution
from ringsched.verify.hazards import HazardReport, check_hazards
from ringsched.verify.replay import ImpossibleError, replay
from ringsched.verify.retelling import describe
from ringsched.verify.witness import Finding, shown, witness

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))
from random_interleavings import is_true, random_interleaving, tampered
from random_programs import random_execution

RUNS = 3  # random ones of each right program, and tampered ones of each witness


def faults_of_right(execution: Execution, calls: int, seen: Counter[str]) -> list[str]:
    """What random runs of a right program show."""
    wrong = []
    for run in range(RUNS):
        found = replay(execution, random_interleaving(random.Random(run), execution, calls), calls)
        seen["random runs of right programs"] += 1
        if found.faults:
            wrong.append(f"random run {run} shows {found.faults[0]}")
    return wrong


def faults_of_findings(execution: Execution, calls: int, report: HazardReport, seen: Counter[str]) -> list[str]:
    """Findings that their run does not show, and claims of replays that do not hold."""
    wrong = []
    findings: list[Finding] = [
        *report.races,
        *report.leftovers,
        *([] if report.deadlock is None else [report.deadlock]),
    ]
    for finding in findings:
        run = witness(execution, finding, calls)
        found = replay(execution, run, calls)
        fault = shown(execution, finding, found)
        seen["events"] += len(run)
        seen[f"{type(finding).__name__} shown as {type(fault).__name__}"] += 1
        if fault is None or not describe(execution, run, calls):
            wrong.append(f"not shown: {finding}")
        if not all(is_true(execution, run, calls, claimed) for claimed in found.faults):
            wrong.append(f"a false claim in the run of {finding}")
        for change in range(RUNS if run else 0):
            other = tampered(random.Random(change), run)
            try:
                claims = replay(execution, other, calls).faults
            except ImpossibleError:
                seen["tampered runs refused"] += 1
                continue
            seen["tampered runs replayed"] += 1
            if not all(is_true(execution, other, calls, claimed) for claimed in claims):
                wrong.append(f"a false claim in change {change} of the run of {finding}")
    return wrong


def main(count: int, seed: int) -> int:
    began, seen, faults = time.perf_counter(), Counter[str](), 0
    for number in range(seed, seed + count):
        execution, calls = random_execution(random.Random(number))
        report = check_hazards(execution, calls)
        check = faults_of_right(execution, calls, seen) if report.ok else ()
        wrong = [*check, *faults_of_findings(execution, calls, report, seen)]
        faults += len(wrong)
        for what in wrong:
            print(f"seed {number}, {calls} calls: {what}")
    print(f"{count} programs from seed {seed}, {time.perf_counter() - began:.0f} s")
    for what, number in seen.items():
        print(f"  {what}: {number}")
    print(f"  faults: {faults}")
    return 1 if faults else 0


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(arguments + [10_000, 0][len(arguments) :])))
