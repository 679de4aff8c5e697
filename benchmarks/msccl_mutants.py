"""Every MSCCL algorithm of a folder with one thing altered: is the verdict what execution shows?

    python benchmarks/msccl_mutants.py FOLDER [--every K] [--seeds S]

Judged right: no order of turns that is tried, at the protocol's depth, at the least depth and at none, may go wrong.
Judged wrong: some order ought to show it; those of which none does are counted by what was found, and listed with -v.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))

from msccl_agreement import judged, shown
from msccl_mutants import is_spelt_out, mutants


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only one in so many mutants")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("-v", action="store_true", dest="verbose")
    arguments = parser.parse_args()
    contradictions = 0
    total: Counter[str] = Counter()
    for path in sorted(arguments.folder.glob("*.xml")):
        start, counts = time.perf_counter(), Counter[str]()
        original = path.read_text(encoding="utf-8")
        if not is_spelt_out(original):
            print(f"{path.name}: left out, the executor reads no short forms")
            continue
        for number, (what, text) in enumerate(mutants(original)):
            if number % arguments.every:
                continue
            judgement = judged(text)
            if judgement is not None and judgement.verdict == "undecided":
                counts["undecided"] += 1
                continue
            found = shown(text, judgement, arguments.seeds)
            if judgement is not None and judgement.verdict == "right":
                counts["right"] += 1
                if found is not None:
                    contradictions += 1
                    print(f"CONTRADICTION {path.name}: {what}: judged right, and there is an order: {found}")
            elif found is not None:
                counts["wrong, shown"] += 1
            else:
                code = judgement.findings[0].code if judgement is not None else "unreadable"
                counts[f"wrong ({code}), not shown"] += 1
                if arguments.verbose:
                    print(f"not shown: {path.name}: {what}: {code}")
        total += counts
        figures = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        print(f"{path.name}: {figures} in {time.perf_counter() - start:.0f} s", flush=True)
    print("all:", ", ".join(f"{count} {word}" for word, count in sorted(total.items())))
    return 1 if contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
