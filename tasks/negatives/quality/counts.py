"""What is counted of negatives: the columns of `measures`, and of cosines, as numbers that are added up by video."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penumbra.artifacts.schemas import SCHEMAS
from penumbra.tasks.data.resampling import Floats, Ids
from penumbra.tasks.negatives.quality.measures import STAGE
from penumbra.tasks.negatives.quality.negative import Negative

PARAPHRASE = 0.90
SIMILARITY = "similarity"
TOTALS = ("false_negatives", "copies", "leaks", "held_out")  # how many, not which share
PLACES = ("qid", "level", "provider", "vid")
Numbers = NDArray[Any]


def is_total(metric: str) -> bool:
    """Whether a figure is a number of rows."""
    return metric.split(".", maxsplit=1)[0] in TOTALS


@dataclass(frozen=True)
class Column:
    """What was counted in each row, and out of how much; out of nothing where it is not known."""

    counted: Numbers
    out_of: Numbers


Columns = dict[str, Column]


def _share(hits: Numbers, known: Numbers | None = None) -> Column:
    return Column(hits, np.ones(len(hits), dtype=np.int8) if known is None else known)


def _numbers(rows: pa.Table, name: str) -> Numbers:
    """A column, 0 where it is null."""
    column = rows[name]
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    numbers: Numbers = pc.fill_null(column, 0).to_numpy()
    return numbers


def _there(rows: pa.Table, name: str) -> Numbers:
    """Whether a column has a value, 1 or 0."""
    there: Numbers = rows[name].is_valid().cast(pa.int8()).to_numpy()
    return there


def _of_words(measures: pa.Table) -> Columns:
    """What `measures` says of the words: template, vocabulary, length, slots."""
    slots = _numbers(measures, "slots")
    return {
        "template_kept": _share(_numbers(measures, "template_kept"), _there(measures, "template_kept")),
        "closed_vocabulary": _share(_numbers(measures, "closed_vocabulary")),
        "length": _share(_numbers(measures, "length")),
        "same_slot_class": Column(_numbers(measures, "same_slot_class"), slots),
        "equal_to_original": Column(_numbers(measures, "equal_to_original"), slots),
    }


def _of_equals(measures: pa.Table, tests: Sequence[str], labelled: bool) -> Columns:
    """What `measures` says of whom rows equal."""
    columns = {
        "copies": _share(_numbers(measures, "copy")),
        "false_negatives": _share(_numbers(measures, "false_negative")),
        "false_negatives.lemmatised": _share(_numbers(measures, "false_negative_lemmatised")),
    }
    if tests:
        trained, splits = _numbers(measures, "trained"), measures["test_splits"].combine_chunks()
        tested = (pc.list_value_length(splits).to_numpy(zero_copy_only=False) > 0).astype(np.int8)
        owners = pc.list_parent_indices(splits).to_numpy()
        columns["leaks"] = _share(tested * (1 - trained))
        columns["leaks.trained"] = _share(tested * trained)
        for split in tests:
            of_split = np.zeros(len(measures), dtype=np.int8)
            of_split[owners[pc.equal(splits.flatten(), split).to_numpy(zero_copy_only=False)]] = 1
            columns[f"leaks.{split}"] = _share(of_split * (1 - trained))
    if labelled:
        columns["held_out.compositions"] = _share(_numbers(measures, "held_out_composition"))
        columns["held_out.words"] = _share(_numbers(measures, "held_out_word"))
    return columns


def placed(rows: Sequence[Negative]) -> pa.Table:
    """The rows' places and cosines, as `measures` has them."""
    types = {name: SCHEMAS[STAGE].field(name).type for name in (*PLACES, SIMILARITY)}
    return pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in types.items()})


