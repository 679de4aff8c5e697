"""The MSCCL algorithms that tests read: our own, and those of other writers where they are at hand."""

from pathlib import Path

from ringsched.importers.elements import parse
from ringsched.importers.judge import Judgement, judge
from ringsched.importers.reader import algorithm_of

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / "tests" / "corpus" / "msccl").glob("*.xml"))
SHARED = next((found for folder in ROOT.parents if (found := folder / "shared" / "msccl").is_dir()), None)
OTHERS = sorted(SHARED.glob("*.xml")) if SHARED is not None else []


def judged(text: str) -> Judgement:
    """Raises DiagnosticError where it cannot be read."""
    return judge(algorithm_of(parse(text.encode(), "a.xml")))


def codes(judgement: Judgement) -> list[str]:
    return [finding.code for finding in judgement.findings]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """`text` with some parts replaced, each at its first place; each must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def own(name: str) -> str:
    return (ROOT / "tests" / "corpus" / "msccl" / f"{name}.xml").read_text(encoding="utf-8")
