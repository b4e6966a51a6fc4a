"""Bars, and squares of a table, as SVG, written by hand: a title, one line a bar, a mark where the target is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

LABEL_WIDTH = 350
BAR_WIDTH = 420
VALUE_WIDTH = 90
ROW = 24
TOP = 64
BOTTOM = 34

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600; font-size: 15px }
.note { fill: #616e7c; font-size: 12px }
.bar { fill: #2f6f9f } .missed { fill: #b4532a } .grid { stroke: #d5dbe1 }
.target { stroke: #1f2933; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb } .note { fill: #9aa5b1 } .grid { stroke: #3e4c59 }
  .target { stroke: #e4e7eb } .bar { fill: #5ba3d6 } .missed { fill: #e08a5b }
}"""


@dataclass(frozen=True)
class Bar:
    """One line of a plot."""

    label: str
    value: float
    target: float | None = None
    """The most it should be."""


def bars(title: str, note: str, rows: Sequence[Bar], unit: str = "") -> str:
    """The SVG's text; the scale starts at 0."""
    most = max([bar.value for bar in rows] + [bar.target or 0 for bar in rows]) or 1.0
    step = _step(most)
    scale = BAR_WIDTH / (most * 1.05)
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">'
        ),
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="note" x="12" y="44">{escape(note)}</text>',
    ]
    tick = 0.0
    while tick <= most * 1.05:
        x = LABEL_WIDTH + tick * scale
        end = height - BOTTOM
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{end}"/>')
        parts.append(
            f'<text class="note" x="{x:.1f}" y="{end + 18}" text-anchor="middle">{tick:g}{unit}</text>'
        )
        tick = round(tick + step, 6)
    for i, bar in enumerate(rows):
        parts += _row(bar, TOP + ROW * i, scale, unit)
    return "\n".join([*parts, "</svg>", ""])


def _row(bar: Bar, y: float, scale: float, unit: str) -> list[str]:
    missed = bar.target is not None and bar.value > bar.target
    right = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH - 12
    parts = [
        f'<text x="{LABEL_WIDTH - 8}" y="{y + 17}" text-anchor="end">{escape(bar.label)}</text>',
        (
            f'<rect class="{"missed" if missed else "bar"}" x="{LABEL_WIDTH}" y="{y + 4}" '
            f'width="{max(bar.value * scale, 0.5):.1f}" height="{ROW - 8}" rx="2"/>'
        ),
        f'<text x="{right}" y="{y + 17}" text-anchor="end">{bar.value:g}{unit}</text>',
    ]
    if bar.target is not None:
        x = LABEL_WIDTH + bar.target * scale
        parts.append(
            f'<line class="target" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{y + ROW - 2}"/>'
        )
    return parts


CELL_WIDTH = 54


def squares(
    title: str,
    note: str,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    values: Mapping[tuple[str, tuple[str, str]], float],
) -> str:
    """A table of numbers whose cells are the stronger coloured the larger; 2 and more is full colour."""
    width = LABEL_WIDTH + CELL_WIDTH * len(columns) + 12
    height = TOP + 20 + ROW * len(rows) + 12
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">'
        ),
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="note" x="12" y="44">{escape(note)}</text>',
    ]
    for i, (group, name) in enumerate(columns):
        x = LABEL_WIDTH + CELL_WIDTH * (i + 0.5)
        for y, text in ((TOP, group), (TOP + 14, name)):
            parts.append(
                f'<text class="note" x="{x:.0f}" y="{y}" text-anchor="middle">{escape(text)}</text>'
            )
    for j, row in enumerate(rows):
        y = TOP + 20 + ROW * j
        parts.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 17}" text-anchor="end">{escape(row)}</text>'
        )
        for i, column in enumerate(columns):
            if (value := values.get((row, column))) is None:
                continue
            x, strength = LABEL_WIDTH + CELL_WIDTH * i, min(value / 2, 1.0)
            parts.append(
                f'<rect class="{"bar" if value <= 1 else "missed"}" x="{x + 1}" y="{y + 1}" '
                f'width="{CELL_WIDTH - 2}" height="{ROW - 2}" opacity="{strength * 0.8:.2f}"/>'
            )
            parts.append(
                f'<text x="{x + CELL_WIDTH / 2:.0f}" y="{y + 17}" text-anchor="middle">{value:.2f}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _step(most: float) -> float:
    """Between grid lines: 1, 2 or 5 times a power of ten, about five of them."""
    step = 10.0**-3
    while True:
        for factor in (1, 2, 5):
            if most / (step * factor) <= 6:
                return step * factor
        step *= 10
