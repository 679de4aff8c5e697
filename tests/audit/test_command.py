"""`ringsched audit`: exit codes, the JSON keys, and what is said about bad arguments."""

import json
import subprocess
import sys
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


# What a module of a user's may do while it is imported, and what is said of it.
IMPORTS = {
    "exits": ("import sys\nsys.exit(0)", "the module foreign cannot be imported: it calls sys.exit"),
    "exits_with_text": ("raise SystemExit('usage: foreign')", "the module foreign cannot be imported"),
    "raises": ("raise ValueError('no data')", "the module foreign cannot be imported: ValueError: no data"),
    "misspelt": ("import jaxx", "the module foreign cannot be imported: ModuleNotFoundError"),
    "incomplete": ("def f(:", "the module foreign cannot be imported: SyntaxError"),
}


@pytest.mark.parametrize(("text", "said"), IMPORTS.values(), ids=IMPORTS)
def test_a_module_that_cannot_be_imported_is_never_right(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("foreign.py").write_text(text)
    try:
        assert run("foreign:f", *OPTIONS) == 2
    finally:
        sys.modules.pop("foreign", None)
    out, err = capsys.readouterr()
    assert out == "" and said in err


@pytest.mark.parametrize("body", ["sys.exit(0)", "raise SystemExit", "raise KeyError('k')"])
def test_a_function_that_ends_while_it_is_traced_is_never_right(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("foreign.py").write_text(f"import sys\ndef f(x):\n    {body}\n")
    try:
        assert run("foreign:f", *OPTIONS) == 2
    finally:
        sys.modules.pop("foreign", None)
    assert "the function cannot be traced" in capsys.readouterr().err


def test_what_a_module_prints_is_not_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor are the command's arguments those of the module."""
    Path("foreign.py").write_text(
        "import sys\nprint('imported', sys.argv[1:])\nimport audited\n"
        "def f(x):\n    print('traced')\n    return audited.shift(x)\n"
    )
    try:
        assert run("foreign:f", *OPTIONS, "--json") == 0
    finally:
        sys.modules.pop("foreign", None)
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "right"
    assert "imported []" in err and "traced" in err


def test_nothing_but_the_report_in_a_process_of_its_own() -> None:
    """No lines of libtpu, of JAX or of a device that is looked for."""
    command = [sys.executable, "-m", "ringsched", "audit", "audited:shift", *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_axes_of_several_mesh_options_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audited:shift", "--mesh", "i=4", "--mesh", "j=2", *OPTIONS[2:]) == 0
    assert "right on 8 devices" in capsys.readouterr().out
    assert run("audited:shift", "--mesh", "i=4", "--mesh", "i=2", *OPTIONS[2:]) == 2
    assert "a mesh is written" in capsys.readouterr().err


TABLE = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TABLE = np.array([1, 2, 3, 0], np.int32)
BAD = np.array([1, 1, 3, 0], np.int32)
WEIGHTS = np.zeros(4, np.float32)


def kernel(to_ref, x_ref, o_ref, sent, received):
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id={"i": to_ref[jax.lax.axis_index("i")]})
    copy.start()
    copy.wait()


def routed(table, x):
    spaces = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=spaces,
        out_specs=spaces[1],
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(table, x)
"""


@pytest.mark.parametrize(
    ("table", "code", "said"),
    [
        ("routes:TABLE", 0, "right on 4 devices"),
        ("routes:BAD", 1, "wrong on 4 devices"),
        ("i32[4]", 3, "constant"),
        ("routes:WEIGHTS", 3, "constant"),  # floats are data
    ],
)
def test_a_table_of_integers_is_a_constant(
    table: str, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("routes.py").write_text(TABLE)
    specs = ("--in-specs", "-", "--in-specs", "i", "--out-specs", "i")
    arguments = ("--mesh", "i=4", "--args", table, "--args", "f32[32,128]", *specs)
    try:
        found = run("routes:routed", *arguments)
    finally:
        monkeypatch.delitem(sys.modules, "routes", raising=False)
    out, err = capsys.readouterr()
    assert found == code and said in out + err
