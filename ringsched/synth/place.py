"""`ring:8`, `mesh:4x4`, `links:0-1,1-2`, `links:FILE`, `FILE.yaml` → the topology that they name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.expr import Int
from ringsched.schedule.loader import load
from ringsched.schedule.schedule import TopologyKind, TopologySpec
from ringsched.schedule.vocabulary import closest
from ringsched.topology import COORDINATES, MAX_RANKS, Topology, topology_of

_EXAMPLES: dict[TopologyKind, str] = {
    "ring": "ring:8",
    "line": "line:5",
    "mesh": "mesh:4x4",
    "torus": "torus:4x4x4",
    "links": "links:0-1,1-2,2-0",
}
_FILE_BYTES = 1 << 20


def parse_topology(text: str) -> Topology:
    """The topology of two or more joined ranks that `text` names: in words, or a schedule file that has it.

    Raises RS240, and for a schedule file what can be wrong with one.
    """
    if text.endswith((".yaml", ".yml")) and not text.startswith("links:"):
        return _of_schedule(text)
    word, _, rest = text.strip().partition(":")
    kind = next((kind for kind in _EXAMPLES if kind == word.lower()), None)
    if kind is None:
        near = closest(word, _EXAMPLES)
        hint = f"did you mean {near}:{rest}?" if near else f"for example {', '.join(_EXAMPLES.values())}"
        raise _refused(text, f"there is no kind of topology `{word}`", hint)
    if kind == "links":
        return _linked(text, rest)
    example = f"for example {_EXAMPLES[kind]}"
    if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", rest):
        raise _refused(text, "sides are whole numbers with an x between them", example)
    sides = tuple(map(int, rest.split("x")))
    most = 1 if kind in ("ring", "line") else len(COORDINATES)
    if len(sides) > most:
        raise _refused(
            text, f"a {kind} has {'one side' if most == 1 else f'1 to {most} sides'}, not {len(sides)}", example
        )
    if min(sides) < 2:
        raise _refused(text, f"a side of {min(sides)} has no links", "give only sides of 2 or more ranks")
    topology = Topology(kind=kind, sides=sides)
    if topology.ranks > MAX_RANKS:
        raise _refused(text, f"{topology.ranks} ranks are over the limit of {MAX_RANKS}", example)
    return topology


def spec_of(topology: Topology) -> TopologySpec:
    """The topology as a schedule file says it."""
    if topology.kind == "links":
        return TopologySpec(kind="links", links=tuple(sorted(topology.links)), speeds=topology.speeds)
    sides = tuple(Int(value=side) for side in topology.sides)
    rows = ((axis, tuple(Int(value=shift) for shift in row)) for axis, row in enumerate(topology.twist) if any(row))
    return TopologySpec(kind=topology.kind, sides=sides, twist=tuple(rows), speeds=topology.speeds)


def name_of(topology: Topology) -> str:
    """`mesh:4x4`, as the command line has it; `links:6` stands for links of 6 ranks."""
    return f"{topology.kind}:{'x'.join(map(str, topology.sides))}"


def _of_schedule(path: str) -> Topology:
    """With the defaults of its parameters. What is made goes over single links, also where transfers are routed."""
    schedule = load(path)
    topology = replace(topology_of(schedule, {p.name: p.value for p in schedule.parameters}), routed=False)
    if topology.ranks < 2:
        raise _refused(path, "one rank has no links", "give its parameters larger defaults")
    return topology


def _linked(text: str, rest: str) -> Topology:
    body = _from_file(text, rest) if rest and not re.fullmatch(r"[\d\s,-]*", rest) else rest
    words = re.split(r"[,;\n]+", re.sub(r"#[^\n]*", "", body))
    pairs = set()
    for word in filter(None, (word.strip() for word in words)):
        ends = re.fullmatch(r"(\d{1,9})\s*[-\s]\s*(\d{1,9})", word)
        if ends is None:
            raise _refused(text, f"`{word[:40]}` is no link", f"a link is two ranks: {_EXAMPLES['links']}")
        a, b = sorted(map(int, ends.groups()))
        if a == b:
            raise _refused(text, f"the link {word} joins a rank with itself", "leave it out")
        if b >= MAX_RANKS:
            raise _refused(text, f"rank {b} is over the limit of {MAX_RANKS} ranks", "number the ranks from 0")
        pairs.add((a, b))
    if not pairs:
        raise _refused(text, "there are no links", f"for example {_EXAMPLES['links']}")
    topology = Topology(kind="links", sides=(max(b for _, b in pairs) + 1,), links=frozenset(pairs))
    apart = _apart(topology)
    if apart:
        few = ", ".join(map(str, apart[:6])) + (", …" if len(apart) > 6 else "")
        raise _refused(text, f"the links do not join all ranks: none lead from rank 0 to {few}", "add a link to them")
    return topology


def _apart(topology: Topology) -> list[int]:
    """The ranks that no links join to rank 0."""
    reached, waiting = {0}, [0]
    while waiting:
        new = [other for other in topology.neighbours(waiting.pop()) if other not in reached]
        reached.update(new)
        waiting += new
    return [rank for rank in range(topology.ranks) if rank not in reached]


def _from_file(text: str, path: str) -> str:
    try:
        data = Path(path).read_bytes() if Path(path).is_file() else None
    except (OSError, ValueError) as error:
        raise _refused(text, f"{path} cannot be read: {error}", "check its permissions") from None
    if data is None:
        raise _refused(text, f"`{path}` is neither a list of links nor a file", f"for example {_EXAMPLES['links']}")
    if len(data) > _FILE_BYTES:
        raise _refused(text, f"{path} has over {_FILE_BYTES:,} bytes", "a file of links has one link a line: 0-1")
    return data.decode("utf-8", errors="replace")


def _refused(text: str, problem: str, help: str) -> DiagnosticError:
    shown = text if len(text) <= 60 else text[:60] + "…"
    return DiagnosticError([Diagnostic(code="RS240", message=f"--topology {shown}: {problem}", help=help)])
