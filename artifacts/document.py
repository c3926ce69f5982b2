"""A report of sections with text, tables and drawings, as markdown for the Prefect UI and as one HTML file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from penumbra.artifacts.charts import Drawing
from penumbra.artifacts.markdown import bold, markdown_table, plain, printable

TEMPLATE = Path(__file__).with_name("document.html")
NUMBER = re.compile(r"[-+−]?[\d,.]+( %)?$|–$")


class Table(NamedTuple):
    """A table of short texts, with a caption."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""


class Section(NamedTuple):
    """A title, paragraphs, tables and drawings. A `folded` section is hidden at first."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    drawings: Sequence[Drawing] = ()
    folded: bool = False


class Document(NamedTuple):
    """A report. The headline is its result in a sentence, the lead its first paragraph."""

    title: str
    lead: str
    sections: Sequence[Section] = ()
    headline: str = ""

    def markdown(self) -> str:
        """Return the report for the Prefect UI: not indented, drawings as images, without folded sections."""
        blocks = [f"# {plain(self.title)}", *([bold(self.headline)] if self.headline else []), plain(self.lead)]
        for section in self.sections:
            if section.folded:
                continue
            blocks += [f"## {plain(section.title)}", *map(plain, section.text)]
            for table in section.tables:
                blocks += [bold(table.caption)] if table.caption else []
                blocks.append(markdown_table(table.header, table.rows))
            for drawing in section.drawings:
                blocks += [bold(drawing.title), drawing.image()]
        return "\n\n".join(blocks)

    def html(self) -> str:
        """Return a page that needs no other file and runs no script."""
        environment = Environment(
            autoescape=True,
            finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["drawn"] = lambda drawing: Markup(drawing.svg())  # noqa: S704 (its texts are escaped)
        environment.tests["numbers"] = lambda table, column: (  # such a column is aligned at the right
            bool(table.rows) and all(NUMBER.match(str(row[column])) for row in table.rows)
        )
        return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(document=self)
