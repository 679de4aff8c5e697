"""`--compare`: the table, and what a file is taken for. The figures are made up; nothing is compiled for a TPU."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ringsched.commands import compare
from ringsched.commands.compare import Compared, Figures, Module, comparison_text, figures_of, open_other
from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.operand import Operand, parse_operands
from ringsched.pipeline import compile_portable, compile_schedule, open_schedule
from ringsched.target.aot import TargetError
from ringsched.target.report import TargetReport

OPERANDS = parse_operands(("x=256x1024:bf16", "w=1024x4096:bf16"))
REPORT = TargetReport(
    target="v5p:2x2x1",
    kernel="a",
    compile_seconds=22.83,
    vmem_bytes=23_556_096,
    semaphores=8,
    cycles=66_309,
    ideal_cycles=65_536,
    utilization=0.9883,
)
FIGURES = Figures(label="all_gather_matmul", ranks=4, operands=tuple(map(str, OPERANDS)), report=REPORT)
OTHER = Figures(
    label="old/report.json: matmul",
    ranks=4,
    operands=("x=1024x1024:bf16",),
    report=replace(REPORT, cycles=132_618, semaphores=0, compile_seconds=2.283, vmem_bytes=None),
)

TABLE = """\
  A  all_gather_matmul
  B  old/report.json: matmul

                              A               B  B / A
  target              v5p:2x2x1       v5p:2x2x1
  ranks                       4               4
  x               256x1024:bf16  1024x1024:bf16
  w              1024x4096:bf16               –
  issue cycles           66,309         132,618  2.000
  matmul cycles          65,536          65,536  1.000
  utilization             98.8%           98.8%  1.000
  VMEM bytes         23,556,096       not known      –
  semaphores                  8               0  0.000
  compile time           22.8 s           2.3 s  0.100"""


def test_whole_table() -> None:
    assert comparison_text(FIGURES, OTHER) == TABLE


def test_figures_that_are_not_known() -> None:
    """A ratio with nothing, or of nothing, is none."""
    unknown = replace(REPORT, cycles=None, ideal_cycles=None, utilization=None, semaphores=0)
    for first, second in ((unknown, REPORT), (REPORT, unknown), (unknown, unknown)):
        text = comparison_text(replace(FIGURES, report=first), replace(OTHER, ranks=None, operands=(), report=second))
        rows = {line[2:15].strip(): line.split() for line in text.splitlines()[4:]}
        assert rows["issue cycles"][-1] == rows["utilization"][-1] == "–"
        assert "known" in rows["ranks"]
    assert rows["semaphores"] == ["semaphores", "0", "0", "–"]


def test_it_fits_a_narrow_terminal() -> None:
    """Whatever the labels are; these have a line each."""
    wide = Figures(
        label="x" * 200, ranks=16, operands=("x=16384x16384:bf16", "w1=3x16384x65536:f8_e4m3fn"), report=REPORT
    )
    assert max(map(len, comparison_text(wide, wide).splitlines()[2:])) <= 80


# ---- what a file is -----------------------------------------------------------------------------------------------


def refused(file: Path | str, **settings: int) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        open_other(str(file), settings)
    (found,) = caught.value.diagnostics
    return found


def test_a_schedule(tmp_path: Path) -> None:
    other = open_other("matmul_all_reduce", {"N": 3, "M": 5})
    assert isinstance(other, Compared) and other.compiled.proven.topology.ranks == 3
    assert refused("matmul_all_reduc").code == "RS101"
    wrong = tmp_path / "wrong.yaml"
    head = "schedule: t\ncollective: all_gather\ntopology: {ring: 3}\nchunks: [3]\n"
    wrong.write_text(head + "steps: [{send: 'chunk[0]', to: r + 1}]\n", encoding="utf-8")
    with pytest.raises(DiagnosticError, match="RS301"):
        open_other(str(wrong), {})


@pytest.mark.parametrize(
    ("name", "sides", "names"),
    [("matmul", (4,), ("x", "w")), ("tp_mlp", (4,), ("x", "w1", "w2")), ("shift", (4,), ("x",))],
)
def test_a_generated_module(tmp_path: Path, name: str, sides: tuple[int, ...], names: tuple[str, ...]) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(source := compile_schedule(open_schedule(name)).source, encoding="utf-8")
    assert open_other(str(file), {}) == Module(label=str(file), source=source, function=name, sides=sides, names=names)


def test_a_module_over_a_mesh(tmp_path: Path) -> None:
    schedule, file = tmp_path / "t.yaml", tmp_path / "kernel.py"
    head = "schedule: t\ncollective: none\ntopology: {mesh: [2, 3]}\nchunks: [1]\n"
    schedule.write_text(head + "compute: {multiply: on arrival}\nsteps: []\n", encoding="utf-8")
    file.write_text(compile_schedule(open_schedule(schedule)).source, encoding="utf-8")
    other = open_other(str(file), {})
    assert isinstance(other, Module) and other.sides == (2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "is no Python module"),
        ("\0", "is no Python module"),
        ("import jax\n", "is not a kernel module that ringsched wrote"),
        ('"""Generated by ringsched; edit the schedule."""\nN = 4\nSIDES = (N,)\n', "is not a kernel module that"),
        (
            '"""Generated by ringsched\n\nInside jax.shard_map: y = f(x, axis_name="i")\n"""\nSIDES = (N,)\n',
            "is not a ke",
        ),
        ('"""Inside jax.shard_map: y = f(x, axis_name="i")\n"""\nN = 4\nSIDES = (N,)\n', "is not a kernel module that"),
    ],
)
def test_other_python_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "k.py"
    file.write_text(text, encoding="utf-8")
    found = refused(file)
    assert found.code == "RS613" and message in found.message


def test_modules_without_a_kernel(tmp_path: Path) -> None:
    file = tmp_path / "k.py"
    file.write_text(compile_portable(open_schedule("all_gather")).source, encoding="utf-8")
    found = refused(file)
    assert found.code == "RS613" and found.message == f"{file} has no TPU kernel: it was written with --backend xla"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(tmp_path / "k.py").message == f"{tmp_path / 'k.py'} cannot be read: No such file or directory"
    (tmp_path / "k.json").mkdir()
    assert refused(tmp_path / "k.json").message == f"{tmp_path / 'k.json'} cannot be read: Is a directory"
    (tmp_path / "k.py").write_bytes(b"\xff\xfe")
    assert refused(tmp_path / "k.py").message == f"{tmp_path / 'k.py'} cannot be read: it is not UTF-8"


def test_a_saved_report(tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    about = {"schedule": "matmul", "ranks": 4, "operands": ["x=256x1024:bf16"], "overlap": "none"}
    file.write_text(json.dumps(about | REPORT.to_json()), encoding="utf-8")
    label = f"{file}: matmul, overlap none"
    assert open_other(str(file), {}) == Figures(label=label, ranks=4, operands=("x=256x1024:bf16",), report=REPORT)
    file.write_text(json.dumps(REPORT.to_json()), encoding="utf-8")
    assert open_other(str(file), {}) == Figures(label=f"{file}: a", ranks=None, operands=(), report=REPORT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("", "is not one JSON document"),
        ("{}\n{}", "is not one JSON document"),
        ("[1]", "is no report on a target"),
        ({"cycles": "many"}, "is no report on a target"),
        ({"cycles": True}, "is no report on a target"),
        ({"target": 3}, "is no report on a target"),
        ({"compile_seconds": None}, "is no report on a target"),
        ({"kernel": None}, "says that the kernel was not compiled for v5p:2x2x1"),
    ],
)
def test_other_json_files(tmp_path: Path, change: str | dict[str, object], message: str) -> None:
    file = tmp_path / "saved.json"
    text = change if isinstance(change, str) else json.dumps(REPORT.to_json() | change)
    file.write_text(text, encoding="utf-8")
    found = refused(file)
    assert (found.code, found.message) == ("RS613", f"{file} {message}")


# ---- compiling it -------------------------------------------------------------------------------------------------


def compiling(monkeypatch: pytest.MonkeyPatch, fault: TargetError | None = None) -> list[dict[str, object]]:
    asked: list[dict[str, object]] = []

    def answer(**request: object) -> TargetReport:
        asked.append(request)
        if fault is not None:
            raise fault
        return REPORT

    monkeypatch.setattr(compare, "compile_for_target", answer)
    return asked


def test_the_operands_of_the_first_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = compiling(monkeypatch)
    file = tmp_path / "kernel.py"
    file.write_text(compile_schedule(open_schedule("matmul", {"N": 2})).source, encoding="utf-8")
    for other, ranks in ((open_other("matmul_all_reduce", {}), 4), (open_other(str(file), {}), 2)):
        figures = figures_of(other, OPERANDS, "v5p:2x2x1")
        assert (figures.ranks, figures.operands) == (ranks, ("x=256x1024:bf16", "w=1024x4096:bf16"))
    assert [request["operands"] for request in asked] == [OPERANDS, OPERANDS]
    assert [request["function"] for request in asked] == ["matmul_all_reduce", "matmul"]
    assert [request["sides"] for request in asked] == [(4,), (2,)]
    assert figures_of(OTHER, OPERANDS, "v6e:2x2") is OTHER and len(asked) == 2


def unfit(other: str, operands: tuple[Operand, ...]) -> str:
    with pytest.raises(DiagnosticError) as caught:
        figures_of(open_other(other, {}), operands, "v5p:2x2x1")
    (found,) = caught.value.diagnostics
    assert found.code == "RS613" and "--shape" in str(found.help)
    return found.message


def test_operands_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = compiling(monkeypatch)
    file = tmp_path / "kernel.py"
    file.write_text(compile_schedule(open_schedule("all_gather")).source, encoding="utf-8")
    given = "x=256x1024:bf16, w=1024x4096:bf16"
    assert unfit("all_gather", OPERANDS).startswith(f"all_gather does not take {given}: ")
    assert unfit("tp_mlp", OPERANDS).startswith(f"tp_mlp does not take {given}: ")
    assert unfit(str(file), OPERANDS) == f"{file} does not take {given}: its operands are x"
    assert not asked
    message = "the kernel does not compile for v5p:2x2x1: ValueError: matmul needs w to have 3 rows"
    compiling(monkeypatch, TargetError("RS604", message, "change it"))
    assert unfit("matmul", OPERANDS) == f"matmul does not take {given}: matmul needs w to have 3 rows"


def test_the_compiler_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling(monkeypatch, TargetError("RS604", "the kernel does not compile: RESOURCE_EXHAUSTED", "smaller operands"))
    with pytest.raises(DiagnosticError) as caught:
        figures_of(open_other("matmul", {}), OPERANDS, "v5p:2x2x1")
    (found,) = caught.value.diagnostics
    assert (found.code, found.help) == ("RS604", "smaller operands")
    assert found.message == "matmul: the kernel does not compile: RESOURCE_EXHAUSTED"


def test_cores_are_told_where_there_are_two() -> None:
    two = replace(FIGURES, report=replace(REPORT, cores=2))
    one = replace(FIGURES, report=replace(REPORT, cores=1))
    assert re.search(r"^  cores a device +2 +1$", comparison_text(two, one), re.MULTILINE)
    assert "cores" not in comparison_text(one, one)
