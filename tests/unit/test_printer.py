from pathlib import Path

import pytest

from ringsched.diagnostics import DiagnosticError
from ringsched.expr import Int, Var
from ringsched.schedule.loader import load, shipped_directory
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import (
    ChunkRef,
    Collective,
    Loop,
    Parameter,
    Range,
    Rank,
    Schedule,
    Step,
    TopologySpec,
    Transfer,
)

CANONICAL = """\
schedule: several
description: "one: line, with #3 in it"
collective:
  broadcast: max(N, 2) - 1
topology: {torus: [N, 2]}
params: {N: 4, "null": 3}
chunks: [N, "null"]
steps:
  - send: chunk[(r - 1) % N, :]
    from: [0, 1]
    to: [x + 1, "min(y, 1)"]
  - step:
      - send: chunk[0:-1, 0]
        each: d in -1 .. N - 1
        to: -r
        op: reduce
        when: r != 0
      - send: chunk
        to: (r + 1) % N
        when: [0 <= x < 3, y != 1]
  - for: s in 0 .. 1
    do:
      - send: chunk[s]
        to: [x, y + 1]
      - send: chunk[s + 1]
        to: [x, y - 1]
  - for: s in 0 .. 1
    do:
      - step:
          - send: chunk[s]
            to: [x, y + 1]
      - step:
          - send: chunk[s + 1]
            to: [x, y - 1]
  - for: s in 0 .. 1
    do: []
lowering: {slots: 2, unroll: false, barrier: none}
"""


def test_canonical_text_is_printed_as_it_is() -> None:
    assert print_schedule(load("f.yaml", CANONICAL)) == CANONICAL


def test_formatter_agrees_with_the_printer() -> None:
    assert format_text(CANONICAL, "f.yaml") == CANONICAL


@pytest.mark.parametrize("file", sorted(shipped_directory().glob("*.yaml")), ids=lambda file: str(file.stem))
def test_shipped_schedules_are_formatted(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert format_text(text, str(file)) == text
    schedule = load(file)
    assert load(file, print_schedule(schedule)) == schedule


def one(**changes: object) -> Schedule:
    transfer = Transfer(chunk=ChunkRef(index=(Var(name="r"),)), to=Rank(coordinates=(Int(value=0),)))
    values: dict[str, object] = {
        "name": "one",
        "collective": Collective(kind="all_gather"),
        "topology": TopologySpec(kind="ring", sides=(Var(name="N"),)),
        "parameters": (Parameter(name="N", value=4),),
        "chunks": (Var(name="N"),),
        "items": (Step(transfers=(transfer,)),),
    }
    return Schedule(**(values | changes))  # type: ignore[arg-type]


def test_steps_of_a_body_stay_apart() -> None:
    """Two steps of one transfer each must not come back as one step of two."""
    (step,) = one().items
    twice = Loop(range=Range(var="s", first=Int(value=0), last=Int(value=3)), body=(step, step))
    schedule = one(items=(twice,))
    assert load("f.yaml", print_schedule(schedule)) == schedule


def test_long_lists_are_wrapped() -> None:
    links = tuple((i, i + 1) for i in range(200))
    names = tuple(Parameter(name=f"parameter_{i}", value=i) for i in range(20))
    schedule = one(topology=TopologySpec(kind="links", links=links), parameters=(Parameter(name="N", value=4), *names))
    text = print_schedule(schedule)
    assert max(map(len, text.split("\n"))) <= 100
    assert load("f.yaml", text) == schedule
    assert format_text(text, "f.yaml") == text


@pytest.mark.parametrize(
    "description",
    ["plain", "a: b", "a #b", "- a", "'quoted'", '"', "back\\slash", "true", "12", "*", "ünï — 日本", "a:", "[x]", "%"],
)
def test_descriptions_survive(description: str) -> None:
    text = print_schedule(one(description=description))
    again = load("f.yaml", text)
    assert again.description == description
    assert print_schedule(again) == text


MESSY = """\
# a ring, the long way round


schedule:   all_gather   # its name
collective: all_gather
# how the ranks are joined
topology: {ring: N}          # both ways
params: {N: 4,   # ranks
  M: 2}
chunks: [ N,M*2 ]
description: >   # folded
  what it
  does
steps:

  # the loop
  -   for: s in 0..N-2   # rounds
      do:
      # inside
      -   send: 'chunk[(r-s)%N,:]'  # the newest
          to: r+1  # right
          when: [r!=0,  r<N ]
      # after
  - send: chunk[r # not a comment in flow
      ]
    to: r+1
# the end
"""

TIDY = """\
# a ring, the long way round

schedule: all_gather  # its name
collective: all_gather
# how the ranks are joined
topology: {ring: N}   # both ways
params: {N: 4, M: 2}  # ranks
chunks: [N, M * 2]
# folded
description: |
  what it does
steps:

  # the loop
  - for: s in 0 .. N - 2  # rounds
    do:
      # inside
      - send: chunk[(r - s) % N, :]  # the newest
        to: r + 1                    # right
        when: [r != 0, r < N]
  # after
  - send: chunk[r]
    to: r + 1
# the end
"""


def test_formatter_keeps_comments() -> None:
    messy = MESSY.replace("chunk[r # not a comment in flow\n      ]", "chunk[r]")
    assert format_text(messy, "f.yaml") == TIDY
    assert format_text(TIDY, "f.yaml") == TIDY


def test_formatter_refuses_what_is_no_schedule() -> None:
    with pytest.raises(DiagnosticError):
        format_text(MESSY, "f.yaml")
    with pytest.raises(DiagnosticError) as error:
        format_text(TIDY.replace("r + 1", "r / 1"), "f.yaml")
    assert [d.code for d in error.value.diagnostics] == ["RS203", "RS203"]


def test_hash_signs_in_scalars_are_no_comments() -> None:
    text = CANONICAL.replace('"one: line, with #3 in it"', "'it''s # one'   # two")
    assert format_text(text, "f.yaml").split("\n")[1] == 'description: "it\'s # one"  # two'
