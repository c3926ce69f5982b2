"""What negatives are evaluated against: the words, queries, labels and human text of a data set.

Words and templates are as the quality specification defines them. Compositional splits label what is new in a test
query: a pair of words that no training sentence has together, or a word that none has; labels that a training sentence
contradicts are errors of the labelling parser and are ignored.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.negatives.checks import normal_form
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.quality.negatives import TRAINING, Negative
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.relations import Relation, relations

MASK = "<mask>"
WORD = re.compile(r"[a-z']+")
UNIT = re.compile(rf"(?:{MASK}|[a-z'])+")
MASK_OR_WORD = re.compile(rf"{MASK}|[a-z']+")
FOLDS = 5
Tokens = list[dict[str, Any]]
Annotated = Callable[[], Iterable[tuple[pa.Table, pa.Table]]]  # a data set's `annotations` and `tags`, part by part


def words_of(text: str) -> list[str]:
    """Return the tokens `[a-z']+` of a text, lower-cased."""
    return WORD.findall(text.lower())


def fills_of(masked: str, text: str) -> tuple[str, ...] | None:
    """Return the words in the masks' places, or None if the text is not the masked query with one word a mask."""
    template, words = UNIT.findall(masked.lower()), words_of(text)
    if len(template) != len(words):
        return None
    fills: list[str] = []
    for unit, word in zip(template, words, strict=True):
        match = re.fullmatch(unit.replace(MASK, "([a-z']+)"), word)  # a unit may be "<mask>'s"
        if not match:
            return None
        fills += match.groups()
    return tuple(fills)


