"""Compares `ringsched.audit` with JAX's own dynamic detector on the kernels of tests/corpus.

    python benchmarks/audit_corpus.py [--only PATTERN] [--cache FILE [--no-run]] [--json FILE] [--jobs 1] [--deadline S]

The dynamic detector is TPU interpret mode with race detection, in each DMA mode, two calls in a row. It has noticed a
kernel where a race or a semaphore left over is printed, or the kernel hangs or raises, or its values are not those
expected (NaN, where nobody says which), or differ from call to call or from mode to mode. What interpret mode does not
implement, or does not finish in time, counts as not noticed, and is listed. In this mode all devices wait for each
other at the end of a kernel, so no call of it meets the next one.

Prints how many of the wrong kernels each detector finds, and of the right ones it calls wrong; by kind of fault; and
where it disagrees with the label. Seconds for a kernel, half an hour for all. With --cache the dynamic side is kept
in a file, and is run again only for kernels that have changed. Exits with 1 where the audit contradicts a label.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "audit"))
from dynamic import DEADLINE, MODES, ModeOutcome, Subject, found, run_many

MODULE = "audit_corpus"
UNIMPLEMENTED = "NotImplementedError"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case: its label, what the audit says, and what was noticed when it ran."""

    name: str
    verdict: str
    codes: tuple[str, ...]
    audited: str
    audit_codes: tuple[str, ...]
    outcomes: tuple[ModeOutcome, ...]

    @property
    def noticed(self) -> tuple[str, ...]:
        return () if self.open else found(self.outcomes)

    @property
    def open(self) -> str | None:
        """Why interpret mode says nothing about this kernel."""
        errors = [outcome.error or "" for outcome in self.outcomes]
        late = ["not over in time"] if any(outcome.late for outcome in self.outcomes) else []
        return next((why for why in (*errors, *late) if why.startswith((UNIMPLEMENTED, "not over"))), None)

    def named(self, code: str) -> bool:
        """Whether the audit gives this code; of "RS401/RS406", one of them."""
        return not set(code.split("/")).isdisjoint(self.audit_codes)

    def noticed_in(self, mode: str) -> bool:
        return not self.open and bool(found([outcome for outcome in self.outcomes if outcome.mode == mode]))


Detects = Callable[[Row], bool]
DETECTORS: dict[str, Detects] = {
    "audit": lambda row: row.audited == "wrong",
    "both modes": lambda row: bool(row.noticed),
    **{f"{mode} only": lambda row, mode=mode: row.noticed_in(mode) for mode in MODES},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names, as in a shell")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="keeps what the dynamic side found")
    parser.add_argument("--no-run", action="store_true", help="only those that the cache has")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, a kernel an entry")
    parser.add_argument("--jobs", type=int, default=1, help="kernels run at a time")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for one DMA mode of one kernel")
    options = parser.parse_args()
    cases = [case for case in corpus() if fnmatch.fnmatch(case.name, options.only)]
    cache = Cache(options.cache, cases)
    if options.no_run:
        cases = [case for case in cases if case.name in cache.outcomes]
    verdicts = audit_all(cases)
    outcomes = run_all(cases, cache, options.jobs, options.deadline)
    rows = [
        Row(
            name=case.name,
            verdict=case.verdict,
            codes=tuple(sorted(case.codes)),
            audited=verdicts[case.name][0],
            audit_codes=verdicts[case.name][1],
            outcomes=outcomes[case.name],
        )
        for case in cases
    ]
    print_totals(rows)
    print_kinds(rows)
    print_disagreements(rows)
    if options.json is not None:
        entries = [{**asdict(row), "noticed": row.noticed} for row in rows]
        options.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.audited != row.verdict for row in rows) else 0


def corpus() -> Sequence[Any]:
    from corpus import CASES

    return CASES


def subject(name: str) -> Subject:
    """For the process in which the kernels run."""
    (case,) = (case for case in corpus() if case.name == name)
    return subject_of(case)


def subject_of(case: Any) -> Subject:
    return Subject(
        function=case.function,
        mesh=case.mesh,
        args=case.args,
        in_specs=case.in_specs,
        out_specs=case.out_specs,
        expect=case.expect,
    )


