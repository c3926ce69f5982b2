"""Pictures in SVG that need no other file: dots with intervals, bars, spans of time, and lines over time or epochs.

The Prefect UI sanitises inline SVG tag by tag, which leaves it empty; it shows an image with a `data:` address.
"""

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

GREY, INK, RULE = "#6b7280", "#3f4856", "#d5d9e0"
COLOURS = ("#3b82f6", "#8b5cf6", "#e0669a", "#64748b", "#c26a07", "#0d9488")
CHARACTER = 6.2  # pixels of a character of 12 pixels, on average
NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # a picture with one is not shown
NO_TITLE = re.compile(r"[\[\]()`\\!<>\s]+")  # what would end a markdown image's title, or its line
LEFT, WIDE, LINE, TOP, ROOM = 230, 470, 24, 22, 60  # LEFT: of the labels, where none is longer; ROOM: of figures
LONGEST_LEFT = 420
WIDTH = LEFT + WIDE + ROOM
DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 3", "5 5")  # lines differ without their colours too
SHADE = "#f6d98a"  # of what is true
MARGIN, HEAD, FOOT, GAP = 46, 24, 34, 14  # around the axes of a panel


@dataclass(frozen=True)
class Drawing:
    """A picture, its title, and what it shows for those who can't see it."""

    title: str
    width: int
    height: int
    body: Sequence[str]
    described: str = ""

    def svg(self) -> str:
        """The picture as a file of its own, or as a part of a page in HTML."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        titles = f"<title>{harmless(self.title)}</title><desc>{harmless(self.described)}</desc>"
        ground = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="#ffffff"/>'
        label = harmless(f"{self.title}. {self.described}".strip())
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>'
        return f"{head}{titles}{ground}{''.join(self.body)}</svg>"

    def image(self) -> str:
        """As a markdown image, which the Prefect UI shows."""
        title = NO_TITLE.sub(" ", printable(self.title)).strip()
        return f"![{title}](data:image/svg+xml;base64,{b64encode(self.svg().encode()).decode()})"


def harmless(content: str) -> str:
    """Text of unknown origin as a part of SVG or HTML."""
    return escape(printable(content))


def printable(content: str) -> str:
    """Without the characters that no page may hold."""
    return NO_XML.sub("\N{REPLACEMENT CHARACTER}", content)


def text(
    x: float, y: float, content: str, anchor: str = "start", colour: str = INK, room: float = 0, weight: str = "normal"
) -> str:
    """A line of text; what needs more than `room` pixels ends in … and is told in full to who points at it."""
    shown = truncated(content, int(room / CHARACTER)) if room else content
    full = f"<title>{harmless(content)}</title>" if shown != content else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-family="sans-serif" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{harmless(shown)}{full}</text>'
    )


def truncated(content: str, most: int) -> str:
    """At most so many characters."""
    return content if len(content) <= most else content[: max(0, most - 1)] + "…"


def line(x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1, dashes: str = "") -> str:
    """A straight line."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    """A filled rectangle."""
    shade = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{colour}"{shade}/>'


def path(points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, dashes: str = "") -> str:
    """A line through points; a dot where there is one only."""
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5" fill="{colour}"/>'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-linejoin="round"{dashed}/>'
    )


def photo(x: float, y: float, width: float, height: float, jpeg: bytes, described: str) -> str:
    """A JPEG inside a picture."""
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" aria-label="{harmless(described)}" '
        f'href="data:image/jpeg;base64,{b64encode(jpeg).decode()}"/>'
    )


@dataclass(frozen=True)
class Bar:
    """A line of a chart: its label, its value, the interval or range around it, and which colour it has."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: int = 0
    inner: tuple[float, float] | None = None


@dataclass(frozen=True)
class Spans:
    """A line of a chart: spans of time in seconds, what is to be said of them, and their colour ("" is the shade's)."""

    label: str
    spans: Sequence[tuple[float, float]]
    note: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Line:
    """Points (x, y) of a panel, and the style that tells them from others: a number, the same in every panel."""

    label: str
    points: Sequence[tuple[float, float]]
    style: int = 0


@dataclass(frozen=True)
class Panel:
    """A pair of axes: lines over [low, high] of `unit`; spans that are shaded (in a colour), places that are marked.

    `least` is the smallest span of the y axis: what differs by less looks flat.
    """

    title: str
    lines: Sequence[Line]
    low: float
    high: float
    unit: str
    shaded: Sequence[tuple[float, float]] = ()
    marked: Sequence[float] = ()
    shade: str = SHADE
    least: float = 0.0


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers between two: steps of 1, 2 or 5 and a power of ten, about so many."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= about + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


