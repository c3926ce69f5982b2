"""Text of unknown origin in the markdown that the Prefect UI shows: nothing in it is taken for markup.

A query, a video's id, a model's answer or an error may hold scripts, and links and images that a browser fetches.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from penumbra.artifacts.drawing import printable

MARKUP = re.compile(r"[\\*_`\[\]!~<>&@]|:(?=//)|(?<=www)\.|^[-+#=]")  # bars are `markdown_table`'s


class Markdown(str):
    """Text that is markdown already, and is not escaped again."""

    __slots__ = ()


def plain(text: str) -> Markdown:
    """Text of unknown origin as a part of markdown: one line, and nothing in it is markup.

    Backslashes and no character references (&#95;): the Prefect UI shows most of those as they are written.
    """
    if isinstance(text, Markdown):
        return text
    return Markdown(MARKUP.sub(r"\\\g<0>", printable(" ".join(text.split()))))


def bold(text: str) -> Markdown:
    """The same in bold."""
    return Markdown(f"**{plain(text)}**")


def code(text: str) -> Markdown:
    """Text of unknown origin as it is, in the type of programs: one line, and no backtick in it ends it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if len(fence) > 1 else ""
    return Markdown(f"{fence}{blank}{printable(' '.join(text.split()))}{blank}{fence}")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], cell: Callable[[str], str] = plain) -> str:
    """A GitHub-style table; `cell` makes a text harmless: `str` for words of our own, shown in a terminal, too."""
    lines = []
    for row in (header, *rows):
        cells = (cell(it if isinstance(it, str) else str(it)).replace("|", "\\|").replace("\n", " ") for it in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])
