"""The fixed part of a module: what is left out, and what must not be there twice."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import ringsched
from ringsched.codegen.assemble import MARKER, module_of

TEMPLATES = sorted(Path(ringsched.__file__).parent.glob("*/template*.py"))
CALL = (("ringsched.codegen", "template_call.py"), ("ringsched.xla", "template.py"))


def defined(text: str) -> list[str]:
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return found


def test_no_name_is_defined_twice() -> None:
    """In one module the later would take the place of the earlier."""
    parts = [path.read_text(encoding="utf-8").split(MARKER, 1)[1] for path in TEMPLATES]
    assert len(parts) > 10
    assert [
        name for name, count in Counter(name for part in parts for name in defined(part)).items() if count > 1
    ] == []


def test_only_what_is_used_is_there() -> None:
    own = "def f(x):\n    return _axis(x, 2)\n"
    text = module_of([], own, CALL)
    assert defined(text) == ["f", "_axis"] and "import" not in text


def test_what_is_there_for_its_effect_comes_with_what_it_is_for() -> None:
    """Rules of the primitive are registered where the primitive is used, and imported for."""
    text = module_of([], "def f():\n    return _call_p\n", CALL)
    for rule in (
        "primitive_batchers[_call_p]",
        "primitive_jvps[_call_p]",
        "register_lowering(_call_p",
        "@_call_p.def_impl",
    ):
        assert rule in text
    assert "from jax.interpreters import ad, batching, mlir" in text and "_exchanged" not in defined(text)


def test_it_stands_as_a_formatter_leaves_it() -> None:
    text = module_of([], "def f():\n    return _Linear, _sharded\n", CALL)
    assert "\n\n\n\n" not in text and text.endswith("\n") and not text.endswith("\n\n")