def audit_all(cases: Sequence[Any]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Verdict and codes by name."""
    import ringsched

    start, verdicts = time.perf_counter(), {}
    for case in cases:
        given = {key: getattr(case, key) for key in ("expect", "chip") if getattr(case, key) is not None}
        report = ringsched.audit(
            case.function,
            mesh_axes=case.mesh,
            args=case.args,
            in_specs=case.in_specs,
            out_specs=case.out_specs,
            **given,
        )
        verdicts[case.name] = report.verdict, tuple(sorted({diagnostic.code for diagnostic in report.diagnostics}))
    progress(f"audited {len(cases)} kernels in {time.perf_counter() - start:.0f} s")
    return verdicts


class Cache:
    """What the dynamic side found, by name, for kernels that are still the same. path None: nothing is kept."""

    def __init__(self, path: Path | None, cases: Sequence[Any]) -> None:
        self._path = path
        self._entries = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}
        self._prints = {case.name: fingerprint(case) for case in cases}
        self.outcomes: dict[str, tuple[ModeOutcome, ...]] = {}
        for name, digest in self._prints.items():
            if self._entries.get(name, {}).get("fingerprint") == digest:
                modes = [{**mode, "digests": tuple(mode["digests"])} for mode in self._entries[name]["outcomes"]]
                self.outcomes[name] = tuple(ModeOutcome(**mode) for mode in modes)

    def keep(self, name: str, outcomes: tuple[ModeOutcome, ...]) -> None:
        self.outcomes[name] = outcomes
        self._entries[name] = {"fingerprint": self._prints[name], "outcomes": [asdict(mode) for mode in outcomes]}
        if self._path is not None:
            self._path.write_text(json.dumps(self._entries, indent=1) + "\n", encoding="utf-8")


def run_all(cases: Sequence[Any], cache: Cache, jobs: int, deadline: float) -> dict[str, tuple[ModeOutcome, ...]]:
    """The dynamic side by name, from the cache where it has it."""
    left = [case.name for case in cases if case.name not in cache.outcomes]
    progress(f"{len(cases) - len(left)} kernels from the cache, {len(left)} to run")
    start, devices = time.perf_counter(), max((math.prod(case.mesh.values()) for case in cases), default=1)
    running = run_many(MODULE, left, devices=devices, jobs=jobs, deadline=deadline)
    for number, (name, outcomes) in enumerate(running, start=1):
        cache.keep(name, outcomes)
        seconds = sum(outcome.seconds for outcome in outcomes)
        told = "; ".join(found(outcomes))[:100] or "nothing"
        progress(f"{number}/{len(left)} after {time.perf_counter() - start:.0f} s: {name} in {seconds:.1f} s: {told}")
    return cache.outcomes


def fingerprint(case: Any) -> str:
    """Changes with the kernel: a digest of its jaxpr, and of how it is called."""
    import jax

    from ringsched.auditing.tracing import shape_of, specs_of

    it = subject_of(case)
    mesh = jax.sharding.AbstractMesh(
        tuple(it.mesh.values()),
        tuple(it.mesh),
        abstract_device=jax.sharding.AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu"),
    )
    texts = [repr((dict(it.mesh), it.args, str(it.in_specs), str(it.out_specs)))]
    for function in (it.function, it.expect):
        if not callable(function):
            texts.append(repr(function))
            continue
        specs = {"in_specs": specs_of(it.in_specs, it.mesh), "out_specs": specs_of(it.out_specs, it.mesh)}
        with jax.sharding.use_abstract_mesh(mesh):
            try:
                sharded = jax.shard_map(function, mesh=mesh, **specs, check_vma=False)
                texts.append(str(jax.make_jaxpr(sharded)(*map(shape_of, it.args))))
            # What cannot be traced is run all the same, and always again where its message changes.
            except Exception as error:
                texts.append(str(error))
    plain = re.sub(r"0x[0-9a-f]+|\S+\.py:\d+(:\d+)?", "", "\n".join(texts))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def print_totals(rows: Sequence[Row]) -> None:
    right, wrong = labelled(rows, "right"), labelled(rows, "wrong")
    undecided = len(labelled(rows, "undecided"))
    print(f"{len(rows)} kernels: {len(right)} right, {len(wrong)} wrong, {undecided} undecided\n")
    print(f"{'detector':<14}{'found wrong':>12}{'recall':>9}{'false alarms':>14}{'precision':>11}")
    for name, detects in DETECTORS.items():
        hits, alarms = sum(map(detects, wrong)), sum(map(detects, right))
        recall, precision = share(hits, len(wrong)), share(hits, hits + alarms)
        print(f"{name:<14}{hits:>12}{recall:>9}{alarms:>14}{precision:>11}")
    open_ones = sum(row.audited == "undecided" for row in (*right, *wrong))
    cannot = sum(bool(row.open) for row in (*right, *wrong))
    print(f"\nthe audit leaves {open_ones} of these undecided; interpret mode cannot run {cannot}")


def print_kinds(rows: Sequence[Row]) -> None:
    """Of the kernels labelled with a code, how many each detector finds wrong, for whatever reason."""
    wrong = labelled(rows, "wrong")
    print(f"\n{'code':<12}{'kernels':>8}" + "".join(f"{name:>14}" for name in DETECTORS) + f"{'audit, code':>14}")
    for code in sorted({code for row in wrong for code in row.codes}):
        those = [row for row in wrong if code in row.codes]
        counts = "".join(f"{sum(map(detects, those)):>14}" for detects in DETECTORS.values())
        named = sum(row.named(code) for row in those)
        print(f"{code:<12}{len(those):>8}{counts}{named:>14}")


def print_disagreements(rows: Sequence[Row]) -> None:
    print("\nthe audit contradicts the label:")
    listed(f"{row.name}: {row.verdict}, audited {row.audited}" for row in rows if row.audited != row.verdict)
    print("\nthe audit does not give the code of the label:")
    listed(
        f"{row.name}: {' '.join(row.codes)}, audit {' '.join(row.audit_codes)}"
        for row in rows
        if row.audited == row.verdict and not all(row.named(code) for code in row.codes)
    )
    print("\nright, and the dynamic detector objects:")
    listed(f"{row.name}: {'; '.join(row.noticed)}"[:300] for row in labelled(rows, "right") if row.noticed)
    print("\nwrong, and the dynamic detector notices nothing:")
    listed(f"{row.name}: {' '.join(row.codes)}" for row in labelled(rows, "wrong") if not row.noticed)
    print("\ninterpret mode cannot run it:")
    listed(f"{row.name}: {row.verdict}; {row.open}"[:200] for row in rows if row.open)
    print("\nundecided, and what the dynamic detector notices:")
    listed(f"{row.name}: {'; '.join(row.noticed) or 'nothing'}"[:200] for row in labelled(rows, "undecided"))


def listed(lines: Any) -> None:
    print("\n".join(f"  {line}" for line in lines) or "  none")


def labelled(rows: Sequence[Row], verdict: str) -> list[Row]:
    return [row for row in rows if row.verdict == verdict]


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
