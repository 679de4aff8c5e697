"""Writes the generated modules of this folder anew: python tests/golden/update.py

Every shipped schedule at N = 4, and one with rolled loops at N = 16. `tests/unit/test_golden.py` compares them.
"""

from __future__ import annotations

from pathlib import Path

from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.schedule.loader import shipped_names

FOLDER = Path(__file__).parent
ROLLED = ("all_reduce", 16)


def modules() -> dict[str, tuple[str, int]]:
    """File name → schedule and number of ranks."""
    cases = [(name, 4) for name in shipped_names()] + [ROLLED]
    return {f"{name}_{ranks}.py": (name, ranks) for name, ranks in cases}


def generate(name: str, ranks: int) -> str:
    """The text of a kernel module."""
    return compile_schedule(open_schedule(name, {"N": ranks})).source


def main() -> None:
    expected = modules()
    for file in FOLDER.glob("*_*.py"):
        if file.name not in expected:
            file.unlink()
    for file_name, (name, ranks) in expected.items():
        (FOLDER / file_name).write_text(generate(name, ranks), encoding="utf-8")


if __name__ == "__main__":
    main()
