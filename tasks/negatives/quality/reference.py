"""What negatives are judged by: the words, queries, labels and human text of a data set."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.quality.heldout import HeldOut, lemmas_of
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.texts import masked_tokens, normal_form, words_of
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.relations import Relation, relations

TRAINING = "train"
FOLDS = 5
Tokens = list[dict[str, Any]]
Annotated = Callable[[], Iterable[tuple[pa.Table, pa.Table]]]  # a data set's `annotations` and `tags`, part by part


@dataclass
class Human:
    """Text that people wrote: sentences for a language model, and the relations that they attest."""

    sentences: list[str] = field(default_factory=list)
    relations: set[Relation] = field(default_factory=set)

    def add(self, sentence: str, tokens: Tokens) -> None:
        """Add a parsed sentence."""
        self.sentences.append(sentence)
        self.relations.update(relations(tokens))


@dataclass
class Reference:
    """A data set as a judge sees it.

    `human` is text that the fillers did not draw from: the other splits' queries. Where a data set has none, it is
    five folds of its training queries, each judged by the other four; the fillers may have drawn from them.
    """

    dataset: str
    dictionary: Dictionary
    vocabulary: set[str] = field(default_factory=set)
    forms: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    positives: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    trained: set[str] = field(default_factory=set)
    held_out: HeldOut = field(default_factory=HeldOut)
    labelled: bool = False
    human: list[Human] = field(default_factory=list)
    training: dict[str, str] = field(default_factory=dict)  # qid to text
    videos: dict[str, str] = field(default_factory=dict)  # qid to video
    _parsed: dict[str, pa.Scalar] = field(default_factory=dict)
    _positives: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    def positives_of(self, vid: str) -> tuple[set[str], set[str]]:
        """The normal forms of a video's queries, and their lemmatised forms."""
        if vid not in self._positives:
            texts = self.positives.get(vid, set())
            self._positives[vid] = {normal_form(t) for t in texts}, {self.lemmatised(t) for t in texts}
        return self._positives[vid]

    def tokens(self, text: str) -> Tokens | None:
        """The tokens of a training query, or None where it is none."""
        scalar = self._parsed.get(text)
        return scalar.as_py() if scalar is not None else None

    def human_for(self, vid: str) -> int:
        """Which of the human texts judges a video's negatives."""
        return _fold(vid) if len(self.human) > 1 else 0

    def slots(self, row: Negative) -> tuple[Slot, ...] | None:
        """A row's slots: its own, or found again in the masked query; None where that does not fit the query."""
        if row.slots is not None or row.masked is None:
            return row.slots
        tokens = self.tokens(row.positive)
        places = masked_tokens(row.masked, [token["text"] for token in tokens]) if tokens else None
        if tokens is None or places is None:
            return None
        chosen = [(place, tokens[place]) for place in places]
        return tuple(Slot(i, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for i, t in chosen)

    def lemmas(self, text: str) -> set[str]:
        """The words of a text and the lemmas that the data set knows of them."""
        return lemmas_of(words_of(text), self.forms)

    def lemmatised(self, text: str) -> str:
        """A text's words, each by one of its lemmas: the same for "opens the doors" and "open the door"."""
        return " ".join(min(self.forms.get(word, {word})) for word in words_of(text))

    def add(self, row: Mapping[str, Any], parsed: pa.Scalar) -> Tokens:
        """Add a query; returns its tokens."""
        tokens: Tokens = parsed.as_py()
        for token in tokens:
            self.forms[token["text"].lower()].add(token["lemma"])
        self.positives[row["vid"]].add(row["query"])
        if row["split"] == TRAINING:
            self.vocabulary.update(words_of(row["query"]))
            self.trained.add(normal_form(row["query"]))
            self.training[row["qid"]], self.videos[row["qid"]] = row["query"], row["vid"]
            self._parsed[row["query"]] = parsed
        else:
            self.tests[row["split"]].add(normal_form(row["query"]))
            for label in row["novel"]:
                self.labelled = True
                self.held_out.add(label["words"])
        return tokens


def _fold(vid: str) -> int:
    return blake2b(vid.encode(), digest_size=1).digest()[0] % FOLDS


def read_reference(dataset: str, annotated: Annotated, more: Sequence[tuple[str, Tokens]] = ()) -> Reference:
    """Read a data set; `more` is human text of another origin, parsed."""
    reference = Reference(dataset, Dictionary(dictionary_part(annotated()).rows))
    others, folds = Human(), [Human() for _ in range(FOLDS)]
    for queries, tags in annotated():
        for row, parsed in zip(queries.to_pylist(), tags["tokens"], strict=True):
            tokens = reference.add(row, parsed)
            if row["split"] != TRAINING:
                others.add(row["query"], tokens)
    for text, tokens in more:
        others.add(text, tokens)
    for qid, query in reference.training.items():
        reference.held_out.known(reference.lemmas(query))
        if not others.sentences:
            for fold in (fold for n, fold in enumerate(folds) if n != _fold(reference.videos[qid])):
                fold.add(query, reference.tokens(query) or [])
    reference.human = [others] if others.sentences else folds
    return reference
