"""What each command does with a chain."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ringsched.operand import chain_operands, parse_operands
from ringsched.pipeline import CompiledChain, compile_schedule, open_schedule
from ringsched.run.runner import RunReport, run_kernel
from ringsched.schedule.schedule import Chain


def ringsched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringsched", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_verify() -> None:
    result = ringsched("verify", "tp_mlp", "--set", "N=2..5", "--audit", "--json")
    assert result.returncode == 0, result.stderr
    entry = json.loads(result.stdout)
    assert (entry["verdict"], entry["params"], entry["audit"]["verdict"]) == ("right", {"N": "2..5"}, "right")


def test_verify_where_links_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(
        "schedule: c\ntopology: {ring: N}\nparams: {N: 4}\nchain:\n"
        "  - use: all_gather_matmul_features\n  - use: matmul_all_reduce\n"
    )
    result = ringsched("verify", str(file))
    assert result.returncode == 1
    assert "error[RS216]: `all_gather_matmul_features` does not fit behind `matmul_all_reduce`" in result.stderr
    assert "gives the whole sum" in result.stderr and "chain.yaml:5" in result.stderr


def test_compile_writes_and_explains(tmp_path: Path) -> None:
    out = tmp_path / "mlp.py"
    result = ringsched("compile", "tp_mlp", "--set", "N=8", "-o", str(out), "--explain")
    assert result.returncode == 0, result.stderr
    assert "kernel audited at N = 8" in result.stdout
    assert "2 streamed from HBM, a layer ahead" in result.stderr
    assert "def tp_mlp(" in out.read_text()


@pytest.mark.parametrize(
    ("form", "has"),
    [
        ("schedule", "chain:\n  - use: all_gather_matmul_features_bidirectional\n    epilogue: gelu\n"),
        ("program", "  for layer in 0 .. layers - 1\n"),
        ("kernel", "@pl.loop(0, layers)"),
    ],
)
def test_emit(form: str, has: str) -> None:
    result = ringsched("compile", "tp_mlp", "--emit", form, "--no-audit")
    assert result.returncode == 0 and has in result.stdout


def test_debug_prints_are_written() -> None:
    result = ringsched("compile", "tp_mlp", "--debug", "-o", "-")
    assert result.returncode == 0 and "pl.debug_print(" in result.stdout
    compile(result.stdout, "tp_mlp.py", "exec")


def test_run() -> None:
    result = ringsched("run", "tp_mlp", "--set", "N=2", "--shape", "x=8x64", "--shape", "w1=3x128x40")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    for mode, line in zip(("eager", "on_wait"), lines[1:3], strict=True):
        assert re.match(rf"  {mode} +4 calls, max error \S+ \(rounding explains \S+\), no race, no leftover", line)
    assert lines[3] == (
        "tp_mlp: the kernel agrees with the layers in float64 on 2 virtual devices, "
        "x=8x64:f32, w1=3x128x40:f32, w2=3x40x128:f32 on each"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "w=4x4"), "there is no operand `w`"),
        (("--shape", "w3=4x4x4"), "the operands are x, w1, w2"),
        (("--shape", "w1=2x100x128", "--shape", "x=8x64"), "needs w1 to have 4 * 64 = 256 rows"),
    ],
)
def test_operands_that_do_not_fit(arguments: tuple[str, ...], message: str) -> None:
    result = ringsched("run", "tp_mlp", *arguments)
    assert result.returncode == 2 and message in result.stderr


def test_another_schedule_takes_no_second_weight() -> None:
    result = ringsched("run", "all_gather_matmul", "--shape", "w1=4x4")
    assert result.returncode == 2 and "the operands are x, w" in result.stderr


def test_run_with_the_whole_activation() -> None:
    result = ringsched("run", "tp_mlp_whole", "--set", "N=2", "--shape", "x=8x128", "--shape", "w1=3x128x40")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[3] == (
        "tp_mlp_whole: the kernel agrees with the layers in float64 on 2 virtual devices, "
        "x=8x128:f32, w1=3x128x40:f32, w2=3x40x128:f32 on each"
    )


@pytest.mark.parametrize("rows", [False, True])
def test_operands_of_the_whole_activation(tmp_path: Path, rows: bool) -> None:
    chain = open_schedule("tp_mlp_whole", {"N": 4})
    if rows:
        file = tmp_path / "chain.yaml"
        uses = "  - use: all_gather_matmul\n  - use: matmul_reduce_scatter\n"
        file.write_text(f"schedule: c\ntopology: {{ring: N}}\nparams: {{N: 4}}\nactivation: whole\nchain:\n{uses}")
        chain = open_schedule(file)
    assert isinstance(chain, Chain)
    for smallest in (True, False):
        for given in ((), ("x=8x64",), ("w1=3x512x128",)):
            x, w1, w2 = chain_operands(chain, 4, parse_operands(given), smallest=smallest)
            assert x.shape[1] == w1.shape[1] == w2.shape[2] and w1.shape[2] == w2.shape[1]
            assert x.shape[0 if rows else 1] % 4 == 0


@pytest.mark.parametrize("given", [(), ("x=8x64",), ("w1=3x512x128",), ("w2=1x128x1024",), ("x=8x64", "w1=3x256x32")])
def test_operands_suit_each_other(given: tuple[str, ...]) -> None:
    chain = open_schedule("tp_mlp", {"N": 4})
    assert isinstance(chain, Chain)
    x, w1, w2 = chain_operands(chain, 4, parse_operands(given), smallest=True)
    assert w1.shape[0] == w2.shape[0]
    if given != ("w2=1x128x1024",):
        assert (4 * x.shape[1], w1.shape[2]) == (w1.shape[1], w2.shape[1])
        assert w2.shape[2] == 4 * x.shape[1]


def test_small_commands(tmp_path: Path) -> None:
    assert "ChainModel" in json.loads(ringsched("schema").stdout)["$defs"]
    assert re.search(r"^tp_mlp +A tensor-parallel MLP", ringsched("schedules").stdout, re.MULTILINE)
    file = tmp_path / "chain.yaml"
    file.write_text("chain: [{use: a}]\nschedule:   c\ntopology: {ring:  N + 0}\n")
    assert ringsched("fmt", str(file)).returncode == 0
    assert ringsched("fmt", "--check", str(file)).returncode == 0


# -- faults in the kernel, which the execution has to find ------------------------------------------------------------


@pytest.fixture(scope="module", params=["tp_mlp", "tp_mlp_whole"])
def compiled(request: pytest.FixtureRequest) -> CompiledChain:
    chain = open_schedule(request.param, {"N": 2})
    assert isinstance(chain, Chain)
    return compile_schedule(chain)


def run_with(compiled: CompiledChain, old: str, new: str) -> RunReport:
    assert old in compiled.source
    last = compiled.proven.links[-1]
    return run_kernel(
        compiled.source.replace(old, new, 1),
        function=compiled.proven.schedule.name,
        promise=last.flat.promise,
        compute=last.schedule.compute,
        layers=compiled.proven.layers,
        operands=chain_operands(compiled.proven.schedule, 2, (), smallest=True),
        modes=("on_wait",),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            finish=finishes[0],\n", ""),
        ('"gelu": jax.nn.gelu,', '"gelu": lambda y: jax.nn.gelu(y, approximate=False),'),
        ("w2_ref.at[layer + 1]", "w2_ref.at[layer]"),
    ],
)
def test_a_wrong_value_is_found(compiled: CompiledChain, old: str, new: str) -> None:
    report = run_with(compiled, old, new)
    assert [f.code for f in report.diagnostics] == ["RS608"]
