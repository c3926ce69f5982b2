"""Stage `measures`: what a negative's own text says, a row a negative: its template, its words, and whom it equals.

The report adds these up. Who looks for the leaks or copies themselves filters this table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.choosing.guard import normal_form
from penumbra.tasks.negatives.quality.artifact import ArtifactNegatives
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.reference import Reference, read_reference
from penumbra.tasks.negatives.quality.source import AnnotatedDataset
from penumbra.tasks.negatives.quality.texts import fills_of, words_of
from penumbra.tasks.stage import Stage, is_planned, work_of

STAGE = "measures"


def measure(row: Negative, reference: Reference) -> dict[str, Any]:
    """A row of `measures`."""
    words = words_of(row.negative)
    fills = fills_of(row.masked, row.negative) if row.masked is not None else None
    return {
        "qid": row.qid,
        "level": row.level,
        "provider": row.provider,
        "vid": row.vid,
        "known_query": row.positive in reference.positives.get(row.vid, ()),
        "template_kept": None if row.masked is None else fills is not None,
        "words": fills or (),
        **_slots(row, fills, reference),
        "length": len(words),
        "closed_vocabulary": all(word in reference.vocabulary for word in words),
        **_equals(row, reference),
        "similarity": row.similarity,
    }


def _slots(row: Negative, fills: tuple[str, ...] | None, reference: Reference) -> dict[str, int | None]:
    """Of the fills: how many the training split has under their slot's class and fine tag, how many change nothing."""
    masked_slots = reference.slots(row)
    if not fills or not masked_slots or len(fills) != len(masked_slots):
        return {}
    pairs = list(zip(fills, masked_slots, strict=True))
    fitting = sum(fill in reference.dictionary.offer(slot.primitive, slot.tag).places for fill, slot in pairs)
    same = sum(fill == slot.word.lower() for fill, slot in pairs)
    return {"slots": len(pairs), "same_slot_class": fitting, "equal_to_original": same}


def _equals(row: Negative, reference: Reference) -> dict[str, Any]:
    """Whether it equals its own query, another positive of the same video, or a query of a split."""
    form, own = normal_form(row.negative), normal_form(row.positive)
    others, others_lemmatised = reference.positives_of(row.vid)
    lemmatised, lemmas = reference.lemmatised(row.negative), reference.lemmas(row.negative)
    return {
        "copy": form == own,
        "false_negative": form != own and form in others,
        "false_negative_lemmatised": lemmatised in others_lemmatised
        or lemmatised == reference.lemmatised(row.positive),
        "test_splits": [split for split, forms in reference.tests.items() if form in forms],
        "trained": form in reference.trained,
        "held_out_composition": reference.held_out.pair_in(lemmas),
        "held_out_word": reference.held_out.word_in(lemmas),
    }


def measured(rows: Iterable[Negative], reference: Reference) -> pa.Table:
    """The table of some negatives."""
    return table_of(STAGE, [measure(row, reference) for row in rows])


@dataclass(frozen=True)
class Measures(Stage):
    """What each negative of an artifact says, held against a data set: the negatives' own, or another."""

    name = STAGE
    version = 1
    unit = "negative"
    may_be_empty = True

    negatives: ArtifactNegatives
    data: AnnotatedDataset

    @property
    def label(self) -> str:
        """With whose fills are measured, or that it is the negatives."""
        measured = self.negatives.artifact
        made = work_of(measured) if is_planned() else self.negatives.store.manifest(measured)
        return f"{self.name}: {made.parameters.get('provider') or measured.stage}"

    @property
    def dataset(self) -> str:
        """The data set that judges."""
        return self.data.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The negatives, and what they are held against."""
        return tuple(it for it in (self.negatives.artifact, self.data.annotations, self.data.tags) if it)

    @cached_property
    def pieces(self) -> Sequence[int]:
        """The numbers of the negatives' parts."""
        return range(len(self.negatives.store.manifest(self.negatives.artifact).parts))

    @cached_property
    def reference(self) -> Reference:
        """The data set, read once a worker."""
        return read_reference(self.data.name, self.data.annotated)

    def part(self, piece: int) -> Part:
        """Measure one part's negatives."""
        rows = self.negatives.part(piece)
        return Part(measured(rows, self.reference), len(rows), len(rows))