@dataclass(frozen=True)
class _Axis:
    """Where values lie, to the right of the labels, none of which is cut unless it is very long."""

    left: float
    low: float
    high: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return self.left + WIDE * share

    def label(self, y: float, content: str) -> str:
        return text(self.left - 10, y, content, "end", room=self.left - 20)


def _axis(labels: Iterable[str], low: float, high: float) -> _Axis:
    longest = max(map(len, labels), default=0)
    return _Axis(min(max(LEFT, 22 + CHARACTER * longest), LONGEST_LEFT), low, high)


def dots(title: str, bars: Sequence[Bar], low: float, high: float, step: float) -> Drawing:
    """A dot a line with its interval; with `inner`, a box from quartile to quartile.

    The axis goes from `low` to `high` in steps, and by whole steps further where values or intervals lie outside.
    """
    ends = [end for bar in bars for end in (bar.value, bar.low, bar.high) if end is not None and math.isfinite(end)]
    first = math.floor(round(min([low, *ends]) / step, 6))
    last = math.ceil(round(max([high, *ends]) / step, 6))
    axis = _axis((bar.label for bar in bars), first * step, last * step)
    drawn = []
    for i, bar in enumerate(bars):
        y, colour = TOP + LINE * (i + 0.5), COLOURS[bar.colour % len(COLOURS)]
        drawn.append(axis.label(y + 4, bar.label))
        if bar.low is not None and bar.high is not None:
            drawn.append(line(axis(bar.low), y, axis(bar.high), y, colour, 2))
        if bar.inner:
            start, end = (axis(edge) for edge in bar.inner)
            drawn.append(box(start, y - 7, end - start, 14, colour, 0.35))
        drawn.append(f'<circle cx="{axis(bar.value):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        drawn.append(text(axis.left + WIDE + 12, y + 4, f"{bar.value:.2f}", colour=GREY))
    description = "; ".join(f"{bar.label}: {bar.value:.2f}" for bar in bars)
    return _frame(title, len(bars), [number * step for number in range(first, last + 1)], axis, drawn, description)


def bars(title: str, several: Sequence[Bar], high: float, ticks: Sequence[float]) -> Drawing:
    """A bar a line, from 0 to `high` or to the longest of them: shares, told in per cent."""
    axis = _axis((bar.label for bar in several), 0, max([high, *(bar.value for bar in several)]))
    drawn = []
    for i, bar in enumerate(several):
        y, colour = TOP + LINE * i, COLOURS[bar.colour % len(COLOURS)]
        drawn.append(axis.label(y + LINE / 2 + 4, bar.label))
        width = axis(bar.value) - axis.left
        drawn.append(box(axis.left, y + 4, width, LINE - 8, colour))
        drawn.append(text(axis.left + width + 6, y + LINE / 2 + 4, f"{bar.value:.1%}", colour=GREY))
    description = "; ".join(f"{bar.label}: {bar.value:.1%}" for bar in several)
    return _frame(title, len(several), ticks, axis, drawn, description, lambda tick: f"{100 * tick:g} %")


def spans(title: str, rows: Sequence[Spans], seconds: float) -> Drawing:
    """Spans of time a line, on one axis from 0 to so many seconds."""
    axis = _axis((row.label for row in rows), 0, seconds)
    drawn = []
    for i, row in enumerate(rows):
        y = TOP + LINE * i
        drawn.append(axis.label(y + LINE / 2 + 4, row.label))
        drawn.append(line(axis.left, y + LINE / 2, axis.left + WIDE, y + LINE / 2))
        for start, end in row.spans:
            x = axis(start)
            drawn.append(box(x, y + 5, max(1.5, axis(end) - x), LINE - 10, row.colour or SHADE))
        drawn.append(text(axis.left + WIDE + 6, y + LINE / 2 + 4, row.note, colour=GREY))
    descriptions = [f"{row.label}: {_in_words(row.spans)}{f', {row.note}' if row.note else ''}" for row in rows]
    return _frame(title, len(rows), ticks(0, seconds, 8), axis, drawn, "; ".join(descriptions), "{:g} s".format)


def _in_words(several: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{start:.1f} to {end:.1f} s" for start, end in several) or "none"


def _frame(
    title: str,
    lines: int,
    ticks: Sequence[float],
    axis: _Axis,
    drawn: list[str],
    description: str,
    told: Callable[[float], str] = "{:g}".format,
) -> Drawing:
    """The chart with its ticks below it."""
    below = TOP + lines * LINE + 4
    grid = []
    for tick in ticks:
        x = axis(tick)
        grid += [line(x, TOP - 6, x, below), text(x, below + 15, told(round(tick, 6)), "middle", GREY)]
    width = round(axis.left) + WIDE + ROOM
    return Drawing(title, width, TOP + lines * LINE + 26, [*grid, *drawn], description)


def panels(title: str, several: Sequence[Panel], columns: int, height: int = 150, legend: bool = False) -> Drawing:
    """Panels in rows of so many; with `legend`, what each style stands for below them."""
    width = (WIDTH - GAP) / columns
    body: list[str] = []
    for number, panel in enumerate(several):
        body += draw_panel(panel, number % columns * width, number // columns * height, width, height)
    rows = -(-len(several) // columns)
    labels = {drawn.style: drawn.label for panel in several for drawn in panel.lines} if legend else {}
    for place, (style, label) in enumerate(labels.items()):
        y = rows * height + 8 + 18 * place
        body.append(line(MARGIN, y, MARGIN + 34, y, COLOURS[style % len(COLOURS)], 2.5, DASHES[style % len(DASHES)]))
        body.append(text(MARGIN + 42, y + 4, label, room=WIDTH - MARGIN - 50))
    return Drawing(title, WIDTH, rows * height + 18 * len(labels) + 10, body, "; ".join(map(_described, several)))


def draw_panel(panel: Panel, left: float, top: float, width: float, height: float) -> list[str]:
    """A panel's SVG in a rectangle of this size."""
    x0, x1, y0, y1 = left + MARGIN, left + width - 6, top + height - FOOT, top + HEAD
    values = [y for drawn in panel.lines for _, y in drawn.points if math.isfinite(y)]
    low, high = _padded(values, panel.least)
    scale_x = (x1 - x0) / ((panel.high - panel.low) or 1.0)
    scale_y = (y1 - y0) / (high - low)

    def place(x: float, y: float) -> tuple[float, float]:
        return x0 + (min(max(x, panel.low), panel.high) - panel.low) * scale_x, y0 + (y - low) * scale_y

    body = [text(x0, top + 15, panel.title, room=width - MARGIN, weight="600")]
    for start, end in panel.shaded:
        first, last = place(start, low)[0], place(end, low)[0]
        body.append(
            box(first, y1, max(1.5, last - first), y0 - y1, panel.shade, 0.55 if panel.shade == SHADE else 0.18)
        )
    for tick in ticks(low, high):
        y = place(0, tick)[1]
        body += [line(x0, y, x1, y), text(x0 - 5, y + 4, f"{tick:g}", "end", GREY)]
    for tick in ticks(panel.low, panel.high, max(2, int((x1 - x0) / 45))):
        x = place(tick, low)[0]
        body += [line(x, y0, x, y0 + 4, GREY), text(x, y0 + 16, f"{tick:g}", "middle", GREY)]
    body.append(text(x1, y0 + 29, panel.unit, "end", GREY))
    body += [line(place(x, low)[0], y1, place(x, low)[0], y0, INK, 1, "3 3") for x in panel.marked]
    for drawn in panel.lines:
        colour, dashes = COLOURS[drawn.style % len(COLOURS)], DASHES[drawn.style % len(DASHES)]
        body += [path([place(*point) for point in run], colour, 2, dashes) for run in _finite(drawn.points)]
    return [*body, line(x0, y0, x1, y0, GREY)]


def _padded(values: Sequence[float], least: float) -> tuple[float, float]:
    """The axis of some values: a little more than they need, and than `least`."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    spare = max(0.0, least - (high - low)) / 2
    low, high = low - spare, high + spare
    room = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return (0.0 if 0 <= low < 0.3 * high else low - room), high + room


def _finite(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The runs of points that are numbers."""
    run: list[tuple[float, float]] = []
    for x, y in points:
        if math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _described(panel: Panel) -> str:
    """A panel in words: where each line begins and ends."""
    ends = [
        f"{drawn.label} from {drawn.points[0][1]:.4g} to {drawn.points[-1][1]:.4g}"
        for drawn in panel.lines
        if drawn.points
    ]
    shaded = f"; shaded: {_in_words(panel.shaded)}" if panel.shaded else ""
    return f"{panel.title}: {', '.join(ends)} over {panel.low:g} to {panel.high:g} {panel.unit}{shaded}"
