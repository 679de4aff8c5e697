"""`ringsched audit`: exit codes, the JSON keys, and what is said about bad arguments."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringsched.cli import run_command

MODULE = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def shift_kernel(x_ref, o_ref, sent, received):
    i, n = lax.axis_index("i"), lax.axis_size("i")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id={"i": lax.rem(i + n - 1, n)}, device_id_type=pl.DeviceIdType.MESH)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id={"i": lax.rem(i + 1, n)}, device_id_type=pl.DeviceIdType.MESH
    )
    copy.start()
    copy.wait()


def unwaited_kernel(x_ref, o_ref, done):
    pltpu.make_async_copy(x_ref, o_ref, done).start()


def open_kernel(x_ref, o_ref, done):
    @pl.when(x_ref[0, 0] > 0)
    def _():
        o_ref[...] = x_ref[...]


def call(kernel, barrier, *scratch):
    return lambda x: pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=barrier),
    )(x)


shift = call(shift_kernel, 3, pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)
unwaited = call(unwaited_kernel, None, pltpu.SemaphoreType.DMA)
undecided = call(open_kernel, None, pltpu.SemaphoreType.DMA)


def plain(x):
    return x + 1
"""
OPTIONS = ("--mesh", "i=4", "--args", "f32[32,128]", "--in-specs", "i", "--out-specs", "i")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "audited.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    monkeypatch.delitem(__import__("sys").modules, "audited", raising=False)


def run(*arguments: str) -> int:
    return run_command(["audit", *arguments])


def test_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audited:shift", *OPTIONS) == 0
    out, err = capsys.readouterr()
    assert "right on 4 devices" in out and "values not checked" in out
    assert err == ""


def test_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audited:unwaited", *OPTIONS) == 1
    out, err = capsys.readouterr()
    assert "wrong on 4 devices" in out
    assert "error[RS403]" in err and "error[RS502]" in err
    assert "audited.py:22:5" in err
    assert "pltpu.make_async_copy(x_ref, o_ref, done).start()" in err


def test_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audited:undecided", *OPTIONS) == 3
    assert "error[RS702]" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "verdict"), [("shift", "right"), ("unwaited", "wrong"), ("undecided", "undecided")])
def test_json(name: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(f"audited:{name}", *OPTIONS, "--json")
    entry = json.loads(capsys.readouterr().out)
    assert {"kernel", "devices", "verdict", "diagnostics", "seconds"} <= entry.keys()
    assert (entry["kernel"], entry["devices"], entry["verdict"]) == (f"audited:{name}", 4, verdict)
    assert entry["values"] == "not checked"
    assert all({"code", "message", "path", "line", "column", "help"} <= each.keys() for each in entry["diagnostics"])
    assert (verdict == "right") == (not entry["diagnostics"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audited:shift", "--mesh", "i", *OPTIONS[2:]), "a mesh is written i=4"),
        (("audited:shift", "--mesh", "i=0", *OPTIONS[2:]), "a mesh is written i=4"),
        (("audited", *OPTIONS), "write MODULE:FUNCTION"),
        (("audited:missing", *OPTIONS), "audited has no missing"),
        (("audited:__name__", *OPTIONS), "is no function"),
        (("no_such_module:f", *OPTIONS), "cannot be imported"),
        (("audited:plain", *OPTIONS), "calls no Pallas kernel"),
        (("audited:shift", *OPTIONS[:2], "--args", "f32[30,128]", *OPTIONS[4:]), "cannot be traced"),
        (("audited:shift", *OPTIONS[:2], "--args", "32,128", *OPTIONS[4:]), "is no shape"),
        (("audited:shift", *OPTIONS[:2], "--args", "f99[32]", *OPTIONS[4:]), "no dtype"),
        (("audited:shift", *OPTIONS[:4], "--in-specs", "k", *OPTIONS[6:]), "names the axis 'k'"),
        (("audited:shift", *OPTIONS[:4], *OPTIONS[6:]), "--in-specs is missing"),
        (("audited:shift", *OPTIONS[:6]), "--out-specs is missing"),
    ],
)
def test_misuse(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
