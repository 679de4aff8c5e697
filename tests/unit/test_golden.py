"""Generated modules, the own part of each byte for byte. After a wanted change: python tests/golden/update.py"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from shipped import DOUBLING, RINGS, settings

from ringsched.pipeline import compile_portable, compile_schedule, open_schedule
from ringsched.schedule.loader import shipped_names

FOLDER = Path(__file__).parents[1] / "golden"


def _update() -> Any:
    spec = importlib.util.spec_from_file_location("golden_update", FOLDER / "update.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


update = _update()
MODULES: dict[str, tuple[str, int, str]] = update.modules()


def ruff(*arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if result.returncode == 0 else result.stdout + result.stderr


@pytest.mark.parametrize("file_name", MODULES)
def test_same_bytes(file_name: str) -> None:
    assert update.own_part(update.generate(*MODULES[file_name])) == (FOLDER / file_name).read_text(encoding="utf-8")


def test_no_other_files() -> None:
    assert {file.name for file in FOLDER.glob("*_*.py")} == set(MODULES)


@pytest.mark.parametrize("name", ["reduce", "all_reduce_bidirectional"])
def test_generated_twice_is_the_same(name: str) -> None:
    assert update.generate(name, 5) == update.generate(name, 5)


def test_same_in_another_process() -> None:
    """No order of a set, no clock, no address is in it."""
    text = "import sys; from ringsched.pipeline import *\n"
    text += "sys.stdout.write(compile_schedule(open_schedule('reduce')).source)"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            check=True,
            timeout=60,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {update.generate("reduce", 4).encode()}


@pytest.mark.parametrize("file_name", MODULES)
def test_imports_only_jax(file_name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(update.generate(*MODULES[file_name]))):
        match node:
            case ast.Import():
                imported |= {alias.name.split(".")[0] for alias in node.names}
            case ast.ImportFrom():
                assert node.level == 0 and node.module
                imported.add(node.module.split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"jax"}


def test_says_with_which_jax_it_was_tested() -> None:
    """The one that is installed here, but for its last number."""
    (line,) = re.findall(r"^tested    with jax (.*)$", update.generate("shift", 4), re.MULTILINE)
    assert line.split(".")[:2] == version("jax").split(".")[:2]


def written(folder: Path) -> str:
    """The golden modules, and others that come out differently: debugging, one rank, loops, credits, odd sizes."""
    for file_name, case in MODULES.items():
        (folder / file_name).write_text(update.generate(*case), encoding="utf-8")
    for name in shipped_names():
        for ranks in (1, 2, 5, 24):
            parameters = settings(name, ranks)
            if parameters is not None:
                text = compile_schedule(open_schedule(name, parameters), debug=ranks == 24).source
                (folder / f"{name}_{ranks}.py").write_text(text, encoding="utf-8")
        for ranks in (2, 12):
            if settings(name, ranks) is not None:
                text = update.generate(name, ranks, "xla")
                (folder / f"{name}_{ranks}_xla.py").write_text(text, encoding="utf-8")
    for path in sorted((FOLDER.parent / "xla").glob("*.yaml")):
        text = compile_portable(open_schedule(path)).source
        (folder / f"{path.stem}_xla.py").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_formatter_changes_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert ruff("format", "--check", "--diff", "--line-length=88", folder) == ""
    assert ruff("format", "--check", "--diff", "--line-length=120", folder) == ""
    assert ruff("check", folder) == ""


def test_the_formatter_would_complain(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import os\nx  =  1\n", encoding="utf-8")
    assert ruff("format", "--check", "--diff", str(tmp_path)) != ""
    assert ruff("check", str(tmp_path)) != ""


def size(name: str, ranks: int) -> int:
    """Nodes of the syntax tree of a module's own kernels: lines would grow where a number of three digits makes a call
    wrap. The transfers without a kernel are unrolled up to a few turns."""
    tree = ast.parse(update.own_part(update.generate(name, ranks)))
    return sum(1 for node in tree.body if not _is_transfers(node) for _ in ast.walk(node))


def _is_transfers(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "_transfers"


GROWING = (*DOUBLING, "all_gather_bruck", "all_to_all_bruck")  # with the logarithm of the ranks


@pytest.mark.parametrize("name", [n for n in RINGS if n not in ("all_to_all", "broadcast", "reduce", *GROWING)])
def test_no_larger_at_64_ranks_than_at_16(name: str) -> None:
    assert size(name, 64) <= size(name, 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RINGS if n not in GROWING])
def test_no_larger_at_256_ranks_than_at_16(name: str) -> None:
    assert size(name, 256) <= size(name, 16)
