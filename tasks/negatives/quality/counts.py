"""What can be counted of each negative alone: its template, its words, its slots, and whom it equals."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.data.resampling import Floats, Ids
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.reference import Reference
from penumbra.tasks.negatives.quality.texts import fills_of, normal_form, words_of

PARAPHRASE = 0.90
SIMILARITY = "similarity"
TOTALS = ("false_negatives", "copies", "leaks", "held_out")  # how many, not which share
Pair = tuple[float, float]  # what is counted, and out of how much


def is_total(metric: str) -> bool:
    """Whether a figure is a number of rows."""
    return metric.split(".", maxsplit=1)[0] in TOTALS


def _share(hit: bool) -> Pair:
    return float(hit), 1.0


def template(row: Negative, fills: Sequence[str] | None) -> dict[str, Pair]:
    """Whether the words outside the masks are unchanged, with one word a mask."""
    return {"template_kept": _share(fills is not None)} if row.masked is not None else {}


def vocabulary(row: Negative, reference: Reference) -> dict[str, Pair]:
    """Whether the training split has every word, and how many words there are."""
    words = words_of(row.negative)
    return {
        "closed_vocabulary": _share(all(word in reference.vocabulary for word in words)),
        "length": (len(words), 1.0),
    }


def slots(row: Negative, fills: Sequence[str] | None, reference: Reference) -> dict[str, Pair]:
    """Of the fills: how many the training split has under their slot's class and fine tag, how many change nothing."""
    masked_slots = reference.slots(row)
    if not fills or not masked_slots or len(fills) != len(masked_slots):
        return {}
    pairs = list(zip(fills, masked_slots, strict=True))
    fitting = sum(fill in reference.dictionary.offer(slot.primitive, slot.tag).places for fill, slot in pairs)
    same = sum(fill == slot.word.lower() for fill, slot in pairs)
    return {"same_slot_class": (fitting, len(pairs)), "equal_to_original": (same, len(pairs))}


def equals(row: Negative, reference: Reference) -> dict[str, Pair]:
    """Whether it equals its own query, another positive of the same video, or a query of a test split."""
    form, own = normal_form(row.negative), normal_form(row.positive)
    others, others_lemmatised = reference.positives_of(row.vid)
    lemmatised = reference.lemmatised(row.negative)
    measures = {
        "copies": _share(form == own),
        "false_negatives": _share(form != own and form in others),
        "false_negatives.lemmatised": _share(
            lemmatised in others_lemmatised or lemmatised == reference.lemmatised(row.positive)
        ),
    }
    if reference.tests:
        tested = any(form in forms for forms in reference.tests.values())
        trained = form in reference.trained
        measures["leaks"] = _share(tested and not trained)
        measures["leaks.trained"] = _share(tested and trained)
        measures |= {f"leaks.{s}": _share(form in forms and not trained) for s, forms in reference.tests.items()}
    if reference.labelled:
        lemmas = reference.lemmas(row.negative)
        measures["held_out.compositions"] = _share(reference.held_out.pair_in(lemmas))
        measures["held_out.words"] = _share(reference.held_out.word_in(lemmas))
    return measures


def nearness(similarity: float) -> dict[str, Pair]:
    """Cosine to the query, and whether that makes it a paraphrase."""
    return {SIMILARITY: (similarity, 1.0), "paraphrases": _share(similarity > PARAPHRASE)}


def measure(row: Negative, reference: Reference) -> tuple[dict[str, Pair], Sequence[str]]:
    """All that a negative's text says, and its fills."""
    fills = fills_of(row.masked, row.negative) if row.masked is not None else None
    measures = template(row, fills) | vocabulary(row, reference) | slots(row, fills, reference)
    return measures | equals(row, reference), fills or ()


class _Column:
    """The rows that a metric is known of, what was counted in each, and out of how much.

    There are millions of rows. Small whole numbers, which all but the cosines are, are the same in half the bytes.
    """

    def __init__(self, metric: str) -> None:
        self.at, self.denominators = array("i"), array("f")
        self.numerators = array("d" if metric == SIMILARITY else "f")

    def put(self, place: int, pair: Pair) -> None:
        self.at.append(place)
        self.numerators.append(pair[0])
        self.denominators.append(pair[1])


