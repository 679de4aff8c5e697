"""`--backend xla` on the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ringsched.operand import smallest_operand
from ringsched.pipeline import compile_portable, open_schedule
from ringsched.run.runner import run_kernel


def ringsched(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}  # the user's, of no use here
    command = [sys.executable, "-m", "ringsched", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_compile(tmp_path):
    result = ringsched("compile", "all_gather", "--set", "N=5", "--backend", "xla", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    sentence = r"all_gather → all_gather\.py: right for N = 5 \(checked at these sizes; data flow\) in \S+ s\n"
    assert re.fullmatch(sentence, result.stdout)
    text = (tmp_path / "all_gather.py").read_text(encoding="utf-8")
    assert text == compile_portable(open_schedule("all_gather", {"N": 5})).source
    again = ringsched("compile", "all_gather", "--backend", "xla", "--emit", "kernel", "--set", "N=5", cwd=tmp_path)
    assert (again.stdout, again.returncode) == (text, 0)
    as_json = ringsched("compile", "all_gather", "--backend", "xla", "--json", cwd=tmp_path)
    entry = json.loads(as_json.stdout)
    assert (entry["verdict"], entry["backend"], entry["output"]) == ("right", "xla", "all_gather.py")


def test_compile_a_wrong_one(tmp_path):
    text = Path(open_schedule("all_gather").path).read_text(encoding="utf-8").replace("(r - s)", "(r - s - 1)")
    (tmp_path / "wrong.yaml").write_text(text, encoding="utf-8")
    result = ringsched("compile", "wrong.yaml", "--backend", "xla", cwd=tmp_path)
    assert result.returncode == 1 and "error[RS301]" in result.stderr
    assert not (tmp_path / "all_gather.py").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "v5p:2x2x1"], "Error: --target is about the TPU kernel; the module of --backend xla has none."),
        (["--debug"], "Error: --debug is about the TPU kernel; the module of --backend xla has none."),
        (
            ["--emit", "program"],
            "Error: --emit program: --backend xla makes no Program. Take --emit schedule or kernel.",
        ),
        (["--backend", "cuda"], "Error: Invalid value for '--backend': 'cuda' is not one of 'pallas', 'xla'."),
    ],
)
def test_misuse(options, message, tmp_path):
    result = ringsched("compile", "all_gather", "--backend", "xla", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == message
    assert not list(tmp_path.iterdir())


def test_products(tmp_path):
    for name, with_ in (("matmul_reduce_scatter", "the product"), ("tp_mlp", "the layers")):
        result = ringsched("run", name, "--backend", "xla", "--set", "N=2", "--dtype", "bf16", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        said = result.stdout.splitlines()[-1]
        assert said.startswith(f"{name}: the module agrees with {with_} in float64 on 2 virtual devices, x=")


def test_run():
    result = ringsched("run", "reduce_scatter", "--backend", "xla", "--set", "N=3", "--shape", "x=6x5:bf16")
    assert (result.returncode, result.stderr) == (0, "")
    first, second, third = result.stdout.splitlines()
    assert first.startswith("reduce_scatter: right for N = 3 (checked at these sizes; data flow) in ")
    assert re.fullmatch(r"  xla      4 calls, max error \S+ \(rounding explains \S+\)  \S+ s", second)
    assert third == (
        "reduce_scatter: the module agrees with jax.lax.psum_scatter on 3 virtual devices, x=6x5:bf16 on each"
    )


def test_run_what_all_ranks_have_alike():
    """Its type says so, in jax's default settings."""
    result = ringsched("run", "all_reduce", "--backend", "xla", "--set", "N=3")
    assert (result.returncode, result.stderr) == (0, "")
    assert "all_reduce: the module agrees with jax.lax.psum on 3 virtual devices" in result.stdout


def test_run_as_json():
    entry = json.loads(ringsched("run", "shift", "--backend", "xla", "--json").stdout)
    found = {key: entry[key] for key in ("verdict", "ok", "max_error", "races", "leftover_semaphores", "dma_modes")}
    assert found == {
        "verdict": "right",
        "ok": True,
        "max_error": 0.0,
        "races": None,
        "leftover_semaphores": None,
        "dma_modes": [],
    }
    assert (entry["calls"], entry["backend"]) == (4, "xla")


def test_a_wrong_module_is_found():
    portable = compile_portable(open_schedule("reduce_scatter", {"N": 3}))
    damaged = portable.source.replace("lambda r: r + 1", "lambda r: r - 1")
    assert damaged != portable.source
    promise = portable.flat.promise
    operand = smallest_operand(promise)
    report = run_kernel(
        damaged, function="reduce_scatter", promise=promise, operands=(operand,), modes=("xla",), timeout=60
    )
    (finding,) = report.diagnostics
    assert finding.code == "RS608"
    assert re.match(r"rank 0 has \S+ at \[0, 0\], and jax.lax.psum_scatter gives \S+ \(call 1\)", finding.message)
    assert report.to_json()["ok"] is False
