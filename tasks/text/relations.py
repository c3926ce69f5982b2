"""Selectional preferences: how often verbs occur with objects, places and manners in parsed sentences.

A relation is (head, kind, preposition, dependent) in lemmas. Both annotation schemes of English spaCy pipelines are
read: spaCy's own (dobj, prep, pobj) and Universal Dependencies (obj, obl, case). Counts are smoothed over similar
words (Dagan, Lee & Pereira 1999): the company of "cup" is evidence for "mug".
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[Mapping[str, Any]]
NOUNS, VERBS = ("NOUN", "PROPN"), ("VERB", "AUX")
PLAIN = {
    "dobj": "verb-object",
    "obj": "verb-object",
    "nsubj": "subject-verb",
    "nsubjpass": "subject-verb",
    "nsubj:pass": "subject-verb",
    "amod": "adjective-noun",
    "compound": "noun-noun",
    "advmod": "verb-adverb",
    "prt": "verb-adverb",
    "compound:prt": "verb-adverb",
}
CLASSES = {
    "verb-object": (VERBS, NOUNS),
    "subject-verb": (VERBS, NOUNS),
    "adjective-noun": (NOUNS, ("ADJ", "VERB")),
    "noun-noun": (NOUNS, (*NOUNS, "ADJ")),
    "verb-adverb": (VERBS, ("ADV", "ADP", "PART")),
}
NEIGHBOURS = 5  # similar words whose counts are shared
SHARE = 0.5  # of its count that a word of similarity 1 adds


class Edge(NamedTuple):
    """A relation as token indices of its sentence; `preposition` is -1 if there is none."""

    head: int
    kind: str
    preposition: int
    dependent: int


class Relation(NamedTuple):
    """A relation in lemmas; `preposition` is "" if there is none."""

    head: str
    kind: str
    preposition: str
    dependent: str


def edges(tokens: Tokens) -> list[Edge]:
    """Return the relations of a parsed sentence as token indices."""
    return [*_plain(tokens), *_prepositional(tokens)]


def _plain(tokens: Tokens) -> Iterator[Edge]:
    for place, token in enumerate(tokens):
        kind = PLAIN.get(token["dep"])
        if kind:
            head = tokens[token["head"]]
            heads, dependents = CLASSES[kind]
            if head["pos"] in heads and token["pos"] in dependents:
                yield Edge(token["head"], kind, -1, place)


def _prepositional(tokens: Tokens) -> Iterator[Edge]:
    """Yield verb-preposition-noun and noun-preposition-noun."""
    for place, token in enumerate(tokens):
        if token["pos"] not in NOUNS:
            continue
        if token["dep"] == "pobj":
            head = tokens[token["head"]]["head"]
            cases = [token["head"]]
        elif token["dep"].split(":")[0] in ("obl", "nmod"):
            head = token["head"]
            cases = [i for i, t in enumerate(tokens) if t["dep"] == "case" and t["head"] == place]
        else:
            continue
        pos = tokens[head]["pos"]
        side = "verb" if pos in VERBS else "noun" if pos in NOUNS else ""
        if side:
            yield from (Edge(head, f"{side}-preposition-noun", case, place) for case in cases)


def named(edge: Edge, lemmas: Sequence[str]) -> Relation:
    """Return the relation of an edge in a sentence with these lemmas."""
    preposition = lemmas[edge.preposition] if edge.preposition >= 0 else ""
    return Relation(lemmas[edge.head], edge.kind, preposition, lemmas[edge.dependent])


def relations(tokens: Tokens) -> list[Relation]:
    """Return the relations of a parsed sentence in lemmas."""
    lemmas = [token["lemma"] for token in tokens]
    return [named(edge, lemmas) for edge in edges(tokens)]


class Preferences:
    """Smoothed counts of relations: `counts` holds every relation whose count is above 0."""

    def __init__(self, seen: Counter[Relation]) -> None:
        self.seen = seen
        self.counts: dict[Relation, float] = defaultdict(float, self.seen)
        for place in (Relation._fields.index("dependent"), Relation._fields.index("head")):
            self._share(place)

    def _share(self, place: int) -> None:
        """Add to each relation a share of the counts that it has with a similar word in this field."""
        near = _neighbours(self.seen, place)
        for relation, count in sorted(self.seen.items()):
            before, after = relation[:place], relation[place + 1 :]
            for other, similarity in near.get(relation[place], ()):
                self.counts[Relation._make((*before, other, *after))] += SHARE * similarity * count


def _neighbours(seen: Counter[Relation], place: int) -> dict[str, list[tuple[str, float]]]:
    """Return the words with the most similar contexts for each word: cosines of positive PMI vectors."""
    from scipy import sparse

    items = sorted(seen.items())
    words = {word: i for i, word in enumerate(sorted({relation[place] for relation, _ in items}))}
    contexts: dict[tuple[str, ...], int] = {}
    rows = [words[relation[place]] for relation, _ in items]
    columns = [contexts.setdefault((*relation[:place], *relation[place + 1 :]), len(contexts)) for relation, _ in items]
    if not items:
        return {}
    values = np.array([count for _, count in items], dtype=np.float64)
    matrix = sparse.csr_matrix((values, (rows, columns)))
    total, by_word, by_context = values.sum(), matrix.sum(axis=1).A1, matrix.sum(axis=0).A1
    pmi = np.log(values * total / (by_word[rows] * by_context[columns]))
    matrix = sparse.csr_matrix((np.maximum(pmi, 0), (rows, columns)))
    lengths = np.sqrt(matrix.power(2).sum(axis=1).A1)
    matrix = sparse.diags(1 / np.maximum(lengths, 1e-9)) @ matrix
    return _nearest(matrix, list(words))


def _nearest(matrix: Any, names: list[str], block: int = 1024) -> dict[str, list[tuple[str, float]]]:
    nearest = {}
    for start in range(0, len(names), block):
        cosines: NDArray[np.float64] = (matrix[start : start + block] @ matrix.T).toarray()
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = 0.0
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
        for i, places in enumerate(best):
            nearest[names[start + i]] = [
                (names[j], round(float(cosines[i, j]), 6)) for j in places if cosines[i, j] > 0
            ]
    return nearest
