"""Pallas kernels with remote DMAs, each labelled with the verdict that an audit has to give, and why."""

from corpus import exchanges, faults, rings, several, shapes
from corpus.case import Case

CASES: tuple[Case, ...] = (*exchanges.CASES, *rings.CASES, *faults.CASES, *several.CASES, *shapes.CASES)

__all__ = ["CASES", "Case"]
