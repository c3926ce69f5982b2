"""The data set that negatives are evaluated against, and the stage `measures`: what the text of each negative shows.

The quality report adds up the rows of `measures`. Whoever looks for leaks or copies filters this table.
"""

import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.checks import LeakageFilter, may_be_true, normal_form
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.quality.negatives import TRAINING, AnnotatedDataset, ArtifactNegatives, Negative
from penumbra.tasks.stage import Stage
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.relations import Relation, relations
from penumbra.tasks.text.wordnet import wordnet_inputs

MEASURES = "measures"
MASK = "<mask>"
WORD = re.compile(r"[a-z']+")
UNIT = re.compile(rf"(?:{MASK}|[a-z'])+")
MASK_OR_WORD = re.compile(rf"{MASK}|[a-z']+")
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
    """Return which of a query's tokens a masked query hides, or None if the two do not match.

    A token may be several words of the template, or none ("t-shirt" is two, "." none).
    """
    template, indices, place = MASK_OR_WORD.findall(masked.lower()), [], 0
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
class Reference:
    """A data set as negatives are evaluated against it; `human` is text that the providers did not draw from."""

    dataset: str
    dictionary: Dictionary
    leakage: LeakageFilter
    human: list[str] = field(default_factory=list)  # the queries of the other splits
    relations: set[Relation] = field(default_factory=set)  # of these
    queries: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by video
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # normal forms by test split
    trained: set[str] = field(default_factory=set)  # normal forms of the training queries
    parsed: dict[str, Tokens] = field(default_factory=dict)  # tokens of the training queries that were asked for
    _forms_of_video: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    def forms_of_video(self, vid: str) -> tuple[set[str], set[str]]:
        """Return the normal forms of a video's queries, and their lemmatised forms."""
        if vid not in self._forms_of_video:
            texts = self.queries.get(vid, set())
            self._forms_of_video[vid] = set(map(normal_form, texts)), set(map(self.leakage.lemmatised, texts))
        return self._forms_of_video[vid]

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


def example_sentences() -> list[str]:
    """Return WordNet's example sentences, which ship with the package (`workshop/wordnet.py`)."""
    return gzip.decompress((Path(__file__).parent / "sentences.txt.gz").read_bytes()).decode().splitlines()


def read_reference(
    dataset: str, annotated: Annotated, parsed: Collection[str] = (), with_human: bool = False
) -> Reference:
    """Read a data set, with the tokens of the training queries in `parsed`, and the human text if it is asked for."""

    def read() -> Iterator[tuple[dict[str, Any], Tokens]]:
        for queries, tags in annotated():
            rows = queries.select(["vid", "split", "query", "novel"]).to_pylist()
            for row, tokens in zip(rows, tags["tokens"].to_pylist(), strict=True):
                reference.queries[row["vid"]].add(row["query"])
                if row["split"] == TRAINING:
                    reference.trained.add(normal_form(row["query"]))
                    if row["query"] in parsed:
                        reference.parsed[row["query"]] = tokens
                else:
                    reference.tests[row["split"]].add(normal_form(row["query"]))
                    if with_human:
                        reference.human.append(row["query"])
                        reference.relations.update(relations(tokens))
                yield row, tokens

    dictionary = Dictionary(dictionary_part(annotated()).rows)
    reference = Reference(dataset, dictionary, LeakageFilter((), every=True))
    reference.leakage = LeakageFilter(read(), every=True)  # while it reads, the rest is filled in
    return reference


# -- the stage `measures` ----------------------------------------------------------------------------------------------


def measure(row: Negative, reference: Reference) -> dict[str, Any]:
    fills = fills_of(row.masked, row.negative) if row.masked is not None else None
    form, own = normal_form(row.negative), normal_form(row.query)
    forms, lemmatised_forms = reference.forms_of_video(row.vid)
    leakage, slots, counts = reference.leakage, reference.slots(row), dict[str, int | bool]()
    lemmatised, (has_pair, has_word) = leakage.lemmatised(row.negative), leakage.held_out(row.negative)
    if fills and slots and len(fills) == len(slots):
        pairs, offer = list(zip(fills, slots, strict=True)), reference.dictionary.offer
        counts["slots"] = len(pairs)
        counts["same_slot_class"] = sum(fill in offer(slot.primitive, slot.tag).places for fill, slot in pairs)
        counts["may_be_true"] = may_be_true(slots, fills)
        counts["equal_to_original"] = sum(fill == slot.word.lower() for fill, slot in pairs)
    return {
        "qid": row.qid,
        "level": row.level,
        "provider": row.provider,
        "vid": row.vid,
        "known_query": row.query in reference.queries.get(row.vid, ()),
        "template_kept": None if row.masked is None else fills is not None,
        "words": fills or (),
        **counts,
        "length": len(words_of(row.negative)),
        "closed_vocabulary": leakage.has_only_known_words(row.negative),
        "copy": form == own,
        "false_negative": form != own and form in forms,
        "false_negative_lemmatised": lemmatised in lemmatised_forms or lemmatised == leakage.lemmatised(row.query),
        "test_splits": [split for split, tested in reference.tests.items() if form in tested],
        "trained": form in reference.trained,
        "held_out_composition": has_pair,
        "held_out_word": has_word,
        "similarity": row.similarity,
    }


@dataclass(frozen=True)
class Measures(Stage):
    """The measures of each negative of an artifact against a data set: the negatives' own, or another."""

    name = MEASURES
    version = 2
    unit = "negative"
    may_be_empty = True

    negatives: ArtifactNegatives
    data: AnnotatedDataset

    @property
    def dataset(self) -> str:
        return self.data.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return tuple(it for it in (self.negatives.artifact, self.data.annotations, self.data.tags) if it)

    def inputs(self) -> dict[str, str]:
        return wordnet_inputs()

    @cached_property
    def pieces(self) -> Sequence[int]:
        return range(len(self.negatives.store.manifest(self.negatives.artifact).parts))

    @cached_property
    def reference(self) -> Reference:
        return read_reference(self.data.name, self.data.annotated)

    def part(self, piece: int) -> Part:
        rows = self.negatives.part(piece)
        return Part(table_of(MEASURES, [measure(row, self.reference) for row in rows]), len(rows), len(rows))
