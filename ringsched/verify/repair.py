"""Small changes that cure a schedule, found by trying: what a help line can propose word for word.

Tried are, one at a time: chunk indices shifted by one or two, the other operation, the other direction, a loop that is
longer or shorter by one at either end. A change counts when with it the schedule is right at the size of the finding
and at larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.expr import Binary, Expr, Int, binary, show
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.notation import show_chunk, show_range
from ringsched.schedule.schedule import (
    Beside,
    Item,
    Loop,
    Op,
    Parameter,
    Range,
    Rank,
    Schedule,
    Slice,
    Step,
    Transfer,
    Use,
)

MAX_TRIED = 60
MAX_WORK = 3000  # ranks times transfers of a schedule that is tried
CURABLE = frozenset({"RS301", "RS302", "RS303", "RS304", "RS305", "RS306"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`kind`: what is changed; `text`: how it reads afterwards; `new`: the items with the change."""

    kind: str
    text: str
    span: Span | None
    new: Item


def with_repairs(
    schedule: Schedule, found: tuple[Diagnostic, ...], right: Callable[[Schedule], bool]
) -> tuple[Diagnostic, ...]:
    """The findings, the help of the first replaced by a change that cures the schedule where there is one."""
    if not found or found[0].code not in CURABLE or not _is_small(schedule):
        return found
    first = found[0]
    culprit = first.primary.span if first.primary else None
    edits = sorted(_schedule_edits(schedule), key=lambda pair: _order(pair[0], first.code, culprit))
    for sizes in _sizes(schedule):
        for edit, candidate in edits[:MAX_TRIED]:
            if all(right(replace(candidate, parameters=p)) for p in sizes):
                return (_proposed(schedule, first, edit, sizes), *found[1:])
    return found


def _is_small(schedule: Schedule) -> bool:
    try:
        flat = flatten(schedule)
    except DiagnosticError:
        return False
    return _transfers(flat) * flat.topology.ranks <= MAX_WORK


def _transfers(flat: FlatSchedule) -> int:
    return sum(t.each[1] - t.each[0] + 1 if t.each else 1 for step in flat.steps for t in step)


def _sizes(schedule: Schedule) -> Iterator[list[tuple[Parameter, ...]]]:
    """Parameters that a change must be right at: the next sizes, or, for powers of two, the next of those."""
    given = schedule.parameters
    if not given:
        yield [given]
        return
    yield [tuple(replace(p, value=p.value + more) for p in given) for more in range(3)]
    if len(given) == 1:
        yield [tuple(replace(p, value=p.value * factor) for p in given) for factor in (1, 2, 4)]
    yield [given]


def _order(edit: Edit, code: str, culprit: Span | None) -> tuple[int, int]:
    """What is tried first: the culprit itself, and of it what usually leads to such a finding."""
    usual = {
        "RS301": ("index", "op", "loop", "to"),
        "RS302": ("loop", "index", "op", "to"),
        "RS303": ("op", "index", "loop", "to"),
        "RS304": ("op", "loop", "index", "to"),
        "RS305": ("index", "to", "op", "loop"),
        "RS306": ("index", "to", "loop", "op"),
    }[code]
    elsewhere = culprit is not None and edit.span is not None and not _overlaps(edit.span, culprit)
    return (int(elsewhere and edit.kind != "loop"), usual.index(edit.kind))


def _overlaps(a: Span, b: Span) -> bool:
    return a.path == b.path and a.line <= b.end_line and b.line <= a.end_line


def _proposed(schedule: Schedule, found: Diagnostic, edit: Edit, sizes: list[tuple[Parameter, ...]]) -> Diagnostic:
    names = [p.name for p in schedule.parameters]
    if len(names) == 1 and len(sizes) > 1:
        help = f"{edit.text}; so changed, it is right for {names[0]} = {', '.join(str(s[0].value) for s in sizes)}"
    else:
        help = f"{edit.text}; so changed, it is right"
    ring = schedule.topology.kind == "ring" and schedule.collective.kind == "all_gather"
    if ring and found.code == "RS301" and edit.kind == "index":
        help = f"a ring all-gather forwards the chunk that arrived last: {edit.text.removeprefix('write ')}"
    culprit = found.primary.span if found.primary else None
    secondary = found.secondary
    if edit.span is not None and (culprit is None or not _overlaps(edit.span, culprit)):
        secondary = (*secondary, Label(span=edit.span, text="what the help changes"))
    return replace(found, help=help, secondary=secondary)


