"""Charts as SVG that needs no other file and no script: lines in panels, text and photographs.

The Prefect UI empties inline SVG; it shows an image with a `data:` address. All text from data is escaped.
"""

import math
import re
from base64 import b64encode
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from penumbra.artifacts.markdown import harmless, printable, truncated

GREY, INK, RULE = "#6b7280", "#3f4856", "#d5d9e0"
COLOURS = ("#3b82f6", "#8b5cf6", "#e0669a", "#64748b", "#c26a07", "#0d9488")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 3", "5 5")  # lines differ in black and white, too
CHARACTER = 6.2  # average width of a character of 12 pixels
WIDTH, LINE = 760, 24  # pixels of a drawing and of a line of text
MARGIN, HEAD, FOOT, GAP = 46, 24, 34, 14  # pixels around the axes of a panel
NO_TITLE = re.compile(r"[\[\]()`\\!<>\s]+")  # characters that would end the title of a markdown image
Points = Sequence[tuple[float, float]]


class Drawing(NamedTuple):
    """A picture, its title, and a description for people who can't see it."""

    title: str
    height: int
    body: Sequence[str]
    description: str = ""

    def svg(self) -> str:
        """Return the picture as an SVG document, which an HTML page may also contain inline."""
        title, description = harmless(self.title), harmless(self.description)
        size = f'width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}"'
        label = f"{title}. {description}".strip()
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>'
        background = box(0, 0, WIDTH, self.height, "#ffffff")
        return f"{head}<title>{title}</title><desc>{description}</desc>{background}{''.join(self.body)}</svg>"

    def image(self) -> str:
        title = NO_TITLE.sub(" ", printable(self.title)).strip()
        return f"![{title}](data:image/svg+xml;base64,{b64encode(self.svg().encode()).decode()})"


class Line(NamedTuple):
    """Points (x, y) of a panel; `style` selects colour and dashes."""

    label: str
    points: Points
    style: int = 0


class Panel(NamedTuple):
    """Axes with lines: x from `low` to `high` in `unit`, with shaded spans and marks; y ranges over `least` or more."""

    title: str
    lines: Sequence[Line]
    low: float
    high: float
    unit: str
    shaded: Points = ()
    marked: Sequence[float] = ()
    least: float = 0.0


def text(
    x: float, y: float, content: str, anchor: str = "start", colour: str = INK, room: float = 0, weight: str = "normal"
) -> str:
    """Return a line of text, truncated to `room` pixels; the full text is then shown on hovering."""
    shown = truncated(content, int(room / CHARACTER)) if room else content
    full = f"<title>{harmless(content)}</title>" if shown != content else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-family="sans-serif" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{harmless(shown)}{full}</text>'
    )


def line(points: Points, colour: str = RULE, width: float = 1.0, dashes: str = "") -> str:
    """Return a line through points, or a dot if there is only one."""
    if len(points) == 1:
        [(x, y)] = points
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{max(2.5, width / 2):.1f}" fill="{colour}"/>'
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes or "none"}" stroke-linejoin="round"'
    return f'<polyline points="{places}" fill="none" {style}/>'


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {size} rx="2" fill="{colour}" fill-opacity="{opacity:g}"/>'


def photo(x: float, y: float, width: float, height: float, jpeg: bytes, description: str) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    address = f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
    return f'<image {size} aria-label="{harmless(description)}" href="{address}"/>'


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return about `about` round numbers between two numbers, in steps of 1, 2 or 5 times a power of ten."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= about + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def panels(title: str, several: Sequence[Panel], columns: int, height: int = 150, legend: bool = False) -> Drawing:
    """Return panels in rows of `columns`, with the label of each style below them if `legend` is set."""
    width = (WIDTH - GAP) / columns
    body: list[str] = []
    for number, panel in enumerate(several):
        body += draw_panel(panel, number % columns * width, number // columns * height, width, height)
    bottom = -(-len(several) // columns) * height + 8
    labels = {it.style: it.label for panel in several for it in panel.lines} if legend else {}
    for row, (style, label) in enumerate(labels.items()):
        y = bottom + 18 * row
        body.append(line([(MARGIN, y), (MARGIN + 34, y)], COLOURS[style % 6], 2.5, DASHES[style % 6]))
        body.append(text(MARGIN + 42, y + 4, label, room=WIDTH - MARGIN - 50))
    description = "; ".join(f"{panel.title}: {', '.join(it.label for it in panel.lines)}" for panel in several)
    return Drawing(title, bottom + 18 * len(labels) + 2, body, description)


def draw_panel(panel: Panel, left: float, top: float, width: float, height: float) -> list[str]:
    """Return a panel's SVG in a rectangle of this size; lines break at values that are not finite."""
    x0, x1, y0, y1 = left + MARGIN, left + width - 6, top + height - FOOT, top + HEAD
    values = [y for it in panel.lines for _, y in it.points if math.isfinite(y)] or [0.0, 1.0]
    spare = max(0.0, panel.least - (max(values) - min(values))) / 2
    low, high = min(values) - spare, max(values) + spare
    margin = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    low, high = 0.0 if 0 <= low < 0.3 * high else low - margin, high + margin  # from 0 if that is near

    def x(value: float) -> float:
        value = min(max(value, panel.low), panel.high)
        return x0 + (value - panel.low) * (x1 - x0) / ((panel.high - panel.low) or 1.0)

    def y(value: float) -> float:
        return y0 + (value - low) * (y1 - y0) / (high - low)

    body = [text(x0, top + 15, panel.title, room=width - MARGIN, weight="600")]
    for start, end in panel.shaded:
        body.append(box(x(start), y1, max(1.5, x(end) - x(start)), y0 - y1, COLOURS[0], 0.18))
    for tick in ticks(low, high):
        body += [line([(x0, y(tick)), (x1, y(tick))]), text(x0 - 5, y(tick) + 4, f"{tick:g}", "end", GREY)]
    for tick in ticks(panel.low, panel.high, max(2, int((x1 - x0) / 45))):
        body += [line([(x(tick), y0), (x(tick), y0 + 4)], GREY), text(x(tick), y0 + 16, f"{tick:g}", "middle", GREY)]
    body.append(text(x1, y0 + 29, panel.unit, "end", GREY))
    body += [line([(x(it), y1), (x(it), y0)], INK, 1, "3 3") for it in panel.marked]
    for it in panel.lines:
        colour, dashes = COLOURS[it.style % 6], DASHES[it.style % 6]
        runs = groupby(it.points, lambda point: math.isfinite(point[1]))
        body += [line([(x(a), y(b)) for a, b in run], colour, 2, dashes) for is_finite, run in runs if is_finite]
    return [*body, line([(x0, y0), (x1, y0)], GREY)]
