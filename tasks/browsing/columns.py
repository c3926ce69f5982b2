"""Columns, as the page has them.

A table that has several rows a query, or none, says in `count` how many rows each query has, in the queries' order. A
column whose values come up often is `coded`: its distinct values, and for each row the place of its own among them.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

Column = dict[str, Any]
Row = dict[str, Any]


def coded(values: Iterable[Any]) -> Column:
    """A column by its distinct values."""
    places: dict[Any, int] = {}
    codes = [places.setdefault(value, len(places)) for value in values]
    return {"values": list(places), "codes": codes}


def by_query(rows: Iterable[Row], places: Mapping[str, int]) -> tuple[list[int], list[Row]]:
    """How many rows each query has, and the rows in the queries' order; those of no query are left out."""
    known = sorted((row for row in rows if row["qid"] in places), key=lambda row: places[row["qid"]])
    count = [0] * len(places)
    for row in known:
        count[places[row["qid"]]] += 1
    return count, known


def whole(value: float | None, scale: int) -> int | None:
    """A figure as a whole number of parts; None where it is unknown, or no number."""
    return None if value is None or not isfinite(value) else round(value * scale)
