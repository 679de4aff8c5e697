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

MOST_PANELS = ((64, 11), (256, 5), (1 << 30, 3))  # up to so many ranks, so many panels
MOST_NAMED = 64  # ranks for which chunks are looked up
PAGE = 1040  # pixels, the least width of a page with several panels
NARROWEST = 190  # of a panel
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
    shown = _shown(loads.sending, flat.topology.ranks)
    left_out = len(loads.sending) - len(shown)
    panels = [_step_panel(layout, flat, loads, step, left_out if step == shown[-1] else 0) for step in shown]
    panels.append(_total_panel(layout, loads))
    wide = _wide(layout)
    across = max(1, min(len(panels), int((PAGE - 2 * MARGIN + GUTTER) // (wide + GUTTER))))
    width = max(2 * MARGIN + across * (wide + GUTTER) - GUTTER, 560)
    rows = -(-len(panels) // across)
    top = 84
    bars = top + rows * (layout.height + TITLE + GUTTER)
    height = bars + 92
    body = [text((MARGIN, 38), flat.schedule.name, "title"), text((MARGIN, 58), summary, "note")]
    for index, panel in enumerate(panels):
        x = MARGIN + index % across * (wide + GUTTER)
        y = top + index // across * (layout.height + TITLE + GUTTER)
        body.append(f'<g transform="translate({number(x)} {number(y)})">\n{panel}</g>\n')
    body.append(f'<g transform="translate({MARGIN} {number(bars)})">\n{_bars(loads, width - 2 * MARGIN)}</g>\n')
    body.append(_legend(flat, loads, layout, width, bars + 74))
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<title>{flat.schedule.name}: {summary}</title>\n"
        f'{STYLE}<defs><g id="links">\n{_links(layout)}</g><g id="ranks">\n{_ranks(layout)}</g></defs>\n'
        f'<rect width="100%" height="100%" class="page"/>\n{"".join(body)}</svg>\n'
    )


def _shown(steps: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The steps that have a panel: all, or the first ones and the last."""
    most = next(panels for limit, panels in MOST_PANELS if ranks <= limit)
    return steps if len(steps) <= most else (*steps[: most - 1], steps[-1])


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


def _wide(layout: Layout) -> float:
    """How wide a panel is: the graph, or its heading."""
    return max(layout.width, NARROWEST)


def _framed(layout: Layout, title: str, note: str, arrows: Sequence[str], labels: Sequence[str]) -> str:
    drawn = "".join(arrows) + '<use href="#ranks"/>\n' + "".join(labels)
    wide = _wide(layout)
    head = text((0, 14), title, "head") + text((wide, 14), note, "note end")
    rule = f'<line x1="0" y1="20" x2="{number(wide)}" y2="20" class="rule"/>\n'
    place = f'transform="translate({number((wide - layout.width) / 2)} {TITLE})"'
    return f'{head}{rule}<g {place}>\n<use href="#links"/>\n{drawn}</g>\n'


def _units(value: Fraction) -> str:
    return f"{decimal(value)} unit{'' if value == 1 else 's'}"


def _step_panel(layout: Layout, flat: FlatSchedule, loads: Loads, step: int, left_out: int) -> str:
    traffic = _traffic(flat, loads, step)
    most = max((found.chunks for found in traffic.values()), default=1)
    arrows, labels = [], []
    for hop, found in traffic.items():
        style = _colour(layout, hop) + (" reduce" if found.reduces else "")
        strokes = layout.strokes(hop)
        arrows += [arrow(stroke, style, 1.2 + 1.4 * found.chunks / most) for stroke in strokes]
        if layout.roomy and found.names and layout.topology.linked(*hop):
            labels.append(_label(strokes[0], " ".join(found.names)))
    note = _units(loads.busiest(step)[1])
    title = f"step {loads.sending.index(step) + 1}" + (f", after {left_out} more" if left_out else "")
    return _framed(layout, title, note, arrows, labels)


def _label(stroke: Stroke, words: str) -> str:
    if len(words) > 9:
        words = words[:8] + "…"
    (x1, y1), (x2, y2) = stroke.start, stroke.end
    upright = abs(y2 - y1) / (abs(x2 - x1) + abs(y2 - y1) or 1.0)
    (x1, y1), (x2, y2) = beside(stroke, 11 + 2.6 * (len(words) - 1) * upright)
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
        names = _names(move.chunks, dims)
        adds = before.reduces and move.transfer.statement.op == "reduce"
        found[hop] = Traffic(chunks=before.chunks + len(move.chunks), names=(*before.names, *names), reduces=adds)
    return found


def _names(chunks: Sequence[int], dims: tuple[int, ...]) -> tuple[str, ...]:
    """The indices of each chunk; all parts of something together have its name."""
    if len(dims) > 1 and dims[-1] > 1:
        whole = sorted({chunk // dims[-1] for chunk in chunks})
        if len(whole) * dims[-1] == len(chunks):
            return _names(whole, dims[:-1])
    shown = dims[:-1] if len(dims) > 1 and dims[-1] == 1 else dims
    return tuple(",".join(map(str, chunk_at(dims, chunk)[: len(shown)])) for chunk in chunks)


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
    least, largest = min(carried, default=Fraction(0)), max(carried, default=Fraction(0))
    note = f"{_units(largest)} on each link" if least == largest else f"{decimal(least)} to {_units(largest)} a link"
    return _framed(layout, "all steps", note, arrows, labels)


def _colour(layout: Layout, hop: Hop) -> str:
    """By axis; on a ring or line, which has one, by direction; what goes over several links has a colour of its own."""
    topology = layout.topology
    if not topology.linked(*hop):
        return "d"
    axis = topology.axis(*hop)
    if axis is None:
        return "a"
    if len(topology.sides) == 1:
        return "a" if direction(topology, hop).endswith("+ 1") else "b"
    return "abc"[axis]


def _bars(loads: Loads, width: float) -> str:
    """How long each step takes, as a row of bars."""
    times = [loads.busiest(step)[1] for step in loads.sending]
    most = max(times, default=Fraction(0)) or Fraction(1)
    each = min(26.0, (width - 200) / max(len(times), 1))
    drawn = [text((0, 30), "busiest link of each step", "note")]
    for step, time in enumerate(times):
        tall = float(time / most) * 30
        x, wide = 170 + step * each, each - 3 if each > 6 else each
        size = f'width="{number(wide)}" height="{number(tall)}"'
        drawn.append(f'<rect x="{number(x)}" y="{number(34 - tall)}" {size} class="bar"/>\n')
        if each >= 20:
            drawn.append(text((x + wide / 2, 46), decimal(time), "note mid"))
    return "".join(drawn)


def _legend(flat: FlatSchedule, loads: Loads, layout: Layout, width: float, y: float) -> str:
    topology = flat.topology
    if topology.kind == "links":
        words = {"a": "a transfer"}
    elif len(topology.sides) == 1:
        words = {"a": f"to {topology.coordinates[0]} + 1", "b": f"to {topology.coordinates[0]} - 1"}
    else:
        words = {"abc"[axis]: f"along {name}" for axis, name in enumerate(topology.coordinates)}
    used = {_colour(layout, hop) for step in loads.steps for hop in step}
    colours = [(style, words[style]) for style in sorted(used)]
    if topology.routed:
        colours += [("d", "over several links")]
    ops = {transfer.statement.op for step in flat.steps for transfer in step}
    if "reduce" in ops:
        colours += [("a reduce", "dashed: added to what is there")]
    drawn, x = [], float(MARGIN)
    for style, label in colours:
        stroke = Stroke(start=(x, y - 8), end=(x + 28, y - 8))
        drawn.append(arrow(stroke, style, 1.8) + text((x + 36, y), label, "note"))
        x += 58 + 6.4 * len(label)
    unit = "a unit: one rank's shard over one link"
    return "".join(drawn) + text((width - MARGIN, y), unit, "note end")
