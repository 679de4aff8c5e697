"""Pallas kernels with remote DMAs, each labelled with the verdict that an audit has to give, and why."""

from corpus import (
    alltoall,
    exchanges,
    faults,
    gathers,
    handshakes,
    kinds,
    limits,
    looks_wrong,
    meetings,
    meshes,
    open_questions,
    reduces,
    rings,
    rooted,
    scatters,
    several,
    shapes,
    sharing,
    shifts,
    streams,
    teaching,
    tutorial,
)
from corpus.case import Case

CASES: tuple[Case, ...] = (
    *exchanges.CASES,
    *rings.CASES,
    *faults.CASES,
    *several.CASES,
    *shapes.CASES,
    *tutorial.CASES,
    *teaching.CASES,
    *shifts.CASES,
    *gathers.CASES,
    *scatters.CASES,
    *reduces.CASES,
    *alltoall.CASES,
    *rooted.CASES,
    *handshakes.CASES,
    *meetings.CASES,
    *looks_wrong.CASES,
    *open_questions.CASES,
    *meshes.CASES,
    *sharing.CASES,
    *streams.CASES,
    *limits.CASES,
    *kinds.CASES,
)

__all__ = ["CASES", "Case"]
