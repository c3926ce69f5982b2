"""A report as sections of text, tables and drawings: the same as markdown for the Prefect UI and as one HTML file.

What a report shows may come from anyone's data (a query, a video's id, a model's answer): nothing in it is taken for
markup, so that it can hold no script, link or image.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, Template
from markupsafe import Markup

from penumbra.artifacts.charts import Drawing, printable

MARKUP = re.compile(r"[\\*_`\[\]!~<>&@]|:(?=//)|(?<=www)\.|^[-+#=]")  # bars are `markdown_table`'s
TEMPLATE = Path(__file__).with_name("document.html")
NUMBER = re.compile(r"[-+−]?[\d,.]+( %)?$|–$")


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


@dataclass(frozen=True)
class Table:
    """A table of short texts; `caption` says what it shows."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A title, paragraphs, tables and drawings; each drawing is shown below its title. `folded`: at first hidden."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    drawings: Sequence[Drawing] = ()
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A report; `headline` is what who looks at it for a second is to see."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=list)
    headline: str = ""

    def markdown(self) -> str:
        """As the Prefect UI shows it: not indented, drawings as images. What is folded is left out."""
        blocks = [f"# {plain(self.title)}", *([bold(self.headline)] if self.headline else []), plain(self.lead)]
        for section in self.sections:
            if not section.folded:
                blocks += [f"## {plain(section.title)}", *map(plain, section.text)]
                for table in section.tables:
                    blocks += [bold(table.caption)] if table.caption else []
                    blocks.append(markdown_table(table.header, table.rows))
                for drawing in section.drawings:
                    blocks += [bold(drawing.title), drawing.image()]
        return "\n\n".join(blocks)

    def html(self) -> str:
        """As a page that needs no other file and runs no script."""
        return _template().render(document=self)


def _number(table: Table, column: int) -> bool:
    """Whether a column holds numbers, which stand below each other by their last digit."""
    cells = [str(row[column]) for row in table.rows]
    return bool(cells) and all(NUMBER.match(cell) for cell in cells)


def _text(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, finalize=_text, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = lambda drawing: Markup(drawing.svg())  # noqa: S704 (its texts are escaped)
    environment.tests["numbers"] = _number
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
