"""How well a class's words stand in a slot's relations, for many slots at once.

A word's score is the product, over the slot's relations, of p(word | the rest of the relation) / p(word), the first
smoothed towards the second: 1 where the rest says nothing, below it where others stand there.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from penumbra.tasks.negatives.providers.language_model import Floats, Ids, Rows, find
from penumbra.tasks.text.relations import CLASSES, Preferences, Relation

PRIOR = 1.0  # how many sightings the absence of any is worth
NONE = -1  # key of "no such relation"
KINDS = (*CLASSES, "verb-preposition-noun", "noun-preposition-noun")
ROLES = ("head", "preposition", "dependent")
T = TypeVar("T", int, Ids)
OTHERS = {"head": ("dependent", "preposition"), "preposition": ("head", "dependent"),
          "dependent": ("head", "preposition")}  # fmt: skip


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
    def by_lemma(self) -> dict[str, list[tuple[str, Relation, float]]]:
        """The relations that a lemma stands in, with its role in each."""
        relations: dict[str, list[tuple[str, Relation, float]]] = defaultdict(list)
        for relation, count in sorted(self.counts.items()):
            for role in ROLES:
                if getattr(relation, role):
                    relations[getattr(relation, role)].append((role, relation, count))
        return relations

    @cached_property
    def totals(self) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str, str], float], dict[int, float]]:
        """Sums of the counts: by role and kind, by role, kind and word, and by key."""
        all_of: dict[tuple[str, str], float] = defaultdict(float)
        of_word: dict[tuple[str, str, str], float] = defaultdict(float)
        of_key: dict[int, float] = defaultdict(float)
        for word, several in self.by_lemma.items():
            for role, relation, count in several:
                all_of[role, relation.kind] += count
                of_word[role, relation.kind, word] += count
                of_key[self.key_of(role, relation)] += count
        return all_of, of_word, of_key

    def key_of(self, role: str, relation: Relation) -> int:
        """The key of what a relation says of the word in a role."""
        first, second = self.ids([getattr(relation, other) for other in OTHERS[role]])
        return self.key(role, relation.kind, first, second)


@dataclass(frozen=True)
class Fit:
    """The scores of one class's words."""

    rows: Rows
    totals: Floats  # of each of the rows' keys

    @classmethod
    def of(cls, relation_index: RelationIndex, lemmas: Sequence[str]) -> "Fit":
        """Gather what the relations say of these lemmas, one a word of the class."""
        all_of, of_word, of_key = relation_index.totals
        keys, columns, values = [], [], []
        for column, lemma in enumerate(lemmas):
            for role, relation, count in relation_index.by_lemma.get(lemma, ()):
                keys.append(relation_index.key_of(role, relation))
                columns.append(column)
                values.append(count * all_of[role, relation.kind] / of_word[role, relation.kind, lemma])
        rows = Rows.gather(np.array(keys, dtype=np.int64), np.array(columns, dtype=np.int64), np.array(values),
                           len(lemmas))  # fmt: skip
        totals = np.array([of_key[int(key)] for key in rows.keys])
        return cls(rows, totals)

    def score(self, keys: Ids) -> Floats:
        """Scores (rows, words) for rows that each meet one key; `NONE` says nothing."""
        totals = find(self.rows.keys, self.totals, keys, 0.0)
        scores: Floats = (self.rows.dense(keys) + PRIOR) / (totals[:, None] + PRIOR)
        return scores
