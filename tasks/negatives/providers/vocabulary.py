"""The words that provider `llama` considers for a slot, and the relations and terms that they occur in."""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.language_model import LanguageModel
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.text import wordnet
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.relations import Edge, Relation, Tokens, caption_relations, relations, smoothed

ATTESTED = 3.0  # preference for a word in a relation that the data set has or other captions have, for each relation
FREQUENT = 0.5  # weight of the log (at most 2) of a relation's smoothed count in the data set, added to the preference
PLACES = [Relation._fields.index(name) for name in ("head", "preposition", "dependent")]
MODIFIERS = ("compound", "amod")  # the arcs of words that form a term with the noun that follows them


class Words(NamedTuple):
    """The words that a slot may take, with the lemma and tokens of each, and whether the dictionary has it (`known`).

    `places` has the indices of the words by lemma; `first` is the first token of a word in its slot, `tokens` the
    number of its tokens there, and `missing` the first token of the word as an answer, in lower case after a blank.
    """

    texts: list[str]
    lemmas: list[str]
    places: dict[str, list[int]]
    first: NDArray[np.int64]
    tokens: NDArray[np.int64]
    missing: NDArray[np.int64]
    known: NDArray[np.bool_]


class Vocabulary:
    """The words that slots may take: the dictionary's, and with an open vocabulary English words that are one token."""

    def __init__(self, dictionary: Dictionary, model: LanguageModel, is_open: bool) -> None:
        self.dictionary, self.model = dictionary, model
        self.english = _english(model.tokenizer) if is_open else {}
        self._texts: dict[Any, list[str]] = {}
        self._words: dict[tuple[Any, bool], Words] = {}
        self._tokens = _tokens_seen(model.tokenizer)

    def texts(self, slot: Slot) -> list[str]:
        """Return the words that a slot may take, those of the dictionary first; a subject's slot takes no others."""
        if slot.kind not in self._texts:
            allowed, lemma = slot.allowed(self.dictionary), wordnet.lemma(slot.word, slot.primitive)
            others = () if slot.is_subject else self.english.get((slot.primitive, slot.tag), ())
            new = [word for word in others if word not in allowed.offer.index_of]
            self._texts[slot.kind] = allowed.words + [it for it in new if wordnet.lemma(it, slot.primitive) != lemma]
        return self._texts[slot.kind]

    def words(self, slot: Slot, left: str) -> Words:
        """Return the words that a slot may take as they stand after the text `left`."""
        key = (slot.kind, left.endswith(" "))
        if key not in self._words:
            texts, offer = self.texts(slot), slot.allowed(self.dictionary).offer
            # a blank belongs to the token of the word that follows it
            blank = " " * left.endswith(" ")
            first, tokens = self._first_tokens([f"{blank}{slot.surface(word)}" for word in texts])
            missing, _ = self._first_tokens([f" {word.lower()}" for word in texts])
            known = np.array([word in offer.index_of for word in texts], np.bool_)
            lemmas, places = [wordnet.lemma(word, slot.primitive) for word in texts], defaultdict[str, list[int]](list)
            for place, lemma in enumerate(lemmas):
                places[lemma].append(place)
            self._words[key] = Words(texts, lemmas, dict(places), first, tokens, missing, known)
        return self._words[key]

    def _first_tokens(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token of each text and its number of tokens."""
        new = [text for text in dict.fromkeys(texts) if text not in self._tokens]
        self._tokens |= {text: (ids[0], len(ids)) for text, ids in zip(new, self.model.tokens(new), strict=True)}
        pairs = np.array([self._tokens[text] for text in texts], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


class Context:
    """The relations of the data set and of captions, and WordNet's two-word terms ("soy sauce")."""

    def __init__(self, queries: Iterable[Tokens]) -> None:
        seen = Counter(chain.from_iterable(map(relations, queries)))
        self.captions, self.attested = _attested_by_captions(), _attested(seen)
        for relation, count in smoothed(seen).items():
            for place in PLACES if count > 1 else ():
                key, lemma = _around(relation, place), relation[place]
                lemmas, others = self.attested[key], self.captions.get(key, {})
                lemmas[lemma] = lemmas.get(lemma, others.get(lemma, 0.0)) + FREQUENT * min(log(count), 2.0)
        self.before, self.after = wordnet.terms(), defaultdict[str, set[str]](set)
        for noun, modifiers in self.before.items():
            for modifier in modifiers:
                self.after[modifier].add(noun)

    def relations(
        self, tokens: Tokens, edges: Sequence[Edge], words: Mapping[int, str], at: int
    ) -> list[Mapping[str, float]]:
        """Return the preferences for lemmas as token `at`, by its relations; `words` replace other tokens."""
        lemmas = [
            wordnet.lemma(words[i], t["primitive"] or "") if i in words else t["lemma"] for i, t in enumerate(tokens)
        ]
        found = list[Mapping[str, float]]()
        for edge in edges:
            if at in edge:
                case = lemmas[edge.preposition] if edge.preposition >= 0 else ""
                relation = Relation(lemmas[edge.head], edge.kind, case, lemmas[edge.dependent])
                key = _around(relation, edge.index(at))
                found.append(ChainMap(*(it[key] for it in (self.attested, self.captions) if key in it)))
        return [lemmas for lemmas in found if lemmas]

    def in_terms(self, tokens: Tokens, words: Mapping[int, str], at: int) -> Collection[str]:
        """Return the words that form a term with the word before or after token `at`, where `words` replace others."""

        def word(index: int) -> str:
            return words.get(index, tokens[index]["text"]).lower()

        if tokens[at]["dep"] in MODIFIERS:
            return self.before.get(wordnet.lemma(word(tokens[at]["head"]), "noun"), ())
        if at and tokens[at - 1]["dep"] == "compound" and tokens[at - 1]["head"] == at:
            return self.after.get(word(at - 1), ())
        return ()


@lru_cache(maxsize=1)
def _english(tokenizer: Any) -> dict[tuple[str, str], list[str]]:
    """Return the English words that are one token after a blank, by primitive and fine tag."""
    words: dict[tuple[str, str], list[str]] = {}
    for token in sorted(tokenizer.get_vocab()):
        word = token[1:]
        if token[:1] in "Ġ▁" and word.isascii() and word.isalpha() and word.islower():  # a blank and a word
            for form in wordnet.forms(word):
                words.setdefault(form, []).append(word)
    return words


@lru_cache(maxsize=1)
def _tokens_seen(tokenizer: Any) -> dict[str, tuple[int, int]]:
    """Return the first token and the number of tokens of each text that was asked for in this process, to add to."""
    return {}


def _attested(several: Iterable[Relation]) -> defaultdict[tuple[Any, ...], dict[str, float]]:
    """Return the preferences for lemmas, by the place of the lemma in a relation and the rest of the relation."""
    found = defaultdict[tuple[Any, ...], dict[str, float]](dict)
    for relation in several:
        for place in PLACES:
            found[_around(relation, place)][relation[place]] = ATTESTED
    return found


@cache
def _attested_by_captions() -> defaultdict[tuple[Any, ...], dict[str, float]]:
    return _attested(caption_relations())


def _around(relation: Relation, place: int) -> tuple[Any, ...]:
    """Return a place and the rest of a relation."""
    return place, *relation[:place], *relation[place + 1 :]
