"""Markdown, HTML, SVG and lines of a terminal from text of unknown origin.

A query, a video's id, a model's answer or an error may hold scripts, or links and images that a browser fetches. The
functions here escape it, so that nothing in it is markup.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

MARKUP = re.compile(r"[\\*_`\[\]!~<>&@]|:(?=//)|(?<=www)\.|^[-+#=]")  # `markdown_table` escapes bars
LONGEST_CELL = 160  # characters in a table
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NOT_PRINTABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML


def printable(content: str) -> str:
    """Return the text with the characters replaced that XML does not allow."""
    return NOT_PRINTABLE.sub("\N{REPLACEMENT CHARACTER}", content)


def for_terminal(content: str) -> str:
    """Return the text with control characters and those that reorder text replaced; line ends stay."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", content)


def harmless(content: str) -> str:
    return escape(printable(content))


def counted(number: int, unit: str) -> str:
    """Return a number and its unit, in the plural unless the number is 1: `1 pair`, `1,360 queries`."""
    if number == 1:
        return f"1 {unit}"
    if unit.endswith("y") and unit[-2] not in "aeou":
        return f"{number:,} {unit[:-1]}ies"
    return f"{number:,} {unit}{'es' if unit.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def truncated(content: str, most: int) -> str:
    """Return at most `most` characters of the text; the last one is `…` if any are left out."""
    return content if len(content) <= most else content[: max(0, most - 1)] + "…"


def cell_text(value: Any) -> str:
    return truncated(value_text(value), LONGEST_CELL)


def value_text(value: Any) -> str:
    """Return a value, nested or not, without brackets; a pair of numbers is a span ("0 to 4.2")."""
    if isinstance(value, dict):
        return " ".join(filter(None, map(value_text, value.values())))
    if isinstance(value, list):
        is_span = len(value) == 2 and all(isinstance(it, float) for it in value)
        return f"{value[0]:g} to {value[1]:g}" if is_span else ", ".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


class Markdown(str):
    """Text that is markdown already, and is not escaped again."""

    __slots__ = ()


def plain(text: str) -> Markdown:
    """Return the text as a part of markdown, in one line and without markup.

    It is escaped by backslashes, because the Prefect UI shows most character references (&#95;) literally.
    """
    if isinstance(text, Markdown):
        return text
    return Markdown(MARKUP.sub(r"\\\g<0>", printable(" ".join(text.split()))))


def bold(text: str) -> Markdown:
    return Markdown(f"**{plain(text)}**")


def code(text: str) -> Markdown:
    """Return the text as code, in one line; backticks in it do not end it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if len(fence) > 1 else ""
    return Markdown(f"{fence}{blank}{printable(' '.join(text.split()))}{blank}{fence}")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], cell: Callable[[str], str] = plain) -> str:
    """Return a markdown table; `cell` escapes each text (`str`: no escapes, for trusted text in a terminal)."""
    lines = []
    for row in (header, *rows):
        cells = [cell(it if isinstance(it, str) else str(it)).replace("|", "\\|").replace("\n", " ") for it in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])
