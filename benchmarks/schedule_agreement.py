"""Random schedules through every stage: python benchmarks/schedule_agreement.py --count 20000 [--seed 0] [--run 40]

Each of `tests/property/random_schedules.py` is judged by the language's definition (`definition.py` beside it) and by
ringsched: data flow, lowering, values, hazards; where that is right, the kernel's text is audited, values included (of
every fifth the gradient, too), and the module of `jax.lax` calls is made. `--audit 4`: every fourth is audited.
`--run`: how many are run by both back ends as well, in interpret mode on virtual devices, and compared with jax.lax.
Prints what disagrees with its file, and how often each part of the language came up; exits with 1 where anything did.
An exception that is no finding is a disagreement. Half a second each, 0.2 without the audit.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))
import jax
from definition import meaning
from random_schedules import File, schedule

from ringsched.auditing.child import answers_to
from ringsched.commands.audited import request_for
from ringsched.diagnostics import DiagnosticError
from ringsched.pipeline import compile_portable, compile_schedule, open_schedule

LIMITS = ("RS6", "RS7")  # what cannot be lowered, or is too large: neither right nor wrong


def judge(path: Path, *, audit: bool = True, gradient: bool = False) -> tuple[str, str]:
    """(right, wrong, limit or crash; codes or the exception) of ringsched for a file. gradient: is audited, too."""
    try:
        loaded = open_schedule(path)
        compiled = compile_schedule(loaded)
        compile(compiled.source, "module", "exec")
        compile(compile_portable(loaded).source, "module", "exec")
        request = request_for(compiled)
        request = replace(request, gradient=request.gradient and gradient)
        answers = answers_to(asdict(request)) if audit else []
    except DiagnosticError as error:
        codes = sorted({each.code for each in error.diagnostics})
        return ("limit" if all(code.startswith(LIMITS) for code in codes) else "wrong"), ", ".join(codes)
    except Exception as error:  # that is what is looked for
        return "crash", repr(error)[:300]
    verdicts = {str(answer["verdict"]) for answer in answers}
    if verdicts - {"right"}:
        return "crash", f"the audit says {', '.join(sorted(verdicts))}: {answers[0]['text']}"[:600]
    return "right", ""


def examine(drawn: File, folder: Path, *, audit: bool = True, gradient: bool = False) -> tuple[str, str]:
    """What came out, and what disagrees ("": nothing)."""
    for name, text in drawn.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "drawn.yaml"
    path.write_text(drawn.text, encoding="utf-8")
    verdict, why = judge(path, audit=audit, gradient=gradient)
    if verdict == "crash":
        return verdict, why
    meant = meaning(path)
    # Wishes and products have rules of their own, which the definition of steps does not know.
    stricter = "lowering:" in drawn.text or "compute:" in drawn.text
    if meant == "" and verdict == "wrong" and not stricter:
        return verdict, f"right by the definition, and ringsched says {why}"
    if meant and verdict in ("right", "limit"):
        return verdict, f"wrong by the definition ({meant}), and ringsched says {verdict}"
    return verdict, ""


def run(path: Path) -> str:
    """ "" where both back ends agree with jax.lax."""
    for backend in ("pallas", "xla"):
        command = [sys.executable, "-m", "ringsched", "run", str(path), "--backend", backend, "--timeout", "240"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return f"{backend}: exit code {done.returncode}\n{done.stdout[-800:]}{done.stderr[-800:]}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audit", type=int, default=1)
    parser.add_argument("--run", type=int, default=0)
    given = parser.parse_args(arguments)
    verdicts, features, failures = collections.Counter[str](), collections.Counter[str](), 0
    start, ran = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(given.seed, given.seed + given.count):
            drawn = schedule(seed)
            verdict, trouble = examine(drawn, folder, audit=seed % given.audit == 0, gradient=seed % 5 == 0)
            if not trouble and verdict == "right" and ran < given.run:
                ran += 1
                trouble = run(folder / "drawn.yaml")
            verdicts[verdict] += 1
            features.update(drawn.features)
            if trouble:
                failures += 1
                print(f"--- seed {seed}: {trouble}\n{drawn.text}", flush=True)
            if (seed + 1 - given.seed) % 200 == 0:
                jax.clear_caches()  # else each is slower than the one before
                print(f"{seed + 1 - given.seed} in {time.perf_counter() - start:.0f} s: {dict(verdicts)}", flush=True)
    print(f"{given.count} schedules, {failures} disagreements, {ran} run by both back ends")
    print(", ".join(f"{name} {count}" for name, count in verdicts.most_common()))
    print(", ".join(f"{name} {count}" for name, count in features.most_common()))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
