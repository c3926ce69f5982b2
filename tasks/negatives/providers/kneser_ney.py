"""An interpolated Kneser-Ney trigram model (Chen & Goodman 1999, discount 0.75) that scores many slots at once.

Scores are sums, products and quotients of 64-bit floats in a fixed order, so the same text gives the same numbers on
every machine; logarithms and exponentials could differ.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from penumbra.tasks.text.relations import Tokens

DISCOUNT = 0.75
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NOTHING = -1  # the id of "no word", after the end of a sentence

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class Order(NamedTuple):
    """Discounted probabilities of one n-gram order, by key = context * V + word, and each context's left-over mass."""

    keys: Ids
    values: Floats
    contexts: Ids
    left_over: Floats


def find(sorted_keys: Ids, values: NDArray[Any], keys: Ids, default: float) -> NDArray[Any]:
    """Return the value of each key, or the default for a key that `sorted_keys` lacks."""
    if not len(sorted_keys):
        return np.full(len(keys), default)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == keys, values[at], default)


def spans(starts: Ids, sizes: Ids) -> Ids:
    """Return the numbers start, start + 1, … of each span, one span after the other."""
    places: Ids = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    return places


def _order(keys: Ids, counts: Floats, size: int) -> Order:
    contexts, first, seen = np.unique(keys // size, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    values = (counts - DISCOUNT) / np.repeat(totals, seen)
    return Order(keys, values, contexts, DISCOUNT * seen / totals)


class Trigrams:
    """Counts of word trigrams; memory grows with the number of different trigrams, not with the text."""

    def __init__(self, sentences: Iterable[Iterable[str]] = ()) -> None:
        self.index: dict[str, int] = {UNKNOWN: 0, START: 1, END: 2}
        self.counts = Counter[tuple[int, int, int]]()
        for words in sentences:
            self.add(words)

    def add(self, words: Iterable[str]) -> None:
        ids = [1, 1, *(self.index.setdefault(word, len(self.index)) for word in words), 2]
        self.counts.update(zip(ids, ids[1:], ids[2:], strict=False))


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
        self.second = _order(pairs, before.astype(np.float64), size)
        continuations = np.bincount(pairs % size, minlength=size).astype(np.float64)
        seen = np.count_nonzero(continuations)
        left_over = DISCOUNT * seen / len(pairs)
        self.first: Floats = np.maximum(continuations - DISCOUNT, 0) / len(pairs) + left_over / size

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return word ids; 0 for an unknown word."""
        return [self.index.get(word, 0) for word in words]

    def bigram(self, v: Ids, w: Ids) -> Floats:
        """Return p(w | v), elementwise."""
        seen = find(self.second.keys, self.second.values, v * self.size + w, 0.0)
        return seen + find(self.second.contexts, self.second.left_over, v, 1.0) * self.first[w]

    def trigram(self, u: Ids, v: Ids, w: Ids) -> Floats:
        """Return p(w | u, v), elementwise."""
        context = u * self.size + v
        seen = find(self.third.keys, self.third.values, context * self.size + w, 0.0)
        return seen + find(self.third.contexts, self.third.left_over, context, 1.0) * self.bigram(v, w)

    def log_probability(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """Return the mean natural log-probability of a token of each sentence, the end of the sentence included."""
        if not sentences:
            return np.zeros(0)
        sizes = np.array([len(words) + 1 for words in sentences], dtype=np.int64)
        ids = np.array([i for words in sentences for i in (1, 1, *self.ids(words), 2)], dtype=np.int64)
        ends = np.cumsum(sizes)
        starts = ends - sizes + 2 * np.arange(len(sizes))  # two <s> stand before each sentence
        places = np.delete(np.arange(len(ids)), np.concatenate([starts, starts + 1]))
        logs = np.log(self.trigram(ids[places - 2], ids[places - 1], ids[places]))
        return np.asarray(np.add.reduceat(logs, ends - sizes) / sizes)


class Rows:
    """Sparse rows of values over a class's words, one for each key; the last row is empty."""

    def __init__(self, keys: Ids, columns: Ids, values: Floats, width: int) -> None:
        self.keys, rows = np.unique(keys, return_inverse=True)
        self.matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(self.keys) + 1, width))

    def dense(self, keys: Ids) -> Floats:
        """Return the rows of these keys as an array (keys, width)."""
        chosen = find(self.keys, np.arange(len(self.keys)), keys, len(self.keys))
        starts = self.matrix.indptr[chosen]
        sizes = self.matrix.indptr[chosen + 1] - starts  # ten times as fast as scipy's indexing for a few rows
        places = spans(starts, sizes)
        rows = np.zeros((len(keys), self.matrix.shape[1]))
        rows[np.repeat(np.arange(len(keys)), sizes), self.matrix.indices[places]] = self.matrix.data[places]
        return rows


