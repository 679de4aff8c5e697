"""The pieces of an SVG: numbers, texts, arrows, and the colours of day and night."""

from __future__ import annotations

import math
from fractions import Fraction
from html import escape

from ringsched.pictures.layout import Point, Stroke

STYLE = """\
<style>
svg { font-family: system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
.page { fill: #fdfdfc; } .title { font-size: 18px; font-weight: 600; fill: #1d2733; }
.note { font-size: 12px; fill: #66717f; } .head { font-size: 12px; font-weight: 600; fill: #1d2733; }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.link { stroke: #d9dde3; stroke-width: 1.5; } .rank { fill: #ffffff; stroke: #9aa4b1; stroke-width: 1.2; }
.name { font-size: 9.5px; fill: #3b4653; text-anchor: middle; }
.chunk { font-size: 9px; fill: #3b4653; text-anchor: middle; }
.chunk { paint-order: stroke; stroke: #fdfdfc; stroke-width: 2.5px; }
.a { stroke: #2b6cd4; fill: #2b6cd4; } .b { stroke: #d4692b; fill: #d4692b; } .c { stroke: #2a946a; fill: #2a946a; }
.d { stroke: #8450c8; fill: #8450c8; }
.line { fill: none; } .reduce { stroke-dasharray: 4 2.5; } .point { stroke: none; }
.bar { stroke: none; fill: #9aa4b1; }
.rule { stroke: #e6e9ed; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
.page { fill: #14181d; } .title, .head { fill: #eef1f5; } .note { fill: #98a3b0; } .link { stroke: #343c46; }
.rank { fill: #1d232a; stroke: #6b7684; } .name { fill: #d3dae2; } .chunk { fill: #d3dae2; stroke: #14181d; }
.a { stroke: #7fb1ff; fill: #7fb1ff; } .b { stroke: #ffab73; fill: #ffab73; } .c { stroke: #68d3a5; fill: #68d3a5; }
.d { stroke: #c39bff; fill: #c39bff; }
.line { fill: none; } .point { stroke: none; } .bar { fill: #6b7684; } .rule { stroke: #2a313a; }
}
</style>
"""
HEAD = 6.5  # pixels, of an arrowhead
ASIDE = 3.6  # how far an arrow keeps to its right, so that both directions of a link are seen


def number(value: float) -> str:
    """With one decimal at most."""
    text = f"{value:.1f}"
    return text.removesuffix(".0").replace("-0", "0", 1) if text in ("-0.0", "0.0") else text.removesuffix(".0")


def decimal(value: Fraction) -> str:
    """A number of units, with three digits behind the point at most."""
    return f"{float(value):.3f}".rstrip("0").rstrip(".")


def text(place: Point, words: str, style: str) -> str:
    return f'<text x="{number(place[0])}" y="{number(place[1])}" class="{style}">{escape(words)}</text>\n'


def segment(stroke: Stroke, style: str) -> str:
    (x1, y1), (x2, y2) = stroke.start, stroke.end
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{style}"/>\n'


def beside(stroke: Stroke, aside: float) -> tuple[Point, Point]:
    """The ends of a stroke, moved to the right of its direction."""
    (x1, y1), (x2, y2) = stroke.start, stroke.end
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = -(y2 - y1) / length * aside, (x2 - x1) / length * aside
    return (x1 + dx, y1 + dy), (x2 + dx, y2 + dy)


def arrow(stroke: Stroke, style: str, width: float) -> str:
    """An arrow on the right of its stroke; `style` says the colour, and `reduce` where it adds."""
    (x1, y1), (x2, y2) = beside(stroke, 0 if stroke.alone else ASIDE)
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    head = min(HEAD + width / 2, length * 0.7)
    bx, by = x2 - ux * head, y2 - uy * head
    half = head * 0.42 + width / 4
    points = [(x2, y2), (bx - uy * half, by + ux * half), (bx + uy * half, by - ux * half)]
    shaft = f'<path d="M{number(x1)} {number(y1)}L{number(bx)} {number(by)}" class="line {style}" '
    shaft += f'stroke-width="{number(width)}"/>'
    corners = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    colour = style.split()[0]
    return f'{shaft}<polygon points="{corners}" class="{colour} point"/>\n'
