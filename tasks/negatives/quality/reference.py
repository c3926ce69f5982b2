"""What negatives are judged by: the words, queries, labels and human text of a data set."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.negatives.choosing.guard import normal_form
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.quality.heldout import HeldOut, lemmas_of
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.texts import masked_tokens, words_of
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
    human: Sequence[Human] = ()
    parsed: dict[str, Tokens] = field(default_factory=dict)  # of the training queries that were asked for
    _positives: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    def positives_of(self, vid: str) -> tuple[set[str], set[str]]:
        """The normal forms of a video's queries, and their lemmatised forms."""
        if vid not in self._positives:
            texts = self.positives.get(vid, set())
            self._positives[vid] = {normal_form(t) for t in texts}, {self.lemmatised(t) for t in texts}
        return self._positives[vid]

    def human_for(self, vid: str) -> int:
        """Which of the human texts judges a video's negatives."""
        return _fold(vid) if len(self.human) > 1 else 0

    def slots(self, row: Negative) -> tuple[Slot, ...] | None:
        """A row's slots: its own, or found again in the masked query; None where that does not fit the query."""
        if row.slots is not None or row.masked is None:
            return row.slots
        tokens = self.parsed.get(row.positive)
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

    def add(self, queries: pa.Table, tags: pa.Table) -> None:
        """Add a part's queries."""
        tokens = pc.list_flatten(tags["tokens"])
        forms = pa.table([pc.struct_field(tokens, name) for name in ("text", "lemma")], ["text", "lemma"])
        for form in forms.group_by(["text", "lemma"]).aggregate([]).to_pylist():
            self.forms[form["text"].lower()].add(form["lemma"])
        for vid, query in zip(queries["vid"].to_pylist(), queries["query"].to_pylist(), strict=True):
            self.positives[vid].add(query)
        training = pc.equal(queries["split"], TRAINING)
        for query in queries["query"].filter(training).unique().to_pylist():
            self.vocabulary.update(words_of(query))
            self.trained.add(normal_form(query))
        others = queries.select(["split", "query", "novel"]).filter(pc.invert(training))
        for row in others.to_pylist():
            self.tests[row["split"]].add(normal_form(row["query"]))
            for label in row["novel"]:
                self.labelled = True
                self.held_out.add(label["words"])


def _fold(vid: str) -> int:
    return blake2b(vid.encode(), digest_size=1).digest()[0] % FOLDS


def read_reference(
    dataset: str, annotated: Annotated, parsed: Collection[str] = (), human: Sequence[Human] = ()
) -> Reference:
    """Read a data set; the tokens of the training queries in `parsed` are kept. `human` is needed by samples alone."""
    reference = Reference(dataset, Dictionary(dictionary_part(annotated()).rows), human=human)
    wanted = pa.array(parsed, pa.string())
    for queries, tags in annotated():
        reference.add(queries, tags)
        if len(wanted):
            mine = pc.and_(pc.equal(queries["split"], TRAINING), pc.is_in(queries["query"], wanted))
            texts = queries["query"].filter(mine).to_pylist()
            reference.parsed.update(zip(texts, tags["tokens"].filter(mine).to_pylist(), strict=True))
    for queries, _ in annotated() if reference.labelled else ():
        for query in queries["query"].filter(pc.equal(queries["split"], TRAINING)).unique().to_pylist():
            reference.held_out.known(reference.lemmas(query))
    return reference


def read_human(annotated: Annotated, more: Sequence[tuple[str, Tokens]] = ()) -> list[Human]:
    """Read what people wrote, by whose videos it judges; `more` is text of another origin, parsed."""
    others = Human()
    for queries, tags in annotated():
        mine = pc.not_equal(queries["split"], TRAINING)
        texts = queries["query"].filter(mine).to_pylist()
        for text, tokens in zip(texts, tags["tokens"].filter(mine).to_pylist(), strict=True):
            others.add(text, tokens)
    for text, tokens in more:
        others.add(text, tokens)
    return [others] if others.sentences else _folds(annotated)


def _folds(annotated: Annotated) -> list[Human]:
    """Of each fold of the videos the training queries of the other folds."""
    folds = [Human() for _ in range(FOLDS)]
    for queries, tags in annotated():
        rows = queries.select(["vid", "query"]).append_column("tokens", tags["tokens"])
        for row in rows.filter(pc.equal(queries["split"], TRAINING)).to_pylist():
            for fold in (fold for number, fold in enumerate(folds) if number != _fold(row["vid"])):
                fold.add(row["query"], row["tokens"])
    return folds