class Counts:
    """What was counted of some negatives, a column a metric; `videos` numbers the videos, and learns those of the rows.

    `rows` has their places (`qid`, `level`, `provider`, `vid`), and their fills (`words`) where these are counted.
    """

    def __init__(self, rows: pa.Table, columns: Columns, videos: dict[str, int]) -> None:
        self._levels = rows["level"].to_numpy()
        self._who, self.providers = _codes(rows["provider"])
        vids, several = _codes(rows["vid"])
        numbers = [videos.setdefault(vid, len(videos)) for vid in several]
        self._videos = np.array(numbers, dtype=np.int64)[vids] if len(rows) else np.zeros(0, dtype=np.int64)
        self._words = rows["words"] if "words" in rows.column_names else None
        self._columns = {name: column for name, column in columns.items() if column.out_of.any()}
        self._falls = self._hierarchy(rows) if SIMILARITY in self._columns else None

    def _hierarchy(self, rows: pa.Table) -> tuple[Ids, Ids, Floats]:
        """Of each query with several levels: provider or -1, video, and whether its cosines strictly fall."""
        queries = _codes(rows["qid"])[0]
        order = np.lexsort((self._levels, queries))  # stable: rows of one level stay as they come
        queries, who, videos = queries[order], self._who[order], self._videos[order]
        starts = np.flatnonzero(np.diff(queries, prepend=-1))
        sizes = np.diff(starts, append=len(rows))
        falls = np.diff(self._columns[SIMILARITY].counted[order], prepend=np.inf) < 0
        falls[starts] = True  # a query's first level has none before it
        alone = np.logical_and.reduceat(who == np.repeat(who[starts], sizes), starts)
        fall, several = np.logical_and.reduceat(falls, starts), sizes > 1
        providers = np.where(alone, who[starts], -1)
        return providers[several], videos[starts][several], fall[several].astype(np.float64)

    @property
    def metrics(self) -> list[str]:
        """What was counted."""
        return list(self._columns)

    @property
    def levels(self) -> list[int]:
        """The levels that there are."""
        return [int(level) for level in np.unique(self._levels)]

    def chosen(self, level: int, provider: str | None) -> NDArray[np.bool_]:
        """Which rows are of a level, and of one provider or of any."""
        mine: NDArray[np.bool_] = self._levels == level
        return mine if provider is None else mine & (self._who == self._number(provider))

    def _number(self, provider: str) -> int:
        return self.providers.index(provider) if provider in self.providers else -2

    def column(self, metric: str, level: int, provider: str | None) -> tuple[Ids, Floats, Floats]:
        """Videos, numerators and denominators of a metric at a level, of one provider or of all."""
        column = self._columns[metric]
        mine = self.chosen(level, provider) & (column.out_of > 0)
        return self._videos[mine], column.counted[mine].astype(np.float64), column.out_of[mine].astype(np.float64)

    def known(self, metric: str) -> int:
        """How many rows a metric is known of."""
        return int(np.count_nonzero(self._columns[metric].out_of)) if metric in self._columns else 0

    def falls(self, provider: str | None) -> tuple[Ids, Floats]:
        """Videos of the queries with several levels, and whether their cosines fall."""
        if self._falls is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        who, videos, falls = self._falls
        mine = np.full(len(who), True) if provider is None else who == self._number(provider)
        return videos[mine], falls[mine]

    def fills(self, level: int, provider: str | None) -> Counter[str]:
        """How often each word was filled in."""
        if self._words is None:
            return Counter()
        words = pc.list_flatten(self._words.filter(pa.array(self.chosen(level, provider))))
        return Counter({each["values"]: each["counts"] for each in pc.value_counts(words).to_pylist()})


def counts_of(measures: pa.Table, tests: Sequence[str], labelled: bool, videos: dict[str, int]) -> Counts:
    """All that the table says; `tests` are the test splits, `labelled` whether they say what is new."""
    return Counts(measures, _of_words(measures) | _of_equals(measures, tests, labelled), videos)


def equalities_of(measures: pa.Table, tests: Sequence[str], labelled: bool, videos: dict[str, int]) -> Counts:
    """Only whom rows equal."""
    return Counts(measures.select(PLACES), _of_equals(measures, tests, labelled), videos)


def nearness_of(rows: pa.Table, videos: dict[str, int]) -> Counts:
    """Cosines to the query, and which make a row a paraphrase, of the rows that have one."""
    rows = rows.filter(rows[SIMILARITY].is_valid())
    cosines = _numbers(rows, SIMILARITY)
    columns = {SIMILARITY: _share(cosines), "paraphrases": _share((cosines > PARAPHRASE).astype(np.int8))}
    return Counts(rows.select(PLACES), columns, videos)


def _codes(column: pa.ChunkedArray) -> tuple[Ids, list[str]]:
    """A number for each row's text, and the texts by number."""
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
