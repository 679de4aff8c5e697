"""JAX's own tests of collectives with these in place of `jax.lax`'s: python benchmarks/against_jax_tests.py FOLDER

FOLDER is a checkout of jax, at the version that is installed; none of its code is kept here. Its tests need absl-py.
Each back end, and `jax.lax` itself, runs them in a process of its own, in jax's default settings, with a deadline for
each test. Only tests that call one of the functions say anything; the others are not counted.

    python benchmarks/against_jax_tests.py ../jax --backend portable -k psum
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILES = ("shard_map_test", "pmap_test")
NAMES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")
BACK_ENDS = ("jax", "portable", "kernel")
SECONDS = 60  # a test


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=BACK_ENDS[1:], action="append")
    parser.add_argument("-k", default="", help="only tests whose name has this in it")
    parser.add_argument("--seconds", type=float, default=3000, help="for each file and back end")
    given = parser.parse_args(arguments)
    if not all((given.folder / "tests" / f"{name}.py").is_file() for name in FILES):
        parser.error(f"{given.folder} is no checkout of jax: it has no tests/{FILES[0]}.py")
    back_ends = ("jax", *(given.backend or BACK_ENDS[1:]))
    found = {back_end: outcomes(given.folder, back_end, given.k, given.seconds) for back_end in back_ends}
    for back_end in back_ends:
        told = {name: why for name, (calls, why) in found[back_end].items() if calls and why != "skipped"}
        failed = {name: why for name, why in told.items() if why}
        own = sum(1 for name in failed if not found["jax"].get(name, (0, ""))[1])
        print(
            f"{back_end}: {len(told)} tests say something, {len(told) - len(failed)} pass, {len(failed)} fail", end=""
        )
        print("" if back_end == "jax" else f", {own} of them pass with jax.lax")
        reasons = Counter(why for name, why in failed.items())
        for why, count in reasons.most_common():
            names = [name for name in failed if failed[name] == why]
            print(f"  {count:3} {why}\n      {', '.join(names[:6])}{', …' if len(names) > 6 else ''}")
    return 0


def outcomes(folder: Path, back_end: str, pattern: str, seconds: float) -> dict[str, tuple[int, str]]:
    """Test → how often it called one of the functions, and why it failed, empty where it passed."""
    found: dict[str, tuple[int, str]] = {}
    for file in FILES:
        with tempfile.TemporaryDirectory() as directory:
            results = Path(directory) / "results"
            results.touch()
            command = [sys.executable, __file__, "--child", str(folder), file, back_end, pattern, str(results)]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "64"}
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            try:
                subprocess.run(command, env=environment, timeout=seconds, check=False, **silent)  # type: ignore[call-overload]
            except subprocess.TimeoutExpired:
                print(f"{back_end}: {file} did not end within {seconds:g} s", file=sys.stderr)
            rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
            found |= {f"{file}.{row['name']}": (row["calls"], row["why"]) for row in rows}
    return found


def child(folder: str, file: str, back_end: str, pattern: str, results: str) -> None:
    """Runs one file and writes a line of JSON for each test."""
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

    class Late(Exception):
        """The test took too long."""

    def late(*_: Any) -> None:
        raise Late(f"no end within {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    with open(results, "a", encoding="utf-8") as out:
        for test in _tests(suite):
            if pattern not in test.id():
                continue
            calls.clear()
            result = unittest.TestResult()
            signal.alarm(SECONDS)
            try:
                test.run(result)
            except Late as error:
                result.errors.append((test, str(error)))
            finally:
                signal.alarm(0)
            problems = [text for _, text in (*result.failures, *result.errors)]
            why = _reason(problems[0]) if problems else "skipped" if result.skipped else ""
            name = test.id().split(".", 1)[-1]
            out.write(json.dumps({"name": name, "calls": calls.total(), "why": why}) + "\n")
            out.flush()


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
    as_module = collective.as_module

    def made(*arguments: Any) -> types.ModuleType:
        module = as_module(*arguments)
        module.__dict__["lax"] = known
        return module

    collective.as_module = made

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **more)

        call.__name__ = name
        return call

    for name, original in originals.items():
        function = original if back_end == "jax" else getattr(ours, name)
        setattr(jax.lax, name, counted(name, function))  # jax's own code keeps its own


def _tests(suite: Any) -> Any:
    for test in suite:
        if hasattr(test, "__iter__"):
            yield from _tests(test)
        else:
            yield test


def _reason(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "-", "Traceback", "For simpl"))]
    errors = [line for line in lines if "Error" in line.split(":")[0] or "Exception" in line.split(":")[0]]
    return (errors or lines or ["?"])[-1][:160]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
