"""Where in the user's source an operation of a kernel stands.

JAX keeps the whole Python stack of each operation. The innermost frame is often a helper that the kernel calls again
and again (`_send`), and then says little; so a place is the innermost frame up to the first function that is called
from more than one place of the kernel.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from jax._src import source_info_util

from ringsched.diagnostics import Span

_Frame = tuple[Any, int]  # code object, instruction


class Places:
    """The places of one kernel's operations."""

    def __init__(self, call: Any, jaxpr: Any) -> None:
        """call: the equation that calls the kernel `jaxpr`."""
        self._call = call
        self._outside = {_key(frame) for frame in _frames(call)}
        self._callers: dict[Any, set[Any]] = {}
        self._spans: dict[int, Span | None] = {}
        self._kept: list[Any] = []  # an id is good as long as its equation lives
        self._around: dict[int, Any] = {}
        for eqn, around in _equations(jaxpr, None):
            self._around[id(eqn)] = around
            chain = self._chain(eqn)
            for outer, inner in itertools.pairwise(chain):
                self._callers.setdefault(inner[0], set()).add(_key(outer))

    def of(self, eqn: Any) -> Span | None:
        """The place of an operation of the kernel; that of what it is in for one that has none."""
        if id(eqn) not in self._spans:
            self._kept.append(eqn)
            self._spans[id(eqn)] = self._find(eqn)
        return self._spans[id(eqn)]

    @property
    def call(self) -> Span | None:
        """Where the kernel is called."""
        return place_of(self._call)

    def _find(self, eqn: Any) -> Span | None:
        chain = self._chain(eqn)
        if not chain:
            around = self._around.get(id(eqn))
            return self.call if around is None else self.of(around)
        place = chain[0]
        for frame in chain[1:]:
            if len(self._callers.get(frame[0], ())) > 1:
                break
            place = frame
        return _span(place)

    def _chain(self, eqn: Any) -> list[_Frame]:
        """The frames inside the kernel, outermost first."""
        inside = [frame for frame in _frames(eqn) if _key(frame) not in self._outside]
        return inside[::-1]


def _equations(jaxpr: Any, around: Any) -> Iterator[tuple[Any, Any]]:
    """All operations, each with the one that it is in."""
    for eqn in jaxpr.eqns:
        yield eqn, around
        for inner in sub_jaxprs(eqn):
            yield from _equations(inner, eqn)


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, without their constants."""
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def place_of(eqn: Any) -> Span | None:
    """The innermost place of an operation outside kernels."""
    frames = _frames(eqn)
    return _span(frames[0]) if frames else None


def _frames(eqn: Any) -> list[_Frame]:
    """The user's frames, innermost first."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return []
    codes, instructions = traceback.raw_frames()
    frames = zip(codes, instructions, strict=True)
    return [frame for frame in frames if source_info_util.is_user_filename(frame[0].co_filename)]


def _key(frame: _Frame) -> tuple[Any, int]:
    """Two calls on one line are one place."""
    return frame[0], source_info_util.raw_frame_to_frame(*frame).start_line


def _span(frame: _Frame) -> Span:
    found = source_info_util.raw_frame_to_frame(*frame)
    line, column = max(found.start_line, 1), found.start_column + 1
    end_line, end_column = max(found.end_line, line), found.end_column + 1
    return Span(path=_path(found.file_name), line=line, column=column, end_line=end_line, end_column=end_column)


def _path(path: str) -> str:
    """Relative where that is shorter to read: below the current directory."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
