"""All mutants of all shipped Programs and their transposes: how many of each kind, and what rejects them.

    python benchmarks/program_mutants.py [--most 20] [SCHEDULE…]

Of tori, meshes and log steps, whose Programs have thousands, so many of each kind. Exits with 1 where one survives, or
where one that ought to be harmless is rejected.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))
from program_mutants import (
    CHAINS,
    PRODUCTS,
    ROLLED,
    SCHEDULES,
    SIZES,
    Mutant,
    Subject,
    harmless_mutants,
    mutants,
    subjects,
    verdict,
)
from rank_mutants import FEW, OTHERS, harmless_pairs, sample

OTHER_SIZES = (4, 6)  # 8 where there are three dimensions


def cases(name: str, most: int) -> Iterator[tuple[Subject, list[Mutant], list[Mutant]]]:
    """Each Program, its mutants, and those that are harmless."""
    if name not in OTHERS:
        for size in (*SIZES, *([ROLLED[name]] if name in ROLLED else [])):
            for subject in subjects(name, size):
                yield subject, list(mutants(subject)), list(harmless_mutants(subject.program))
        return
    sizes: list[tuple[int, int | None]] = [(8, None)] if name.endswith("_3d") else [(s, None) for s in OTHER_SIZES]
    for size, semaphores in [*sizes, *((size, few) for other, size, few in FEW if other == name)]:
        for subject in subjects(name, size, semaphores=semaphores):
            harmless = itertools.chain(
                itertools.islice(harmless_mutants(subject.program), most),
                itertools.islice(harmless_pairs(subject), most),
            )
            yield subject, sample(subject, most), list(harmless)


def main(names: tuple[str, ...], most: int) -> int:
    began, seen, wrong, harmless = time.perf_counter(), Counter[tuple[str, str]](), 0, 0
    for name in names:
        for subject, made, spared in cases(name, most):
            for mutant in made:
                found = verdict(mutant, subject)
                seen[mutant.kind, found or "nothing"] += 1
                if found is None:
                    wrong += 1
                    print(f"survives: {subject.label}: {mutant.kind}: {mutant.what}", flush=True)
            for mutant in spared:
                harmless += 1
                found = verdict(mutant, subject)
                if found is not None:
                    wrong += 1
                    print(f"harmless, and rejected for {found}: {subject.label}: {mutant.what}", flush=True)
        print(f"{name}: {seen.total()} mutants so far, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    width = max(len(kind) for kind, _ in seen)
    for kind in sorted({kind for kind, _ in seen}):
        reasons = {reason: number for (of, reason), number in sorted(seen.items()) if of == kind}
        text = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        print(f"{kind:<{width}}  {sum(reasons.values()):>6}  {text}")
    print(f"{'all':<{width}}  {seen.total():>6}  in {time.perf_counter() - began:.0f} s")
    print(f"{harmless} harmless ones, accepted as they must be" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCHEDULE")
    parser.add_argument("--most", type=int, default=20)
    options = parser.parse_args()
    sys.exit(main(tuple(options.names) or (*SCHEDULES, *PRODUCTS, *CHAINS, *OTHERS), options.most))
