"""The table that a campaign prints."""

import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from penumbra.artifacts.markdown import markdown_table


@dataclass
class Row:
    """A row of the table; the subclasses add columns."""

    test: str
    cases: int = 0

    def is_good(self) -> bool:
        """Return whether every figure that must be 0 is 0."""
        raise NotImplementedError


def print_table(rows: Sequence[Row], decimals: int) -> int:
    """Print the rows in Markdown; return 1 if one of them is not good."""
    names = [field.name.replace("_", " ") for field in fields(rows[0])]
    cells = [
        [f"{cell:.{decimals}f}" if isinstance(cell, float) else str(cell) for cell in astuple(row)] for row in rows
    ]
    sys.stdout.write(markdown_table(names, cells, str) + "\n")
    return not all(row.is_good() for row in rows)
