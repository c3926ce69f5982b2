"""Syntactic relations that fills introduce, and how many of them human text attests.

A relation is (head, kind, dependent) with lemmas from the dependency parse. An n-gram model lets "person wash a
picture" pass, for its neighbours fit; its verb-object relation does not. Both annotation schemes that English spaCy
pipelines use are read: spaCy's own (dobj, prep, pobj) and Universal Dependencies (obj, obl, case).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Relation = tuple[str, str, str]
Tokens = Sequence[Mapping[str, Any]]
NOUNS, VERBS = ("NOUN", "PROPN"), ("VERB", "AUX")
PLAIN = {
    "dobj": "verb-object", "obj": "verb-object",
    "nsubj": "subject-verb", "nsubjpass": "subject-verb", "nsubj:pass": "subject-verb",
    "amod": "adjective-noun", "compound": "noun-noun",
    "advmod": "verb-adverb", "prt": "verb-adverb", "compound:prt": "verb-adverb",
}  # fmt: skip
CLASSES = {
    "verb-object": (VERBS, NOUNS),
    "subject-verb": (VERBS, NOUNS),
    "adjective-noun": (NOUNS, ("ADJ", "VERB")),
    "noun-noun": (NOUNS, (*NOUNS, "ADJ")),
    "verb-adverb": (VERBS, ("ADV", "ADP", "PART")),
}


def relations(tokens: Tokens) -> set[Relation]:
    """The relations of a parsed sentence."""
    return set(_plain(tokens)) | set(_prepositional(tokens))


def _plain(tokens: Tokens) -> Iterator[Relation]:
    for token in tokens:
        kind = PLAIN.get(token["dep"])
        if kind:
            head = tokens[token["head"]]
            heads, dependents = CLASSES[kind]
            if head["pos"] in heads and token["pos"] in dependents:
                yield head["lemma"], kind, token["lemma"]


def _prepositional(tokens: Tokens) -> Iterator[Relation]:
    """Yield verb-preposition-noun and noun-preposition-noun, the preposition being a part of the kind."""
    for place, token in enumerate(tokens):
        if token["pos"] not in NOUNS:
            continue
        if token["dep"] == "pobj":
            preposition = tokens[token["head"]]
            head = tokens[preposition["head"]]
            cases = [preposition["lemma"]]
        elif token["dep"].split(":")[0] in ("obl", "nmod"):
            head = tokens[token["head"]]
            cases = [t["lemma"] for t in tokens if t["dep"] == "case" and t["head"] == place]
        else:
            continue
        side = "verb" if head["pos"] in VERBS else "noun" if head["pos"] in NOUNS else ""
        if side:
            yield from ((head["lemma"], f"{side}-{case}-noun", token["lemma"]) for case in cases)


def attested(negative: Tokens, positive: Tokens, human: set[Relation]) -> tuple[int, int]:
    """How many of the relations that the negative has and the positive lacks human text has, of how many."""
    fresh = relations(negative) - relations(positive)
    return len(fresh & human), len(fresh)


def relations_of_all(parsed: Iterable[Tokens]) -> set[Relation]:
    """Every relation of a text."""
    found: set[Relation] = set()
    for tokens in parsed:
        found |= relations(tokens)
    return found
