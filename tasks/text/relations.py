"""Selectional preferences: how often verbs occur with objects, places and manners in parsed sentences.

Both annotation schemes of English spaCy pipelines are read: spaCy's own (dobj, prep, pobj) and Universal Dependencies
(obj, obl, case). Counts are smoothed over words that occur in similar relations (Dagan, Lee & Pereira 1999).
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CAPTIONS = Path(__file__).with_name("relations.txt.gz")  # written by `workshop/relations.py`
Tokens = Sequence[Mapping[str, Any]]
NOUNS, VERBS = ("NOUN", "PROPN"), ("VERB", "AUX")
PLAIN = {
    **dict.fromkeys(("dobj", "obj"), "verb-object"),
    **dict.fromkeys(("nsubj", "nsubjpass", "nsubj:pass"), "subject-verb"),
    "amod": "adjective-noun",
    "compound": "noun-noun",
    **dict.fromkeys(("advmod", "prt", "compound:prt"), "verb-adverb"),
}
CLASSES = {
    "verb-object": (VERBS, NOUNS),
    "subject-verb": (VERBS, NOUNS),
    "adjective-noun": (NOUNS, ("ADJ", "VERB")),
    "noun-noun": (NOUNS, (*NOUNS, "ADJ")),
    "verb-adverb": (VERBS, ("ADV", "ADP", "PART")),
}
NEIGHBOURS = 5  # similar words whose counts are shared
BLOCK = 1024  # words that are compared with all others at once
SHARE = 0.5  # share of its count that a word adds to a word of similarity 1


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
    all_edges: list[Edge] = []
    for place, token in enumerate(tokens):
        kind, head = PLAIN.get(token["dep"]), tokens[token["head"]]
        if kind and head["pos"] in CLASSES[kind][0] and token["pos"] in CLASSES[kind][1]:
            all_edges.append(Edge(token["head"], kind, -1, place))
    for place, token in enumerate(tokens):  # verb-preposition-noun and noun-preposition-noun
        if token["pos"] not in NOUNS:
            continue
        if token["dep"] == "pobj":
            place_of_head, cases = tokens[token["head"]]["head"], [token["head"]]
        elif token["dep"].split(":")[0] in ("obl", "nmod"):
            place_of_head = token["head"]
            cases = [i for i, t in enumerate(tokens) if t["dep"] == "case" and t["head"] == place]
        else:
            continue
        pos = tokens[place_of_head]["pos"]
        side = "verb" if pos in VERBS else "noun" if pos in NOUNS else ""
        all_edges += [Edge(place_of_head, f"{side}-preposition-noun", case, place) for case in cases if side]
    return all_edges


def relations(tokens: Tokens) -> list[Relation]:
    """Return the relations of a parsed sentence in lemmas."""
    lemmas = [*(token["lemma"] for token in tokens), ""]  # the last one for an edge without a preposition
    return [Relation(lemmas[head], kind, lemmas[case], lemmas[place]) for head, kind, case, place in edges(tokens)]


def caption_relations() -> Iterator[Relation]:
    """Yield the relations of the sentences of ActivityNet Captions' training split (Krishna et al., ICCV 2017)."""
    for line in gzip.decompress(CAPTIONS.read_bytes()).decode().splitlines():
        head, kind, preposition, *dependents = line.split(" ")
        for dependent in dependents:
            yield Relation(head, kind, preposition.strip("-"), dependent)


def smoothed(seen: Counter[Relation]) -> dict[Relation, float]:
    """Return the smoothed counts above 0 of relations: each word adds a share of its counts to similar words."""
    counts: dict[Relation, float] = defaultdict(float, seen)
    for place in (Relation._fields.index("dependent"), Relation._fields.index("head")):
        near = _neighbours(seen, place)
        for relation, count in sorted(seen.items()):
            before, after = relation[:place], relation[place + 1 :]
            for other, similarity in near.get(relation[place], ()):
                counts[Relation._make((*before, other, *after))] += SHARE * similarity * count
    return counts


def _neighbours(seen: Counter[Relation], place: int) -> dict[str, list[tuple[str, float]]]:
    """Return the words with the most similar contexts for each word: cosines of positive PMI vectors."""
    from scipy import sparse

    items = sorted(seen.items())
    if not items:
        return {}
    words = {word: i for i, word in enumerate(sorted({relation[place] for relation, _ in items}))}
    contexts: dict[tuple[str, ...], int] = {}
    rows = [words[relation[place]] for relation, _ in items]
    columns = [contexts.setdefault((*relation[:place], *relation[place + 1 :]), len(contexts)) for relation, _ in items]
    values = np.array([count for _, count in items], dtype=np.float64)
    matrix = sparse.csr_matrix((values, (rows, columns)))
    total, by_word, by_context = values.sum(), matrix.sum(axis=1).A1, matrix.sum(axis=0).A1
    pmi = np.log(values * total / (by_word[rows] * by_context[columns]))
    matrix = sparse.csr_matrix((np.maximum(pmi, 0), (rows, columns)))
    lengths = np.sqrt(matrix.power(2).sum(axis=1).A1)
    matrix = sparse.diags(1 / np.maximum(lengths, 1e-9)) @ matrix
    nearest, names = {}, list(words)
    for start in range(0, len(names), BLOCK):
        cosines: NDArray[np.float64] = (matrix[start : start + BLOCK] @ matrix.T).toarray()
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = 0.0
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
        for i, places in enumerate(best):
            found = [(names[j], round(float(cosines[i, j]), 6)) for j in places if cosines[i, j] > 0]
            nearest[names[start + i]] = found
    return nearest
