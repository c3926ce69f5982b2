"""How well a class's words stand in a slot's relations, for many slots at once.

A word's score is the product, over the slot's relations, of p(word | the rest of the relation) / p(word), the first
smoothed towards the second: 1 where the rest says nothing, below it where others stand there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from penumbra.tasks.negatives.providers.language_model import Floats, Ids, Rows, find, spans
from penumbra.tasks.text.relations import CLASSES, Preferences

PRIOR = 1.0  # how many sightings the absence of any is worth
NONE = -1  # key of "no such relation"
KINDS = (*CLASSES, "verb-preposition-noun", "noun-preposition-noun")
ROLES = ("head", "preposition", "dependent")
T = TypeVar("T", int, Ids)
OTHERS = {
    "head": ("dependent", "preposition"),
    "preposition": ("head", "dependent"),
    "dependent": ("head", "preposition"),
}


class RelationIndex:
    """Numbers for lemmas, and for what a relation says of a word in one of its roles."""

    def __init__(self, preferences: Preferences) -> None:
        self.counts = preferences.counts
        lemmas = {
            word for relation in self.counts for word in (relation.head, relation.preposition, relation.dependent)
        }
        self.index = {word: i for i, word in enumerate(sorted(lemmas | {""}), 1)}
        self.size = len(self.index) + 1

    def ids(self, lemmas: Sequence[str]) -> list[int]:
        """Numbers of lemmas; 0 for one that stands in no relation."""
        return [self.index.get(lemma, 0) for lemma in lemmas]

    def key(self, role: str, kind: str, first: T, second: T) -> T:
        """The number of what a word in this role meets: the relation's other two words, in the order of `OTHERS`."""
        place = ROLES.index(role) * len(KINDS) + KINDS.index(kind)
        return (place * self.size + first) * self.size + second

    @cached_property
    def sightings(self) -> "_Sightings":
        """What the relations say of the words in them."""
        relations, kinds = sorted(self.counts.items()), {kind: number for number, kind in enumerate(KINDS)}
        kind = np.array([kinds[relation.kind] for relation, _ in relations], dtype=np.int64)
        counts = np.array([count for _, count in relations], dtype=np.float64)
        words = {
            role: np.array(self.ids([getattr(relation, role) for relation, _ in relations]), dtype=np.int64)
            for role in ROLES
        }
        columns = []
        for number, role in enumerate(ROLES):
            there = words[role] != self.index[""]
            place, (first, second) = number * len(KINDS) + kind[there], (words[other][there] for other in OTHERS[role])
            columns.append((words[role][there], place, (place * self.size + first) * self.size + second, counts[there]))
        return _Sightings.of(*(np.concatenate(several) for several in zip(*columns, strict=True)))


@dataclass(frozen=True)
class _Sightings:
    """One row a relation and word in it, sorted by word."""

    lemmas: Ids
    keys: Ids  # what it meets there
    values: Floats  # its count, as a multiple of what its share of the role and kind lets one expect of each
    met: Ids  # the keys, each once
    totals: Floats  # of each of these

    @classmethod
    def of(cls, lemmas: Ids, places: Ids, keys: Ids, counts: Floats) -> "_Sightings":
        """The rows, whose places are numbers of a role and kind."""
        order = np.argsort(lemmas, kind="stable")
        lemmas, places, keys, counts = lemmas[order], places[order], keys[order], counts[order]
        all_of = np.bincount(places, counts)
        _, same = np.unique(lemmas * len(all_of) + places, return_inverse=True)
        met, key = np.unique(keys, return_inverse=True)
        values = counts * all_of[places] / np.bincount(same, counts)[same]
        return cls(lemmas, keys, values, met, np.bincount(key, counts).astype(np.float64))


@dataclass(frozen=True)
class Fit:
    """The scores of one class's words."""

    rows: Rows
    totals: Floats  # of each of the rows' keys

    @classmethod
    def of(cls, relation_index: RelationIndex, lemmas: Sequence[str]) -> "Fit":
        """Gather what the relations say of these lemmas, one a word of the class."""
        ids, of = np.array(relation_index.ids(lemmas), dtype=np.int64), relation_index.sightings
        starts, ends = (np.searchsorted(of.lemmas, ids, side) for side in ("left", "right"))
        some, columns = spans(starts, ends - starts), np.repeat(np.arange(len(ids)), ends - starts)
        rows = Rows.gather(of.keys[some], columns, of.values[some], len(lemmas))
        return cls(rows, find(of.met, of.totals, rows.keys, 0.0))

    def score(self, keys: Ids) -> Floats:
        """Scores (rows, words) for rows that each meet one key; `NONE` says nothing."""
        totals = find(self.rows.keys, self.totals, keys, 0.0)
        scores: Floats = (self.rows.dense(keys) + PRIOR) / (totals[:, None] + PRIOR)
        return scores
