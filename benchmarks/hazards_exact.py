"""Compares the hazard check with an exhaustive search on many random small programs.

    python benchmarks/hazards_exact.py [COUNT [SEED]]

Exits with 1 where they differ; each disagreement is printed with its seed.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from ringsched.program.trace import Execution
from ringsched.verify.exhaustive import Outcome, TooLargeError, explore
from ringsched.verify.hazards import all_races, check_hazards

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))
from random_programs import random_execution

MOST_STATES = 30_000


def disagreements(execution: Execution, calls: int, outcome: Outcome) -> list[str]:
    """What the check says otherwise than the search."""
    report, found = check_hazards(execution, calls), {race[1:] for race in all_races(execution, calls)}
    wrong = []
    if found - outcome.races:
        wrong.append(f"invented {sorted(found - outcome.races)}")
    if outcome.races - found:
        wrong.append(f"missed {sorted(outcome.races - found)}")
    if bool(report.races) != bool(outcome.races):
        wrong.append("linear verdict on races")
    if (report.deadlock is not None) != outcome.deadlock or outcome.deadlock == outcome.finishes:
        wrong.append("deadlock")
    if outcome.finishes and {(left.rank, left.semaphore) for left in report.leftovers} != outcome.leftovers:
        wrong.append("leftovers")
    return wrong


def main(count: int, seed: int) -> int:
    began, seen, states, wrong = time.perf_counter(), Counter[str](), 0, 0
    for number in range(seed, seed + count):
        execution, calls = random_execution(random.Random(number))
        try:
            outcome = explore(execution, calls, MOST_STATES)
        except TooLargeError:
            seen["skipped, too many states"] += 1
            continue
        states += outcome.states
        seen["finish"] += outcome.finishes
        seen["deadlock"] += outcome.deadlock
        seen["race"] += bool(outcome.races)
        seen["finish without a race"] += outcome.finishes and not outcome.races
        seen["leave a semaphore"] += bool(outcome.leftovers)
        if different := disagreements(execution, calls, outcome):
            wrong += 1
            print(f"seed {number}, {calls} calls: {'; '.join(different)}")
    print(f"{count} programs from seed {seed}, {states} states, {time.perf_counter() - began:.0f} s")
    for what, number in seen.items():
        print(f"  {what}: {number}")
    print(f"  disagreements: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(arguments + [50_000, 0][len(arguments) :])))