class Counts:
    """What was counted of all negatives, a column a metric; `videos` numbers the videos."""

    def __init__(self, reference: Reference, videos: dict[str, int]) -> None:
        self.reference, self.videos = reference, videos
        self.fills: dict[tuple[int, str], Counter[str]] = {}
        self.strangers = 0  # rows whose query the data set lacks
        self._providers: dict[str, int] = {}
        self._rows = array("i"), array("i"), array("i")  # level, provider, video
        self._falls = array("i"), array("i"), array("f")  # provider or -1, video, whether it falls
        self._columns: dict[str, _Column] = {}

    def add(self, rows: Iterable[Negative]) -> None:
        """Count what the rows' texts say."""
        for row in rows:
            measures, fills = measure(row, self.reference)
            self.fills.setdefault((row.level, row.provider), Counter()).update(fills)
            self._put(row, measures)
            self.strangers += row.positive not in self.reference.positives.get(row.vid, ())

    def add_equalities(self, rows: Iterable[Negative]) -> None:
        """Count only whom the rows equal."""
        for row in rows:
            self._put(row, equals(row, self.reference))

    def add_nearness(self, rows: Iterable[Negative]) -> None:
        """Count what the rows' cosines say; all levels of a query come together."""
        queries: dict[str, list[Negative]] = {}
        for row in rows:
            if row.similarity is not None:
                self._put(row, nearness(row.similarity))
                queries.setdefault(row.qid, []).append(row)
        for levels in queries.values():
            self._hierarchy(sorted(levels, key=lambda row: row.level))

    def _put(self, row: Negative, measures: dict[str, Pair]) -> None:
        place = len(self._rows[0])
        provider = self._providers.setdefault(row.provider, len(self._providers))
        video = self.videos.setdefault(row.vid, len(self.videos))
        for column, value in zip(self._rows, (row.level, provider, video), strict=True):
            column.append(value)
        for metric, pair in measures.items():
            self._columns.setdefault(metric, _Column(metric)).put(place, pair)

    def _hierarchy(self, levels: Sequence[Negative]) -> None:
        """Note whether a query's cosines strictly fall from level to level."""
        cosines = [row.similarity or 0.0 for row in levels]
        if len(levels) > 1:
            several = len({row.provider for row in levels}) > 1
            self._falls[0].append(-1 if several else self._providers[levels[0].provider])
            self._falls[1].append(self.videos[levels[0].vid])
            self._falls[2].append(all(a > b for a, b in pairwise(cosines)))

    @property
    def metrics(self) -> list[str]:
        """What was counted."""
        return list(self._columns)

    @property
    def providers(self) -> list[str]:
        """Who made the negatives."""
        return sorted(self._providers)

    @property
    def levels(self) -> list[int]:
        """The levels that there are."""
        return sorted(set(self._rows[0]))

    def chosen(self, level: int, provider: str | None) -> NDArray[np.bool_]:
        """Which rows are of a level, and of one provider or of any."""
        levels, providers = (np.array(column) for column in self._rows[:2])
        mine: NDArray[np.bool_] = levels == level
        return mine if provider is None else mine & (providers == self._providers.get(provider, -2))

    def column(self, metric: str, level: int, provider: str | None) -> tuple[Ids, Floats, Floats]:
        """Videos, numerators and denominators of a metric at a level, of one provider or of all."""
        column = self._columns[metric]
        at = np.array(column.at)
        mine = self.chosen(level, provider)[at]
        videos, numerators, denominators = np.array(self._rows[2])[at], column.numerators, column.denominators
        counted = (np.array(values)[mine].astype(np.float64) for values in (numerators, denominators))
        return videos[mine].astype(np.int64), *counted

    def known(self, metric: str) -> int:
        """How many rows a metric is known of."""
        return len(self._columns[metric].at) if metric in self._columns else 0

    def falls(self, provider: str | None) -> tuple[Ids, Floats]:
        """Videos of the queries with several levels, and whether their cosines fall."""
        who, videos, falls = (np.array(column) for column in self._falls)
        mine = np.full(len(who), True) if provider is None else who == self._providers.get(provider, -2)
        return videos[mine].astype(np.int64), falls[mine].astype(np.float64)
