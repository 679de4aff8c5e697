"""All mutants of all shipped Programs and their transposes: how many of each kind, and what rejects them.

    python benchmarks/program_mutants.py [SCHEDULE…]

Exits with 1 where one survives, or where a merge of semaphores that ought to be harmless is rejected.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))
from program_mutants import CHAINS, PRODUCTS, ROLLED, SCHEDULES, SIZES, harmless_merges, mutants, subjects, verdict


def main(names: tuple[str, ...]) -> int:
    began, seen, wrong, harmless = time.perf_counter(), Counter[tuple[str, str]](), 0, 0
    for name in names:
        for size in (*SIZES, *([ROLLED[name]] if name in ROLLED else [])):
            for subject in subjects(name, size):
                for mutant in mutants(subject):
                    found = verdict(mutant, subject)
                    seen[mutant.kind, found or "nothing"] += 1
                    if found is None:
                        wrong += 1
                        print(f"survives: {subject.label}: {mutant.kind}: {mutant.what}")
                for mutant in harmless_merges(subject.program):
                    harmless += 1
                    found = verdict(mutant, subject)
                    if found is not None:
                        wrong += 1
                        print(f"harmless, and rejected for {found}: {subject.label}: {mutant.what}")
        print(f"{name}: {seen.total()} mutants so far, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    width = max(len(kind) for kind, _ in seen)
    for kind in sorted({kind for kind, _ in seen}):
        reasons = {reason: number for (of, reason), number in sorted(seen.items()) if of == kind}
        text = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        print(f"{kind:<{width}}  {sum(reasons.values()):>6}  {text}")
    print(f"{'all':<{width}}  {seen.total():>6}  in {time.perf_counter() - began:.0f} s")
    print(f"{harmless} harmless merges of semaphores, accepted as they must be" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or SCHEDULES + PRODUCTS + CHAINS))
