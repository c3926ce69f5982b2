"""Stage `text_features`: an encoder's states of every distinct text among the queries of all splits and the negatives.

`tokens` are the last hidden states of a text's real tokens, the start and the end token among them and padding not: the
positions that Moment-DETR keeps. `pooled` is one vector a text (`penumbra.tasks.features.text_encoders`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.features.clip import Clip, digests
from penumbra.tasks.features.reading import lists_of, vectors_of
from penumbra.tasks.features.text_encoders import TextEncoder, load_text_encoder
from penumbra.tasks.stage import Parameters, Stage, logger, run

STAGE = "text_features"
TEXTS_A_PART = 2048
NEWEST, NONE = "newest", "none"


class Texts(Parameters):
    """Which texts get features, and how."""

    negatives: str = Field(
        NEWEST, description="Which negatives besides the queries: `newest` (where there are any), `none`, or a key."
    )
    encoder: str | None = Field(
        None,
        description="A text encoder of transformers or sentence-transformers: a name on the hub or a folder. Default: "
        "that of `clip.encoder`.",
    )
    batch_size: int = Field(64, ge=1, description="Texts encoded at once.")

    def with_encoder(self, clip: Clip) -> Clip:
        """Which encoder the texts get: the one named here, else CLIP's."""
        return clip.model_copy(update={"encoder": self.encoder}) if self.encoder else clip


def distinct_texts(parents: Sequence[Artifact]) -> list[str]:
    """Return every query and every negative of the parents once, sorted."""
    store = Store()
    texts: set[str] = set()
    for parent in parents:
        column = "negative" if parent.stage == "negatives" else "query"
        for part in store.parts(parent, [column]):
            texts.update(part[column].to_pylist())
    return sorted(texts)


def text_features_part(texts: Sequence[str], encoder: TextEncoder, batch_size: int) -> Part:
    """Encode one part's texts; a text whose features are no numbers is rejected."""
    tokens, pooled, cut = encoder.encode(texts, batch_size)
    good = [i for i in range(len(texts)) if np.isfinite(tokens[i]).all() and np.isfinite(pooled[i]).all()]
    bad = sorted(set(range(len(texts))) - set(good))
    rejected = [rejection(texts[i], STAGE, "features are not finite in half precision", texts[i]) for i in bad]
    rows = pa.table(
        {
            "text": pa.array([texts[i] for i in good], pa.string()),
            "encoder": pa.array([encoder.name] * len(good), pa.string()),
            "tokens": lists_of([tokens[i] for i in good], encoder.width),
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
    on_device = True  # a GPU holds one encoder; on a CPU its threads use all cores as it is

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
    def encoder(self) -> TextEncoder:
        """The encoder, on its device."""
        return load_text_encoder(self.clip)

    def part(self, piece: list[str]) -> Part:
        """Encode one part's texts."""
        return text_features_part(piece, self.encoder, self.batch_size)


def encode_queries(annotations: Artifact, negatives: Artifact | None, clip: Clip, texts: Texts) -> Artifact:
    """Encode the texts of a data set."""
    return run(TextFeatures(annotations, negatives, texts.with_encoder(clip), texts.batch_size))


def chosen_negatives(dataset: str, texts: Texts) -> Artifact | None:
    """The negatives whose texts get features, if any; raises `ArtifactError` where a key names none."""
    store = Store()
    if texts.negatives == NONE:
        return None
    if texts.negatives != NEWEST:
        return store.with_key(dataset, "negatives", texts.negatives)
    found = store.newest_if_any(dataset, "negatives")
    if found is None:
        logger().info("no negatives of %s: features of the queries only", dataset)
    return found
