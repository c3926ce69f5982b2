"""Stage `text_features`: CLIP's states of every distinct text among the queries of all splits and the negatives.

`tokens` are the last hidden states (after the final layer norm) of a text's real tokens, the start and the end token
among them and padding not: the positions that Moment-DETR keeps. `pooled` is the end token's state projected into the
space that texts and frames share. Texts of one length are encoded together, so that nothing is padded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.features.clip import Clip, Encoder, digests, encoder_threads, load
from penumbra.tasks.features.reading import Float16Array, lists_of, vectors_of
from penumbra.tasks.stage import Parameters, Stage, logger, run

STAGE = "text_features"
TEXTS_A_PART = 2048
NEWEST, NONE = "newest", "none"


class Texts(Parameters):
    """Which texts get features, and how."""

    negatives: str = Field(
        NEWEST, description="Which negatives besides the queries: `newest` (where there are any), `none`, or a key."
    )
    batch_size: int = Field(64, ge=1, description="Texts encoded at once.")


def distinct_texts(parents: Sequence[Artifact]) -> list[str]:
    """Every text of the parents' column `query` once, sorted."""
    store = Store()
    texts: set[str] = set()
    for parent in parents:
        for part in store.parts(parent, ["query"]):
            texts.update(part["query"].to_pylist())
    return sorted(texts)


def batches_of_one_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Rows of equal lengths, at most so many together, the longest first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for _, group in groupby(order, key=lambda row: lengths[row]):
        while rows := list(islice(group, batch_size)):
            yield rows


def encode_texts(
    texts: Sequence[str], encoder: Encoder, batch_size: int
) -> tuple[list[Float16Array], Float16Array, int]:
    """Token states (tokens, dimension) of each text, pooled states (texts, dimension), and how many texts were cut."""
    import torch

    limit = encoder.model.config.text_config.max_position_embeddings
    whole: list[list[int]] = encoder.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
    ids = [text if len(text) <= limit else [*text[: limit - 1], text[-1]] for text in whole]  # the end token stays
    tokens: list[Float16Array] = [np.zeros((0, 0), np.float16)] * len(texts)
    pooled: Float16Array = np.zeros((len(texts), encoder.model.config.projection_dim), np.float16)

    def encode(rows: list[int]) -> None:
        with torch.inference_mode():
            states = encoder.model.get_text_features(torch.tensor([ids[row] for row in rows], device=encoder.device))
        last = states.last_hidden_state.half().cpu().numpy()
        pooled[rows] = states.pooler_output.half().cpu().numpy()
        for row, vectors in zip(rows, last, strict=True):
            tokens[row] = vectors

    threads, _ = encoder_threads(encoder)
    with threads:
        list(threads.map(encode, batches_of_one_length([len(text) for text in ids], batch_size)))
    return tokens, pooled, sum(len(text) > limit for text in whole)


def text_features_part(texts: Sequence[str], encoder: Encoder, batch_size: int) -> Part:
    """Encode one part's texts; a text whose features are no numbers is rejected."""
    tokens, pooled, cut = encode_texts(texts, encoder, batch_size)
    good = [i for i in range(len(texts)) if np.isfinite(tokens[i]).all() and np.isfinite(pooled[i]).all()]
    bad = sorted(set(range(len(texts))) - set(good))
    rejected = [rejection(texts[i], STAGE, "features are not finite in half precision", texts[i]) for i in bad]
    rows = pa.table(
        {
            "text": pa.array([texts[i] for i in good], pa.string()),
            "encoder": pa.array([encoder.name] * len(good), pa.string()),
            "tokens": lists_of([tokens[i] for i in good], encoder.model.config.text_config.hidden_size),
            "pooled": vectors_of(pooled[good]),
        }
    )
    notes = Counter({"text cut to the encoder's longest": cut} if cut else {})
    return Part(rows, len(texts), len(good), rejected, notes)


@dataclass(frozen=True)
class TextFeatures(Stage):
    """The states of every distinct text of the queries and, where they are given, the negatives."""

    name = STAGE
    version = 1
    unit = "text"

    annotations: Artifact
    negatives: Artifact | None
    clip: Clip
    batch_size: int

    def parameters(self) -> dict[str, Any]:
        """The encoder, what it computes in, and how texts are cut into parts."""
        return {"encoder": self.clip.encoder, "precision": self.clip.precision, "texts_a_part": TEXTS_A_PART}

    def determines(self) -> dict[str, Any]:
        """The same: a device or a batch size changes no key."""
        return self.parameters()

    def inputs(self) -> dict[str, str]:
        """The encoder's files where it is a folder."""
        return digests(self.clip)

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        """The texts of each part."""
        texts = distinct_texts(self.parents)
        return [texts[start : start + TEXTS_A_PART] for start in range(0, len(texts), TEXTS_A_PART)]

    @cached_property
    def encoder(self) -> Encoder:
        """CLIP, on its device."""
        return load(self.clip)

    def part(self, piece: list[str]) -> Part:
        """Encode one part's texts."""
        return text_features_part(piece, self.encoder, self.batch_size)


def encode_queries(annotations: Artifact, negatives: Artifact | None, clip: Clip, texts: Texts) -> Artifact:
    """Encode the texts of a data set."""
    return run(TextFeatures(annotations, negatives, clip, texts.batch_size))


def chosen_negatives(dataset: str, texts: Texts) -> Artifact | None:
    """The negatives whose texts get features, if any; raises `ArtifactError` where a key names none."""
    store = Store()
    if texts.negatives == NONE:
        return None
    if texts.negatives != NEWEST:
        return store.with_key(dataset, "negatives", texts.negatives)
    if store.find(dataset, "negatives"):
        return store.newest(dataset, "negatives")
    logger().info("no negatives of %s: features of the queries only", dataset)
    return None