def _schedule_edits(schedule: Schedule) -> Iterator[tuple[Edit, Schedule]]:
    for number, item in enumerate(schedule.items):
        for edit in _item_edits(item):
            items = (*schedule.items[:number], edit.new, *schedule.items[number + 1 :])
            yield edit, replace(schedule, items=items)


def _item_edits(item: Item) -> Iterator[Edit]:
    match item:
        case Step():
            for number, transfer in enumerate(item.transfers):
                for kind, text, new in _transfer_edits(transfer):
                    transfers = (*item.transfers[:number], new, *item.transfers[number + 1 :])
                    yield Edit(kind=kind, text=text, span=transfer.span, new=replace(item, transfers=transfers))
        case Loop():
            for range_ in _range_edits(item.range):
                text = f"write for: {show_range(range_)}"
                yield Edit(kind="loop", text=text, span=item.range.span, new=replace(item, range=range_))
            for number, inner in enumerate(item.body):
                for edit in _item_edits(inner):
                    body = (*item.body[:number], edit.new, *item.body[number + 1 :])
                    yield replace(edit, new=replace(item, body=body))
        case Use():
            for edit, schedule in _schedule_edits(item.schedule):
                yield replace(edit, new=replace(item, schedule=schedule))
        case Beside():
            for number, use in enumerate(item.uses):
                for edit in _item_edits(use):
                    if isinstance(edit.new, Use):
                        uses = (*item.uses[:number], edit.new, *item.uses[number + 1 :])
                        yield replace(edit, new=replace(item, uses=uses))


def _range_edits(range_: Range) -> Iterator[Range]:
    yield replace(range_, last=binary("+", range_.last, 1))
    yield replace(range_, last=binary("-", range_.last, 1))
    yield replace(range_, first=binary("-", range_.first, 1))
    yield replace(range_, first=binary("+", range_.first, 1))


def _transfer_edits(transfer: Transfer) -> Iterator[tuple[str, str, Transfer]]:
    for shift in (1, -1, 2, -2):
        for d, index in enumerate(transfer.chunk.index):
            if isinstance(index, Slice):
                continue
            parts = (*transfer.chunk.index[:d], _shifted(index, shift), *transfer.chunk.index[d + 1 :])
            chunk = replace(transfer.chunk, index=parts)
            yield "index", f"write {show_chunk(chunk)}", replace(transfer, chunk=chunk)
    other: Op = "copy" if transfer.op == "reduce" else "reduce"
    yield "op", f"write op: {other}", replace(transfer, op=other)
    for number, coordinate in enumerate(transfer.to.coordinates):
        turned = _turned(coordinate)
        if turned is not None:
            place = (*transfer.to.coordinates[:number], turned, *transfer.to.coordinates[number + 1 :])
            to = Rank(coordinates=place, span=transfer.to.span)
            yield "to", f"write to: {_show_rank(place)}", replace(transfer, to=to)
    if transfer.each is not None:
        for range_ in _range_edits(transfer.each):
            yield "loop", f"write each: {show_range(range_)}", replace(transfer, each=range_)


def _shifted(index: Expr, shift: int) -> Expr:
    """`index + shift`, within its `%` where it has one."""
    if isinstance(index, Binary) and index.op == "%":
        return Binary(op="%", left=binary("+", index.left, shift), right=index.right, span=index.span)
    return binary("+", index, shift)


def _turned(coordinate: Expr) -> Expr | None:
    """`r + k` for `r - k` and the other way round."""
    if isinstance(coordinate, Binary) and coordinate.op in ("+", "-") and isinstance(coordinate.right, Int):
        return replace(coordinate, op="-" if coordinate.op == "+" else "+")
    return None


def _show_rank(place: tuple[Expr, ...]) -> str:
    shown = ", ".join(show(c) for c in place)
    return shown if len(place) == 1 else f"[{shown}]"