class SlotScorer:
    """Scores how well each word of one class fits between two words before (u, v) and two after (x, y).

    A score is p(w | u, v) * p(x | v, w) * p(y | w, x): the three factors of the sentence's probability that
    depend on the slot's word w.
    """

    def __init__(self, model: KneserNey, words: Ids) -> None:
        self.model, self.words = model, words
        column_of = np.full(model.size, -1, dtype=np.int64)  # -1: a word of another class
        column_of[words] = np.arange(len(words))
        size, third, second = model.size, model.third, model.second
        a, b, c = model.trigrams.T
        v, w = second.keys // size, second.keys % size
        cu, cv = third.contexts // size, third.contexts % size
        self.tables: dict[str, Rows] = {}
        for name, keys, ids, values in (
            ("after uv", a * size + b, c, third.values),
            ("between vx", a * size + c, b, third.values),
            ("before xy", b * size + c, a, third.values),
            ("after v", v, w, second.values),
            ("before x", w, v, second.values),
            ("left over vw", cu, cv, third.left_over - 1),
            ("left over wx", cv, cu, third.left_over - 1),
        ):
            mine = column_of[ids] >= 0
            self.tables[name] = Rows(keys[mine], column_of[ids[mine]], values[mine], len(words))

    def score(self, u: Ids, v: Ids, x: Ids, y: Ids) -> Floats:
        """Return scores (rows, words) of all the class's words in each row's context; y is NOTHING after the end."""
        model, size, tables = self.model, self.model.size, self.tables
        second, third = model.second, model.third
        over_uv = find(third.contexts, third.left_over, u * size + v, 1.0)[:, None]
        over_v = find(second.contexts, second.left_over, v, 1.0)[:, None]
        scores = tables["after uv"].dense(u * size + v)
        scores += over_uv * (tables["after v"].dense(v) + over_v * model.first[self.words])
        lower = (
            tables["before x"].dense(x)
            + find(second.contexts, second.left_over, self.words, 1.0) * model.first[x][:, None]
        )
        scores *= tables["between vx"].dense(v * size + x) + (1 + tables["left over vw"].dense(v)) * lower
        real = np.maximum(y, 0)
        last = tables["before xy"].dense(x * size + real)
        last += (1 + tables["left over wx"].dense(x)) * model.bigram(x, real)[:, None]
        last[y == NOTHING] = 1.0
        scores *= last
        return scores


class Plausibility:
    """The mean natural log-probability of a text's tokens: the minimum of two models.

    Each model is fitted to the training queries of one half of the videos, so that one of them has not seen the query
    that a candidate was made from.
    """

    def __init__(self) -> None:
        self.halves = (Trigrams(), Trigrams())

    def add(self, vid: str, tokens: Tokens) -> None:
        """Add a query of a video to the half that the video belongs to."""
        half = self.halves[blake2b(vid.encode(), digest_size=1).digest()[0] % 2]
        half.add([token["text"].lower() for token in tokens])

    @cached_property
    def models(self) -> list[KneserNey]:
        """The models of both halves; they are fitted at first use, when all sentences are added."""
        return [KneserNey(half) for half in self.halves if half.counts]

    def score(self, texts: dict[str, list[str]]) -> dict[str, float]:
        """Return the mean log-probability of the tokens of each text, rounded; `texts` has the lower-cased tokens."""
        if not texts:
            return {}
        least = np.min([model.log_probability([*texts.values()]) for model in self.models], axis=0).round(4)
        return dict(zip(texts, map(float, least), strict=True))
