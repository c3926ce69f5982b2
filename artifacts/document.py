"""A report as sections of text, tables and drawings: the same as markdown for the Prefect UI and as one HTML file.

What a report shows may come from anyone's data: nothing in it is taken for markup.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, Template
from markupsafe import Markup

from penumbra.artifacts.drawing import Drawing, printable
from penumbra.artifacts.markdown import bold, markdown_table, plain

TEMPLATE = Path(__file__).with_name("document.html")
NUMBER = re.compile(r"[-+−]?[\d,.]+( %)?$|–$")


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
