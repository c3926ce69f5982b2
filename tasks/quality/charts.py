"""Charts that the Prefect UI shows inside markdown: SVG as an image in the page itself, with no outside file.

The UI sanitises inline SVG tag by tag, which leaves it empty; an image with a `data:` address it shows.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LEFT, WIDE, LINE, TOP = 230, 470, 24, 22
GREY, INK, COLOURS = "#8a8f98", "#5b6472", ("#3b82f6", "#8b5cf6", "#e0669a", "#64748b")


@dataclass(frozen=True)
class Bar:
    """A line of a chart: its label, its value, the interval or range around it, and which colour it has."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: int = 0
    inner: tuple[float, float] | None = None


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-family="sans-serif" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _frame(title: str, lines: int, ticks: Sequence[float], low: float, high: float, drawn: list[str]) -> str:
    """The chart with its ticks below it, as a markdown image."""
    height = TOP + lines * LINE + 26
    below = TOP + lines * LINE + 4
    grid = []
    for tick in ticks:
        x = _x(tick, low, high)
        grid += [_line(x, TOP - 6, x, below, "#d5d9e0"), _text(x, below + 15, f"{tick:g}", "middle", GREY)]
    width = LEFT + WIDE + 60
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>'
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join([ground, *grid, *drawn])}</svg>'
    return f"![{title}](data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()})"


def _x(value: float, low: float, high: float) -> float:
    return LEFT + WIDE * (min(max(value, low), high) - low) / (high - low)


def dots(title: str, bars: Sequence[Bar], low: float, high: float, ticks: Sequence[float]) -> str:
    """A dot a line with its interval; with `inner`, a box from quartile to quartile."""
    drawn = []
    for i, bar in enumerate(bars):
        y, colour = TOP + LINE * (i + 0.5), COLOURS[bar.colour % len(COLOURS)]
        drawn.append(_text(LEFT - 10, y + 4, bar.label, "end"))
        if bar.low is not None and bar.high is not None:
            drawn.append(_line(_x(bar.low, low, high), y, _x(bar.high, low, high), y, colour, 2))
        if bar.inner:
            start, end = (_x(edge, low, high) for edge in bar.inner)
            drawn.append(f'<rect x="{start:.1f}" y="{y - 7:.1f}" width="{end - start:.1f}" height="14" rx="2" '
                         f'fill="{colour}" fill-opacity="0.35"/>')  # fmt: skip
        drawn.append(f'<circle cx="{_x(bar.value, low, high):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        drawn.append(_text(LEFT + WIDE + 12, y + 4, f"{bar.value:.2f}", colour=GREY))
    return _frame(title, len(bars), ticks, low, high, drawn)


def bars(title: str, several: Sequence[Bar], high: float, ticks: Sequence[float]) -> str:
    """A bar a line, from 0."""
    drawn = []
    for i, bar in enumerate(several):
        y, colour = TOP + LINE * i, COLOURS[bar.colour % len(COLOURS)]
        drawn.append(_text(LEFT - 10, y + LINE / 2 + 4, bar.label, "end"))
        width = _x(bar.value, 0, high) - LEFT
        drawn.append(
            f'<rect x="{LEFT}" y="{y + 4:.1f}" width="{width:.1f}" height="{LINE - 8}" rx="2" fill="{colour}"/>'
        )
        drawn.append(_text(LEFT + width + 6, y + LINE / 2 + 4, f"{bar.value:.1%}", colour=GREY))
    return _frame(title, len(several), ticks, 0, high, drawn)
