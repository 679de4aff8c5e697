"""Every YAML block of the README and the docs is a schedule that is right, at several sizes."""

import re
from pathlib import Path

import pytest

from ringsched.pipeline import open_schedule, prove
from ringsched.schedule.loader import load, set_parameters, shipped_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, number, block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{p}-{n}" for p, n, _ in BLOCKS])
def test_schedules_are_right(page: str, number: int, block: str, tmp_path: Path) -> None:
    path = tmp_path / "block.yaml"
    path.write_text(block, encoding="utf-8")
    schedule = load(path)
    if [parameter.name for parameter in schedule.parameters] != ["N"]:
        prove(schedule)
        return
    for size in (1, 2, 3, 4, 5, 8):
        proven = prove(set_parameters(schedule, {"N": size}))
        assert proven.topology.ranks == size


def test_shown_schedules_are_the_shipped_ones(tmp_path: Path) -> None:
    shipped = 0
    for page, number, block in BLOCKS:
        path = tmp_path / f"{page}-{number}.yaml"
        path.write_text(block, encoding="utf-8")
        shown = load(path)
        if shown.name in shipped_names():
            shipped += 1
            assert shown == open_schedule(shown.name), page
    assert shipped >= 3


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
