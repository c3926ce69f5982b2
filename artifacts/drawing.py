"""Pictures in SVG that need no other file: for the Prefect UI, for pages of our own, or as a file.

The UI sanitises inline SVG tag by tag, which leaves it empty; an image with a `data:` address it shows.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

GREY, INK, RULE = "#6b7280", "#3f4856", "#d5d9e0"
COLOURS = ("#3b82f6", "#8b5cf6", "#e0669a", "#64748b", "#c26a07", "#0d9488")
CHARACTER = 6.2  # pixels of a character of 12 pixels, on average
NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # a picture with one is not shown
NO_TITLE = re.compile(r"[\[\]()`\\!<>\s]+")  # what would end a markdown image's title, or its line


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
    shown = shortened(content, int(room / CHARACTER)) if room else content
    full = f"<title>{harmless(content)}</title>" if shown != content else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-family="sans-serif" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{harmless(shown)}{full}</text>'
    )


def shortened(content: str, most: int) -> str:
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
