"""An interpolated Kneser-Ney trigram model (Chen & Goodman 1999, discount 0.75) that scores many slots at once.

Scores are sums, products and quotients of 64-bit floats in a fixed order, so the same text gives the same numbers on
every machine, which logarithms and exponentials would not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

DISCOUNT = 0.75
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NOTHING = -1  # the id of "no word", after the end of a sentence

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Order:
    """Discounted probabilities of one n-gram order, by key = context * V + word, and the mass that a context leaves."""

    keys: Ids
    values: Floats
    contexts: Ids
    left_over: Floats

    def lookup(self, keys: Ids) -> Floats:
        """Return the discounted probability of each key, 0 for an unseen key."""
        return find(self.keys, self.values, keys, 0.0)

    def back_off(self, contexts: Ids) -> Floats:
        """Return the mass left to the lower order, 1 for an unseen context."""
        return find(self.contexts, self.left_over, contexts, 1.0)


def find(sorted_keys: Ids, values: Floats, keys: Ids, default: float) -> Floats:
    """Return the value of each key, or the default for a key that `sorted_keys` lacks."""
    if not len(sorted_keys):
        return np.full(len(keys), default)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == keys, values[at], default)


def spans(starts: Ids, sizes: Ids) -> Ids:
    """Return the numbers start, start + 1, … of each span, one span after the other."""
    places: Ids = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    return places


def _order(keys: Ids, counts: Floats, size: int) -> _Order:
    contexts, first, seen = np.unique(keys // size, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    values = (counts - DISCOUNT) / np.repeat(totals, seen)
    return _Order(keys, values, contexts, DISCOUNT * seen / totals)


class Trigrams:
    """Counts of three words in a row; memory grows with the number of different trigrams, not with the text."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {UNKNOWN: 0, START: 1, END: 2}
        self.counts: dict[tuple[int, int, int], int] = {}
        self.sentences = 0

    def add(self, words: Iterable[str]) -> None:
        """Count the trigrams of a sentence."""
        ids = [1, 1, *(self.index.setdefault(word, len(self.index)) for word in words), 2]
        for trigram in zip(ids, ids[1:], ids[2:], strict=False):
            self.counts[trigram] = self.counts.get(trigram, 0) + 1
        self.sentences += 1


class KneserNey:
    """p(word | two words before), fitted to tokenised sentences."""

    def __init__(self, trigrams: Trigrams) -> None:
        self.index = trigrams.index
        self.size = size = len(self.index)
        grams = np.array(sorted(trigrams.counts), dtype=np.int64).reshape(-1, 3)
        counts = np.array([trigrams.counts[a, b, c] for a, b, c in grams.tolist()], dtype=np.float64)
        self.trigrams = grams
        self.third = _order((grams[:, 0] * size + grams[:, 1]) * size + grams[:, 2], counts, size)
        pairs, before = np.unique(grams[:, 1] * size + grams[:, 2], return_counts=True)
        self.pairs = pairs
        self.second = _order(pairs, before.astype(np.float64), size)
        continuations = np.bincount(pairs % size, minlength=size).astype(np.float64)
        seen = np.count_nonzero(continuations)
        left_over = DISCOUNT * seen / len(pairs)
        self.first: Floats = np.maximum(continuations - DISCOUNT, 0) / len(pairs) + left_over / size

    @classmethod
    def of(cls, sentences: Iterable[Iterable[str]]) -> "KneserNey":
        """Return the model of these sentences, each a sequence of words."""
        trigrams = Trigrams()
        for words in sentences:
            trigrams.add(words)
        return cls(trigrams)

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return word ids; 0 for an unknown word."""
        return [self.index.get(word, 0) for word in words]

    def bigram(self, v: Ids, w: Ids) -> Floats:
        """Return p(w | v), elementwise."""
        return self.second.lookup(v * self.size + w) + self.second.back_off(v) * self.first[w]

    def trigram(self, u: Ids, v: Ids, w: Ids) -> Floats:
        """Return p(w | u, v), elementwise."""
        context = u * self.size + v
        return self.third.lookup(context * self.size + w) + self.third.back_off(context) * self.bigram(v, w)

    def log_probability(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """Return the mean natural log-probability of a token of each sentence, the end of the sentence included."""
        sums, sizes = self.log_probabilities(sentences)
        return sums / sizes

    def log_probabilities(self, sentences: Sequence[Sequence[str]]) -> tuple[Floats, Floats]:
        """Return each sentence's natural log-probability and number of tokens, the end of the sentence included."""
        sizes = np.array([len(words) + 1 for words in sentences], dtype=np.int64)
        ends = np.cumsum(sizes)
        ids = np.array([i for words in sentences for i in (1, 1, *self.ids(words), 2)], dtype=np.int64)
        starts = ends - sizes + 2 * np.arange(len(sizes))  # two <s> stand before each sentence
        places = np.delete(np.arange(len(ids)), np.concatenate([starts, starts + 1]))
        sums = np.add.reduceat(np.log(self.trigram(ids[places - 2], ids[places - 1], ids[places])), ends - sizes)
        return (sums if len(sizes) else np.zeros(0)), sizes.astype(np.float64)


