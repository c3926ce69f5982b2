"""Stage `measures`: what the text of each negative shows, one row each: its template, its words, and what it equals.

The quality report adds these up. Whoever looks for leaks or copies filters this table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.checks import may_be_true, normal_form
from penumbra.tasks.negatives.quality.negatives import AnnotatedDataset, ArtifactNegatives, Negative
from penumbra.tasks.negatives.quality.reference import Reference, fills_of, read_reference, words_of
from penumbra.tasks.stage import Stage
from penumbra.tasks.text.wordnet import wordnet_inputs

STAGE = "measures"


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


def measure_all(rows: Iterable[Negative], reference: Reference) -> pa.Table:
    return table_of(STAGE, [measure(row, reference) for row in rows])


@dataclass(frozen=True)
class Measures(Stage):
    """The measures of each negative of an artifact against a data set: the negatives' own, or another."""

    name = STAGE
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
        return Part(measure_all(rows, self.reference), len(rows), len(rows))
