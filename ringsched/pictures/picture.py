"""FlatSchedule → SVG: its graph, what each step sends, and what each link carries in all.

One panel a step; of a long schedule the first and the last steps. The same bytes for the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ringsched.model.loads import Hop, Loads, direction, hops
from ringsched.pictures.layout import Layout, Stroke, layout_of
from ringsched.pictures.svg import STYLE, arrow, beside, decimal, number, segment, text
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.resolve import Resolver, chunk_at

MOST_PANELS = 11
FIRST_PANELS = 7  # of a schedule with more steps than that
MOST_NAMED = 64  # ranks for which chunks are looked up
PAGE = 1040  # pixels, the least width of a page with several panels
MARGIN, GUTTER, TITLE = 28, 24, 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one hop carries in one step: how many chunks, which (where that is known), and whether they are added."""

    chunks: int
    names: tuple[str, ...]
    reduces: bool


def picture(flat: FlatSchedule, loads: Loads, summary: str) -> str:
    """The SVG. `summary`: the line under the title."""
    layout = layout_of(flat.topology)
    shown = _shown(len(loads.steps))
    panels = [_step_panel(layout, flat, loads, number) for number in shown if number is not None]
    gap = shown.index(None) if None in shown else None
    if gap is not None:
        skipped = len(loads.steps) - len(panels)
        panels.insert(gap, _skipped(layout, f"{skipped} more steps"))
    panels.append(_total_panel(layout, loads))
    across = max(1, min(len(panels), int((PAGE - 2 * MARGIN + GUTTER) // (layout.width + GUTTER))))
    width = max(2 * MARGIN + across * (layout.width + GUTTER) - GUTTER, 520)
    rows = -(-len(panels) // across)
    top = 84
    bars = top + rows * (layout.height + TITLE + GUTTER)
    height = bars + 92
    body = [text((MARGIN, 38), flat.schedule.name, "title"), text((MARGIN, 58), summary, "note")]
    for index, panel in enumerate(panels):
        x = MARGIN + index % across * (layout.width + GUTTER)
        y = top + index // across * (layout.height + TITLE + GUTTER)
        body.append(f'<g transform="translate({number(x)} {number(y)})">\n{panel}</g>\n')
    body.append(f'<g transform="translate({MARGIN} {number(bars)})">\n{_bars(loads, width - 2 * MARGIN)}</g>\n')
    body.append(_legend(flat, layout, width, bars + 74))
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<title>{flat.schedule.name}: {summary}</title>\n"
        f'{STYLE}<defs><g id="links">\n{_links(layout)}</g><g id="ranks">\n{_ranks(layout)}</g></defs>\n'
        f'<rect width="100%" height="100%" class="page"/>\n{"".join(body)}</svg>\n'
    )


def _shown(steps: int) -> list[int | None]:
    """The steps that have a panel; None stands for those left out."""
    if steps <= MOST_PANELS:
        return list(range(steps))
    last = MOST_PANELS - FIRST_PANELS - 1
    return [*range(FIRST_PANELS), None, *range(steps - last, steps)]


def _links(layout: Layout) -> str:
    drawn = []
    for hop in hops(layout.topology):
        strokes = layout.strokes(hop)
        if len(strokes) > 1 or hop[0] < hop[1] or layout.topology.axis(*hop) == 2:
            drawn += [segment(stroke, "link") for stroke in strokes[:1]]
    return "".join(drawn)


def _ranks(layout: Layout) -> str:
    drawn = []
    for (x, y), name in zip(layout.places, layout.names, strict=True):
        drawn.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(layout.radius)}" class="rank"/>')
        drawn.append(text((x, y + 3.4), name, "name") if name else "\n")
    return "".join(drawn) + "".join(text(place, words, "note mid") for place, words in layout.captions)


def _framed(layout: Layout, title: str, note: str, arrows: Sequence[str], labels: Sequence[str]) -> str:
    drawn = "".join(arrows) + '<use href="#ranks"/>\n' + "".join(labels)
    head = text((0, 14), title, "head") + text((layout.width, 14), note, "note end")
    rule = f'<line x1="0" y1="20" x2="{number(layout.width)}" y2="20" class="rule"/>\n'
    return f'{head}{rule}<g transform="translate(0 {TITLE})">\n<use href="#links"/>\n{drawn}</g>\n'


def _skipped(layout: Layout, words: str) -> str:
    middle = TITLE + layout.height / 2
    return text((layout.width / 2, middle - 6), "⋯", "head mid") + text(
        (layout.width / 2, middle + 14), words, "note mid"
    )


def _units(value: Fraction) -> str:
    return f"{decimal(value)} unit{'' if value == 1 else 's'}"


def _step_panel(layout: Layout, flat: FlatSchedule, loads: Loads, step: int) -> str:
    traffic = _traffic(flat, loads, step)
    most = max((found.chunks for found in traffic.values()), default=1)
    arrows, labels = [], []
    for hop, found in traffic.items():
        style = _colour(layout, hop) + (" reduce" if found.reduces else "")
        strokes = layout.strokes(hop)
        arrows += [arrow(stroke, style, 1.2 + 1.4 * found.chunks / most) for stroke in strokes]
        if layout.roomy and found.names:
            labels.append(_label(strokes[0], " ".join(found.names)))
    note = _units(loads.busiest(step)[1]) if traffic else "nothing is sent"
    return _framed(layout, f"step {step + 1}", note, arrows, labels)


def _label(stroke: Stroke, words: str) -> str:
    if len(words) > 9:
        words = words[:8] + "…"
    (x1, y1), (x2, y2) = beside(stroke, 12)
    return text(((x1 + x2) / 2, (y1 + y2) / 2 + 3), words, "chunk")


def _traffic(flat: FlatSchedule, loads: Loads, step: int) -> dict[Hop, Traffic]:
    if flat.topology.ranks > MOST_NAMED:
        adds = all(transfer.statement.op == "reduce" for transfer in flat.steps[step])
        everywhere = loads.everywhere(loads.steps[step])
        return {hop: Traffic(chunks=chunks, names=(), reduces=adds) for hop, chunks in everywhere.items()}
    found: dict[Hop, Traffic] = {}
    dims = flat.promise.dims
    for move in Resolver(flat).step(step):
        hop = (move.sender, move.receiver)
        before = found.get(hop, Traffic(chunks=0, names=(), reduces=True))
        names = tuple(",".join(map(str, chunk_at(dims, chunk))) for chunk in move.chunks)
        adds = before.reduces and move.transfer.statement.op == "reduce"
        found[hop] = Traffic(chunks=before.chunks + len(names), names=(*before.names, *names), reduces=adds)
    return found


def _total_panel(layout: Layout, loads: Loads) -> str:
    totals = loads.totals()
    most = max(totals.values(), default=0) or 1
    arrows, labels = [], []
    for hop, chunks in totals.items():
        if not chunks:
            continue
        strokes = layout.strokes(hop)
        arrows += [arrow(stroke, _colour(layout, hop), 0.8 + 3.2 * chunks / most) for stroke in strokes]
        if layout.roomy:
            labels.append(_label(strokes[0], decimal(chunks * loads.chunk)))
    carried = [chunks * loads.chunk for chunks in totals.values()]
    note = f"{decimal(min(carried, default=Fraction(0)))} to {_units(max(carried, default=Fraction(0)))} a link"
    return _framed(layout, "all steps", note, arrows, labels)


def _colour(layout: Layout, hop: Hop) -> str:
    """By axis; on a ring or line, which has one, by direction."""
    topology = layout.topology
    axis = topology.axis(*hop)
    if axis is None:
        return "a"
    if len(topology.sides) == 1:
        return "a" if direction(topology, hop).endswith("+ 1") else "b"
    return "abc"[axis]


def _bars(loads: Loads, width: float) -> str:
    """How long each step takes, as a row of bars."""
    times = [loads.busiest(step)[1] for step in range(len(loads.steps))]
    most = max(times, default=Fraction(0)) or Fraction(1)
    each = min(26.0, (width - 200) / max(len(times), 1))
    drawn = [text((0, 30), "busiest link of each step", "note")]
    for step, time in enumerate(times):
        tall = float(time / most) * 30
        x, wide = 170 + step * each, max(each - 3, each * 0.6)
        drawn.append(
            f'<rect x="{number(x)}" y="{number(34 - tall)}" width="{number(wide)}" height="{number(tall)}" class="bar"/>\n'
        )
        if each >= 20:
            drawn.append(text((x + wide / 2, 46), decimal(time), "note mid"))
    return "".join(drawn)


def _legend(flat: FlatSchedule, layout: Layout, width: float, y: float) -> str:
    topology = flat.topology
    if topology.kind == "links":
        colours = [("a", "a transfer")]
    elif len(topology.sides) == 1:
        colours = [("a", "to r + 1"), ("b", "to r - 1")]
    else:
        colours = [("abc"[axis], f"along {name}") for axis, name in enumerate(topology.coordinates)]
    ops = {transfer.statement.op for step in flat.steps for transfer in step}
    if "reduce" in ops:
        colours += [("a reduce", "dashed: added")]
    drawn, x = [], float(MARGIN)
    for style, words in colours:
        stroke = Stroke(start=(x, y - 8), end=(x + 28, y - 8), head=True)
        drawn.append(arrow(stroke, style, 1.8) + text((x + 36, y), words, "note"))
        x += 58 + 6.4 * len(words)
    unit = "a unit: one rank's shard over one link"
    return "".join(drawn) + text((width - MARGIN, y), unit, "note end")
