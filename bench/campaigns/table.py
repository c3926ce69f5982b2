"""The table that a campaign prints."""

import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import ClassVar, NoReturn

from penumbra.artifacts.markdown import markdown_table


@dataclass
class Row:
    """A row of the table; the subclasses add columns, of which those in `ZERO` must be 0."""

    ZERO: ClassVar[tuple[str, ...]]
    test: str
    cases: int = 0


def print_table(rows: Sequence[Row], decimals: int) -> NoReturn:
    """Print the rows in Markdown; exit with 1 if a figure that must be 0 is not."""
    names = [field.name.replace("_", " ") for field in fields(rows[0])]
    cells = [[f"{it:.{decimals}f}" if isinstance(it, float) else str(it) for it in astuple(row)] for row in rows]
    print(markdown_table(names, cells, str))
    sys.exit(any(getattr(row, name) for row in rows for name in row.ZERO))