@dataclass(frozen=True)
class Rows:
    """Sparse rows of values over a class's words, one for each key; the last row is empty."""

    keys: Ids
    matrix: sparse.csr_matrix

    @classmethod
    def gather(cls, keys: Ids, columns: Ids, values: Floats, width: int) -> "Rows":
        """Return the rows with each value at its key and column."""
        distinct, rows = np.unique(keys, return_inverse=True)
        matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(distinct) + 1, width))
        return cls(distinct, matrix)

    def dense(self, keys: Ids) -> Floats:
        """Return the rows of these keys as an array (keys, width)."""
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        hit = self.keys[at] == keys if len(self.keys) else np.zeros(len(keys), dtype=bool)
        chosen = np.where(hit, at, len(self.keys))
        starts = self.matrix.indptr[chosen]
        sizes = self.matrix.indptr[chosen + 1] - starts  # ten times as fast as scipy's indexing for a few rows
        places = spans(starts, sizes)
        rows = np.zeros((len(keys), self.matrix.shape[1]))
        rows[np.repeat(np.arange(len(keys)), sizes), self.matrix.indices[places]] = self.matrix.data[places]
        return rows


@dataclass(frozen=True)
class SlotScorer:
    """Scores how well each word of one class fits between two words before (u, v) and two after (x, y).

    A score is p(w | u, v) * p(x | v, w) * p(y | w, x): the three factors of the sentence's probability that
    depend on the slot's word w.
    """

    model: KneserNey
    words: Ids

    @cached_property
    def columns(self) -> Ids:
        """The column of each of the model's words in the scores, -1 for words of other classes."""
        columns = np.full(self.model.size, -1, dtype=np.int64)
        columns[self.words] = np.arange(len(self.words))
        return columns

    def _rows(self, keys: Ids, words: Ids, values: Floats) -> Rows:
        columns = self.columns[words]
        mine = columns >= 0
        return Rows.gather(keys[mine], columns[mine], values[mine], len(self.words))

    @cached_property
    def _tables(self) -> dict[str, Rows]:
        model, size = self.model, self.model.size
        a, b, c = model.trigrams.T
        v, w = model.pairs // size, model.pairs % size
        cu, cv = model.third.contexts // size, model.third.contexts % size
        return {
            "after uv": self._rows(a * size + b, c, model.third.values),
            "between vx": self._rows(a * size + c, b, model.third.values),
            "before xy": self._rows(b * size + c, a, model.third.values),
            "after v": self._rows(v, w, model.second.values),
            "before x": self._rows(w, v, model.second.values),
            "left over vw": self._rows(cu, cv, model.third.left_over - 1),
            "left over wx": self._rows(cv, cu, model.third.left_over - 1),
        }

    def score(self, u: Ids, v: Ids, x: Ids, y: Ids) -> Floats:
        """Return scores (rows, words) of all the class's words in each row's context; y is NOTHING after the end."""
        model, size, tables = self.model, self.model.size, self._tables
        over_uv = model.third.back_off(u * size + v)[:, None]
        over_v = model.second.back_off(v)[:, None]
        scores = tables["after uv"].dense(u * size + v)
        scores += over_uv * (tables["after v"].dense(v) + over_v * model.first[self.words])
        lower = tables["before x"].dense(x) + model.second.back_off(self.words) * model.first[x][:, None]
        scores *= tables["between vx"].dense(v * size + x) + (1 + tables["left over vw"].dense(v)) * lower
        real = np.maximum(y, 0)
        last = tables["before xy"].dense(x * size + real)
        last += (1 + tables["left over wx"].dense(x)) * model.bigram(x, real)[:, None]
        last[y == NOTHING] = 1.0
        scores *= last
        return scores