def masked_tokens(masked: str, tokens: Sequence[str]) -> list[int] | None:
    """Return which of a query's tokens a masked query hides, or None if the two don't match.

    A token may be several words of the template, or none ("t-shirt" is two, "." none).
    """
    template, indices = MASK_OR_WORD.findall(masked.lower()), []
    place = 0
    for index, token in enumerate(tokens):
        words = words_of(token)
        if place < len(template) and template[place] == MASK and any(c.isalnum() for c in token):
            indices.append(index)
            place += 1
        elif template[place : place + len(words)] == words:
            place += len(words)
        else:
            return None
    return indices if place == len(template) else None


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
    """A data set as negatives are evaluated against it.

    `human` is text that the providers did not draw from: the other splits' queries. If a data set has none, it is five
    folds of its training queries, each for the videos of one fold and of the other four; the providers may have drawn
    from them.
    """

    dataset: str
    dictionary: Dictionary
    human: Sequence[Human] = ()
    vocabulary: set[str] = field(default_factory=set)  # of the training split
    forms: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # word → lemmas
    queries: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by video
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # normal forms by test split
    trained: set[str] = field(default_factory=set)  # normal forms
    held_out_pairs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    held_out_words: set[str] = field(default_factory=set)
    is_labelled: bool = False
    parsed: dict[str, Tokens] = field(default_factory=dict)  # tokens of the training queries that were asked for
    _forms_of_video: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    def forms_of_video(self, vid: str) -> tuple[set[str], set[str]]:
        """Return the normal forms of a video's queries, and their lemmatised forms."""
        if vid not in self._forms_of_video:
            texts = self.queries.get(vid, set())
            self._forms_of_video[vid] = {normal_form(t) for t in texts}, {self.lemmatised(t) for t in texts}
        return self._forms_of_video[vid]

    def human_index(self, vid: str) -> int:
        """Return which of the human texts a video's negatives are compared with."""
        return _fold(vid) if len(self.human) > 1 else 0

    def slots(self, row: Negative) -> tuple[Slot, ...] | None:
        """Return a row's slots: its own, or those of the masked query; None if it does not match the query."""
        if row.slots is not None or row.masked is None:
            return row.slots
        tokens = self.parsed.get(row.query)
        places = masked_tokens(row.masked, [token["text"] for token in tokens]) if tokens else None
        if tokens is None or places is None:
            return None
        chosen = [(place, tokens[place]) for place in places]
        return tuple(Slot(i, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for i, t in chosen)

    def lemmas(self, text: str) -> set[str]:
        """Return the words of a text and all lemmas that the data set has for them."""
        words = words_of(text)
        return set(words).union(*(self.forms.get(word, ()) for word in words))

    def lemmatised(self, text: str) -> str:
        """Return a text with one lemma for each word: the same for "opens the doors" and "open the door"."""
        return " ".join(min(self.forms.get(word, {word})) for word in words_of(text))

    def has_held_out_pair(self, lemmas: set[str]) -> bool:
        """Return whether a sentence with these lemmas has both words of a held-out composition."""
        return any(self.held_out_pairs[first] & lemmas for first in lemmas & self.held_out_pairs.keys())

    def add(self, queries: pa.Table, tags: pa.Table) -> None:
        """Add a part's queries."""
        tokens = pc.list_flatten(tags["tokens"])
        forms = pa.table([pc.struct_field(tokens, name) for name in ("text", "lemma")], ["text", "lemma"])
        for form in forms.group_by(["text", "lemma"]).aggregate([]).to_pylist():
            self.forms[form["text"].lower()].add(form["lemma"])
        for row in queries.select(["vid", "split", "query", "novel"]).to_pylist():
            self.queries[row["vid"]].add(row["query"])
            if row["split"] == TRAINING:
                self.vocabulary.update(words_of(row["query"]))
                self.trained.add(normal_form(row["query"]))
                continue
            self.tests[row["split"]].add(normal_form(row["query"]))
            for label in row["novel"]:
                self.is_labelled, words = True, [word.lower() for word in label["words"]]
                if len(words) == 2:
                    self.held_out_pairs[words[0]].add(words[1])
                elif len(words) == 1:
                    self.held_out_words.add(words[0])


def _fold(vid: str) -> int:
    return blake2b(vid.encode(), digest_size=1).digest()[0] % FOLDS


def read_reference(
    dataset: str, annotated: Annotated, parsed: Collection[str] = (), human: Sequence[Human] = ()
) -> Reference:
    """Read a data set, and the tokens of the training queries in `parsed`; only samples need `human`."""
    reference = Reference(dataset, Dictionary(dictionary_part(annotated()).rows), human)
    wanted = pa.array(parsed, pa.string())
    for queries, tags in annotated():
        reference.add(queries, tags)
        if len(wanted):
            mine = pc.and_(pc.equal(queries["split"], TRAINING), pc.is_in(queries["query"], wanted))
            texts = queries["query"].filter(mine).to_pylist()
            reference.parsed.update(zip(texts, tags["tokens"].filter(mine).to_pylist(), strict=True))
    for queries, _ in annotated() if reference.is_labelled else ():
        for query in queries["query"].filter(pc.equal(queries["split"], TRAINING)).unique().to_pylist():
            lemmas = reference.lemmas(query)  # a training sentence contradicts these labels
            reference.held_out_words -= lemmas
            for first in lemmas & reference.held_out_pairs.keys():
                reference.held_out_pairs[first] -= lemmas
    return reference


def read_human(annotated: Annotated) -> list[Human]:
    """Read the human text of a data set: of its other splits, or five folds of its training split."""
    others, folds = Human(), [Human() for _ in range(FOLDS)]
    for queries, tags in annotated():
        mine = pc.not_equal(queries["split"], TRAINING)
        rows = zip(queries["query"].filter(mine).to_pylist(), tags["tokens"].filter(mine).to_pylist(), strict=True)
        for query, tokens in rows:
            others.add(query, tokens)
    if others.sentences:
        return [others]
    for queries, tags in annotated():
        for row, tokens in zip(queries.select(["vid", "query"]).to_pylist(), tags["tokens"].to_pylist(), strict=True):
            for number, fold in enumerate(folds):
                if number != _fold(row["vid"]):
                    fold.add(row["query"], tokens)
    return folds
