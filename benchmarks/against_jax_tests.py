"""JAX's own tests of collectives with these in place of `jax.lax`'s: python benchmarks/against_jax_tests.py FOLDER

FOLDER is a checkout of jax, at the version that is installed; none of its code is kept here. Its tests need absl-py.
Each back end, and `jax.lax` itself, runs them in processes of its own, in jax's default settings, with a deadline for
each test. A test says something where it calls one of the functions; which ones do is found with `jax.lax` in place.
Left out are classes of tests whose text names none of them.

    python benchmarks/against_jax_tests.py ../jax --backend portable -k psum
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = ("shard_map_test", "pmap_test")
NAMES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")
BACK_ENDS = ("jax", "portable", "kernel")
GRACE = 60  # seconds without a word, beyond those of a test: jax starts, or hangs where no alarm reaches it
STARTED = "the process hung or ended"  # unless another line follows


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a test. calls: of the functions, and how many of them a schedule did. why: "" where it passed."""

    calls: int
    schedules: int
    why: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=BACK_ENDS[1:], action="append")
    parser.add_argument("-k", default="", help="only tests whose name has this in it")
    parser.add_argument("--seconds", type=float, default=3000, help="for each file and back end")
    parser.add_argument("--deadline", type=int, default=60, help="seconds for each test")
    given = parser.parse_args(arguments)
    if not all((given.folder / "tests" / f"{name}.py").is_file() for name in FILES):
        parser.error(f"{given.folder} is no checkout of jax: it has no tests/{FILES[0]}.py")
    run = functools.partial(outcomes, given.folder, pattern=given.k, deadline=given.deadline, seconds=given.seconds)
    own = run(back_end="jax")
    saying = {name for name, outcome in own.items() if outcome.calls and outcome.why != "skipped"}
    print(f"{len(own)} tests, of which {len(saying)} call one of the functions", flush=True)
    print(told("jax.lax", {name: own[name] for name in saying}), flush=True)
    for back_end in given.backend or BACK_ENDS[1:]:
        found = run(back_end=back_end, only=saying)
        print(told(back_end, found), flush=True)
        if missing := saying - set(found):
            print(f"  {len(missing):3} not reached within {given.seconds:g} s a file")
        new = sorted(name for name, outcome in found.items() if outcome.why and not own[name].why)
        print(f"  {len(new):3} fail that pass with jax.lax")
    return 0


def told(name: str, found: dict[str, Outcome]) -> str:
    """How many pass and fail, and the reasons, the most common first."""
    lines = [f"{name}: {_counted(found)}"]
    by_schedule = {test: outcome for test, outcome in found.items() if outcome.schedules}
    if by_schedule:
        lines.append(f"  a schedule runs in {_counted(by_schedule)}; in the others all calls go to jax.lax")
    failed = {test: outcome.why for test, outcome in sorted(found.items()) if outcome.why}
    for why, count in Counter(failed.values()).most_common():
        lines.append(f"  {count:3} {why}")
        lines += [f"      {test}" for test in failed if failed[test] == why]
    return "\n".join(lines)


def _counted(found: dict[str, Outcome]) -> str:
    failed = sum(1 for outcome in found.values() if outcome.why)
    return f"{len(found)} tests, {len(found) - failed} pass, {failed} fail"


def outcomes(
    folder: Path,
    *,
    back_end: str,
    pattern: str,
    deadline: int,
    seconds: float,
    only: Collection[str] | None = None,
) -> dict[str, Outcome]:
    """Of each test; only: their names, None: all."""
    found: dict[str, Outcome] = {}
    for file in FILES:
        with tempfile.TemporaryDirectory() as directory:
            results, wanted = Path(directory) / "results", Path(directory) / "wanted"
            results.touch()
            wanted.write_text(json.dumps(None if only is None else sorted(only)), encoding="utf-8")
            end = time.monotonic() + seconds
            command = [sys.executable, __file__, "--child", str(folder), file, back_end, pattern, str(deadline)]
            # A test that hangs or ends the process is one failure: the next process goes on behind it.
            while time.monotonic() < end and not _ran([*command, str(wanted), str(results)], results, deadline, end):
                pass
            read = _read(results)
            if time.monotonic() > end:
                print(f"{back_end}: {file} did not end within {seconds:g} s", file=sys.stderr)
            if read and time.monotonic() > end and [*read.values()][-1].why == STARTED:
                read.popitem()  # the time of all was up, not its own
            found |= read
    return found


