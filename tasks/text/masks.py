"""Stage `masks`: each query of some splits with more and more primitives masked (SHINE, section 3.2 and Fig. 3).

Primitives are ordered by class (in the paper, verbs first) and then from left to right; the subject comes last, or is
left out. Level k masks the first words of that order, so each level contains the previous one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa
from pydantic import Field, model_validator

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.annotations import TRAINING, SplitsStage
from penumbra.tasks.data.rows import MASK
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.stage import read_part
from penumbra.tasks.text.tags import SUBJECT_ARCS

STAGE = "masks"
Primitive = Literal["verb", "noun", "adjective", "preposition", "adverb"]
VERBS_FIRST: tuple[Primitive, ...] = get_args(Primitive)  # the paper's order
NOUNS_FIRST: tuple[Primitive, ...] = ("noun", "adjective", "verb", "preposition", "adverb")
MIN_WITHOUT_SUBJECT = 3  # primitives; with fewer, the subject may be masked, too


class Masking(Parameters):
    """The words that each level masks."""

    ratios: tuple[float, float, float] = Field(
        (0.25, 0.50, 0.75), description="Share of a query's primitives that levels 1, 2 and 3 mask."
    )
    primitives: tuple[Primitive, ...] | None = Field(
        None,
        min_length=1,
        description="Classes of words that may be masked, in the order of masking. Default: verbs first, as in the "
        "paper; nouns first if llama is the only provider and fills fewer than 1,000 training queries.",
    )

    @model_validator(mode="after")
    def _rising(self) -> "Masking":
        if not 0 < self.ratios[0] <= self.ratios[1] <= self.ratios[2] <= 1:
            raise ValueError(f"ratios {self.ratios} must rise within 0 and 1, as (0.25, 0.5, 0.75)")
        return self


def slot_counts(primitives: int, ratios: tuple[float, float, float]) -> tuple[int, int, int]:
    """Return how many of `primitives` words each level masks, as in the authors' release: 2, 4 and 6 of 7."""
    tiny = 1e-9  # 0.3 * 10 is 3.0000000000000004, which must not become 4
    first = max(1, math.ceil(ratios[0] * primitives - 0.5 - tiny))
    second, third = (math.ceil(ratio * primitives - tiny) for ratio in ratios[1:])
    return first, max(first, second), max(first, second, third)


def masking_order(tokens: list[dict[str, Any]], primitives: Sequence[str] = VERBS_FIRST) -> list[int]:
    """Return the indices of the tokens to mask, in order; `primitives` are the classes that may be masked, in order.

    The subject is left out unless fewer than three primitives remain without it. If a pronoun is the grammatical
    subject ("person they drink a glass of water."), the noun that it refers to is a primitive, too, and comes last, as
    in the authors' release.
    """
    maskable = [i for i, token in enumerate(tokens) if token["primitive"] in primitives]
    others = [i for i in maskable if not tokens[i]["is_subject"]]
    others.sort(key=lambda i: (primitives.index(tokens[i]["primitive"]), i))
    pronoun_subject = any(token["pos"] == "PRON" and token["dep"] in SUBJECT_ARCS for token in tokens)
    if len(others) < MIN_WITHOUT_SUBJECT or pronoun_subject:
        others += [i for i in maskable if tokens[i]["is_subject"]]
    return others


def render(tokens: list[dict[str, Any]], words: dict[int, str]) -> str:
    """Return the query with some tokens replaced and every other character unchanged."""
    return "".join(words.get(i, t["text"]) + (" " if t["space_after"] else "") for i, t in enumerate(tokens)).strip()


def mask_query(tokens: list[dict[str, Any]], masking: Masking) -> list[dict[str, Any]]:
    """Return a row of `masks`, without qid, for each level of a query; no rows if no primitive may be masked."""
    order, levels = masking_order(tokens, masking.primitives or VERBS_FIRST), []
    counts = slot_counts(len(order), masking.ratios)
    for level, (ratio, count) in enumerate(zip(masking.ratios, counts, strict=True), 1):
        masked = sorted(order[:count])
        text = render(tokens, dict.fromkeys(masked, MASK))
        words = [(i, tokens[i]) for i in masked]
        slots = [{"token": i, "primitive": t["primitive"], "tag": t["tag"], "word": t["text"]} for i, t in words]
        levels.append({"level": level, "ratio": ratio, "masked_query": text, "slots": slots})
    return levels if order else []


def mask_part(annotations: pa.Table, tags: pa.Table, masking: Masking, wanted: Sequence[str] = TRAINING) -> Part:
    rows, rejected, taken = list[dict[str, Any]](), [], 0
    for row, tagged in zip(annotations.select(["split", "query"]).to_pylist(), tags.to_pylist(), strict=True):
        if row["split"] in wanted:
            taken += 1
            levels = mask_query(tagged["tokens"], masking)
            rows += [{"qid": tagged["qid"], **level} for level in levels]
            if not levels:
                rejected.append(rejection(tagged["qid"], STAGE, "query has no primitive to mask", row["query"]))
    return Part(table_of(STAGE, rows), taken, taken - len(rejected), rejected)


@dataclass(frozen=True)
class Masks(SplitsStage):
    name = STAGE
    version = 1

    annotations: Artifact
    tags: Artifact
    masking: Masking
    splits: tuple[str, ...] = TRAINING

    def part(self, piece: int) -> Part:
        annotations, tags = read_part(piece, self.annotations, self.tags)
        return mask_part(annotations, tags, self.masking, self.splits)
