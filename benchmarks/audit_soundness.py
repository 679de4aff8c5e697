"""Audits random programs, and runs those that are found right in TPU interpret mode, where nothing may turn up.

    python benchmarks/audit_soundness.py [--count 600] [--seed 0] [--jobs 1] [--dynamic-sample K]

Both DMA modes, two calls in a row, race detection on. A race, a semaphore left over, a hang, an exception, or a value
other than the program's own in lockstep is a soundness failure; each is printed with its seed. With --dynamic-sample,
K of the programs that are found wrong are run as well, to see how many of them the dynamic detector notices.

A second or so for each DMA mode of each program. Exits with 1 where there is a soundness failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "audit"))
from dynamic import DEADLINE, run_many, unsound
from dynamic import found as noticed_in
from random_kernels import Program, audited, random_program

from ringsched.program.trace import Dma

MODULE, DEVICES, EVERY = "random_kernels", 4, 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1, help="kernels run at a time")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for one DMA mode of one kernel")
    parser.add_argument("--dynamic-sample", type=int, default=0, metavar="K", help="wrong ones to run, too")
    options = parser.parse_args()
    verdicts, codes, programs, seconds = audit_all(range(options.seed, options.seed + options.count))
    print_mix(verdicts, codes, programs, seconds)
    running = {"devices": DEVICES, "jobs": options.jobs, "deadline": options.deadline}
    failures = run_right(verdicts, running)
    if options.dynamic_sample:
        sample_wrong(verdicts, codes, options.dynamic_sample, running)
    return 1 if failures else 0


def audit_all(
    seeds: range,
) -> tuple[dict[str, str], dict[str, frozenset[str]], dict[str, Program], float]:
    """Verdict, codes and program of each seed, and the seconds that the audits took."""
    verdicts, codes, programs, seconds = {}, {}, {}, 0.0
    for seed in seeds:
        name = str(seed)
        programs[name] = random_program(seed)
        start = time.perf_counter()
        verdicts[name], codes[name] = audited(programs[name])
        seconds += time.perf_counter() - start
        if len(verdicts) % EVERY == 0:
            progress(f"audited {len(verdicts)} of {len(seeds)}")
    return verdicts, codes, programs, seconds


def print_mix(
    verdicts: dict[str, str], codes: dict[str, frozenset[str]], programs: dict[str, Program], seconds: float
) -> None:
    print(f"{len(verdicts)} programs from seed {next(iter(verdicts))}, audited in {seconds:.0f} s")
    for verdict, number in Counter(verdicts.values()).most_common():
        print(f"  {verdict}: {number} ({number / len(verdicts):.0%})")
    right = [programs[name] for name, verdict in verdicts.items() if verdict == "right"]
    mistaken = sum(program.execution != program.intended for program in right)
    print(f"  right ones on {tally(program.ranks for program in right)} devices, with {tally(map(dmas, right))} DMAs,")
    print(f"    {mistaken} of them a right one with a mistake that does no harm")
    wrong = [name for name, verdict in verdicts.items() if verdict == "wrong"]
    print(f"  wrong ones by code: {tally(code for name in wrong for code in faults(codes[name]))}")


def run_right(verdicts: dict[str, str], running: dict[str, object]) -> int:
    """How many of the programs that the audit calls right turn out wrong."""
    start, failures, done = time.perf_counter(), 0, 0
    for seed, _, noticed in unsound(MODULE, verdicts, **running):
        done += 1
        if noticed:
            failures += 1
            print(f"SOUNDNESS FAILURE, seed {seed}: {'; '.join(noticed)}", flush=True)
        if done % EVERY == 0:
            progress(f"ran {done} right ones, {failures} failures")
    print(f"  run in both DMA modes, two calls each: {done} right ones in {time.perf_counter() - start:.0f} s")
    print(f"  soundness failures: {failures}")
    return failures


def sample_wrong(
    verdicts: dict[str, str], codes: dict[str, frozenset[str]], size: int, running: dict[str, object]
) -> None:
    """How many of the first so many wrong ones the dynamic detector notices, by the audit's codes."""
    sample = [seed for seed, verdict in verdicts.items() if verdict == "wrong"][:size]
    start, noticed = time.perf_counter(), {}
    for seed, outcomes in run_many(MODULE, sample, **running):
        noticed[seed] = bool(noticed_in(outcomes))
        if len(noticed) % EVERY == 0:
            progress(f"ran {len(noticed)} wrong ones")
    print(f"  run {len(sample)} wrong ones in {time.perf_counter() - start:.0f} s", end="; ")
    print(f"the dynamic detector notices {sum(noticed.values())}")
    for code, number in sorted(Counter(code for seed in sample for code in faults(codes[seed])).items()):
        print(f"    {code}: {sum(noticed[seed] for seed in sample if code in codes[seed])} of {number}")
    print(f"    not noticed: seeds {' '.join(seed for seed in sample if not noticed[seed]) or 'none'}")


def dmas(program: Program) -> int:
    return sum(isinstance(op, Dma) for trace in program.execution.traces for op in trace)


def faults(codes: frozenset[str]) -> list[str]:
    """Without advice."""
    return [code for code in codes if not code.startswith("RS9")]


def tally(things: object) -> str:
    """ "2: 30, 3: 12": how often each."""
    return ", ".join(f"{thing}: {number}" for thing, number in sorted(Counter(things).items()))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