def _ran(command: list[str], results: Path, deadline: int, end: float) -> bool:
    """Whether the process came to the end of the tests, or never to the first."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "64"}
    before = results.stat().st_size
    results.touch()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() > end or time.time() - results.stat().st_mtime > deadline + GRACE:
                process.kill()
                process.wait()
        if process.returncode and results.stat().st_size == before:
            log.seek(0)
            print(log.read().decode(errors="replace")[-2000:], file=sys.stderr)
            return True
    return process.returncode == 0


def _read(results: Path) -> dict[str, Outcome]:
    """A test has a line when it starts and one when it ends."""
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {row.pop("name"): Outcome(**row) for row in rows}


class Late(BaseException):
    """The test took too long; not an Exception, which jax may catch."""


def child(folder: str, file: str, back_end: str, pattern: str, limit: str, wanted: str, results: str) -> None:
    """Runs the tests of one file that have no result yet, up to one that is late."""
    import importlib
    import unittest

    sys.argv[1:] = []  # absl reads them
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    calls = Counter[str]()
    _swap(back_end, calls)
    sys.path.insert(0, str(Path(folder) / "tests"))
    module = importlib.import_module(file)
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)

    def late(*_: Any) -> None:
        raise Late(f"no end within {limit} s")

    signal.signal(signal.SIGALRM, late)
    done, only = _read(Path(results)), json.loads(Path(wanted).read_text(encoding="utf-8"))
    with open(results, "a", encoding="utf-8", buffering=1) as out:

        def write(name: str, why: str) -> None:
            schedules = calls["schedules"]
            row = {"name": name, "calls": calls.total() - schedules, "schedules": schedules, "why": why}
            out.write(json.dumps(row) + "\n")

        for test in _tests(suite):
            # Not test.id(), which has addresses in it.
            name = f"{file}.{type(test).__name__}.{test._testMethodName}"
            wants = pattern in name and (only is None or name in only)
            if not wants or name in done or not _names_any(type(test), file):
                continue
            calls.clear()
            write(name, STARTED)
            result = unittest.TestResult()
            signal.alarm(int(limit))
            try:
                test.run(result)
            except Late as error:
                result.errors.append((test, f"Late: {error}"))  # where unittest did not catch it
            finally:
                signal.alarm(0)
            problems = [text for _, text in (*result.failures, *result.errors)]
            why = _reason(problems[0]) if problems else "skipped" if result.skipped else ""
            write(name, why)
            if "Late: " in why:
                os._exit(1)  # what it left behind may be in the way of the others


def _swap(back_end: str, calls: Counter[str]) -> None:
    """Counts calls of jax.lax's functions, and puts others in their place."""
    import jax

    import ringsched.lax
    from ringsched import collective

    originals = {name: getattr(jax.lax, name) for name in NAMES}
    options: dict[str, Any] = {"interpret": True} if back_end == "kernel" else {}
    ours = ringsched.lax.using(**options)
    # What ringsched hands on, and what its modules are made of, has to be the original: not what takes its place.
    known = types.ModuleType("lax")
    known.__dict__.update(vars(jax.lax))
    ringsched.lax.lax = known
    as_module, compiled = collective.as_module, ringsched.lax._compiled

    def made(*arguments: Any) -> types.ModuleType:
        module = as_module(*arguments)
        module.__dict__["lax"] = known
        return module

    def noticed(name: str) -> Any:
        calls["schedules"] += 1
        return compiled(name)

    collective.as_module = made
    ringsched.lax._compiled = noticed

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **more)

        call.__name__ = name
        return call

    for name, original in originals.items():
        function = original if back_end == "jax" else getattr(ours, name)
        setattr(jax.lax, name, counted(name, function))  # jax's own code keeps its own


@functools.cache
def _names_any(tests: type, file: str) -> bool:
    own = [inspect.getsource(base) for base in tests.__mro__ if base.__module__ == file]
    return any(name in text for name in NAMES for text in own)


def _tests(suite: Any) -> Iterator[Any]:
    for test in suite:
        if hasattr(test, "__iter__"):
            yield from _tests(test)
        else:
            yield test


def _reason(text: str) -> str:
    """The first line of the error: what follows the last traceback's frames, which are indented."""
    last = text.rpartition("Traceback (most recent call last):")[2]
    return next((line for line in last.splitlines() if line and not line.startswith(" ")), "?")[:160]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
