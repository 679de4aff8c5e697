"""Writes the generated modules of this folder anew, their own parts: python tests/golden/update.py

Every shipped schedule at 4 ranks (8 on a torus of three sides), one with rolled loops at 16, and one with tables at 64;
some with the portable back end.
`tests/unit/test_golden.py` compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ringsched.pipeline import compile_portable, compile_schedule, open_schedule

sys.path.insert(0, str(Path(__file__).parent.parent))
from shipped import PARAMETERS, settings  # noqa: E402

FOLDER = Path(__file__).parent
ROLLED = (("all_reduce", 16), ("all_gather_torus", 64))
PORTABLE = (
    ("all_gather_bidirectional", 5),
    ("all_gather_matmul_features_bidirectional", 4),
    ("all_gather_torus", 64),
    ("all_reduce", 16),
    ("all_to_all", 4),
    ("broadcast", 4),
    ("exchange", 5),
    ("matmul_all_reduce", 4),
    ("matmul_reduce_scatter_bidirectional", 4),
    ("tp_mlp_whole", 4),
)


def modules() -> dict[str, tuple[str, int, str]]:
    """File name → schedule, number of ranks, back end."""
    cases = [(name, 4 if settings(name, 4) else 8) for name in PARAMETERS] + [*ROLLED]
    found = {f"{name}_{ranks}.py": (name, ranks, "pallas") for name, ranks in cases}
    return found | {f"{name}_{ranks}_xla.py": (name, ranks, "xla") for name, ranks in PORTABLE}


def own_part(text: str) -> str:
    """Of a module, what is not the same in every one."""
    own, _, fixed = text.partition("\n\n# How a collective is called. What follows is the same in every module.\n")
    assert fixed
    return own


def generate(name: str, ranks: int, backend: str = "pallas") -> str:
    """The text of a module."""
    if backend == "xla":
        return compile_portable(open_schedule(name, settings(name, ranks))).source
    return compile_schedule(open_schedule(name, settings(name, ranks))).source


def main() -> None:
    expected = modules()
    for file in FOLDER.glob("*_*.py"):
        if file.name not in expected:
            file.unlink()
    for file_name, case in expected.items():
        (FOLDER / file_name).write_text(own_part(generate(*case)), encoding="utf-8")


if __name__ == "__main__":
    main()
