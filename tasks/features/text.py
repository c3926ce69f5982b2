"""Stage `text_features`: token states and a pooled vector of every distinct text of the queries and the negatives.

`tokens` are the last hidden states with start and end token and without padding, as in Moment-DETR. The encoder is the
text encoder of a CLIP, or any of transformers or sentence-transformers. Texts of equal length are encoded together, so
the vectors of a text do not depend on other texts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import fast_cpu_matmul, pad_batch
from penumbra.tasks.features.clip import Clip, Encoder, digests, encoder_threads, load, required_digests, source
from penumbra.tasks.features.reading import Float16Array, lists_of, vectors_of
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting, logger
from penumbra.tasks.stage import Stage, run, work_of
from penumbra.tasks.text.embeddings import load_encoder, model_source

STAGE = "text_features"
TEXTS_A_PART = 2048
BATCH_SIZE = 64
NEWEST, NONE = "newest", "none"

EncodedTexts = tuple[list[Float16Array], Float16Array, int]  # token states, pooled vectors, number of truncated texts


class Texts(Parameters):
    """Which texts get features, and from which encoder."""

    negatives: str = Field(
        NEWEST, description="Which negatives get features: `newest` (if there are any), `none`, or a key."
    )
    encoder: str | None = Field(
        None,
        description="A text encoder of transformers or sentence-transformers: a name on the hub or a folder. Default: "
        "the text encoder of `clip.encoder`.",
    )


# -- encoders ---------------------------------------------------------------------------------------------------------


class ClipTexts:
    """The text encoder of a CLIP: states of `width` numbers for each token, and a pooled vector for each text."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.encoder = encoder.name, encoder
        self.width: int = encoder.model.config.text_config.hidden_size

    def encode(self, texts: Sequence[str], batch_size: int = BATCH_SIZE) -> EncodedTexts:
        """Return token states (tokens, width) of each text, pooled vectors, and how many texts were truncated."""
        import torch

        model, device = self.encoder.model, self.encoder.device
        limit = model.config.text_config.max_position_embeddings
        full: list[list[int]] = self.encoder.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        ids = [text if len(text) <= limit else [*text[: limit - 1], text[-1]] for text in full]  # keep the end token
        tokens: list[Float16Array] = [np.zeros((0, 0), np.float16)] * len(texts)
        pooled: Float16Array = np.zeros((len(texts), model.config.projection_dim), np.float16)

        def encode_batch(rows: list[int]) -> int:
            with torch.inference_mode():
                states = model.get_text_features(torch.tensor([ids[row] for row in rows], device=device))
            pooled[rows] = states.pooler_output.half().cpu().numpy()
            for row, vectors in zip(rows, states.last_hidden_state.half().cpu().numpy(), strict=True):
                tokens[row] = vectors
            return len(set(rows))

        tick = counting("texts", len(texts))
        with fast_cpu_matmul(device), encoder_threads(self.encoder) as threads:
            for number in threads.map(encode_batch, batches_of_one_length([len(text) for text in ids], batch_size)):
                tick(number)
        return tokens, pooled, sum(len(text) > limit for text in full)


class SentenceTexts:
    """An encoder that sentence-transformers loads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model: Any = load_encoder(name)
        self.width: int = self.model[0].get_embedding_dimension()

    def encode(self, texts: Sequence[str], batch_size: int = BATCH_SIZE) -> EncodedTexts:
        limit = self.model.max_seq_length
        lengths = [len(ids) for ids in self.model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]
        tokens: list[Float16Array] = [np.zeros((0, 0), np.float16)] * len(texts)
        pooled: Float16Array = np.zeros((len(texts), self.model.get_embedding_dimension()), np.float16)
        tick, options = counting("texts", len(texts)), {"output_value": None, "show_progress_bar": False}
        for rows in batches_of_one_length([min(length, limit) for length in lengths], batch_size):
            with fast_cpu_matmul(self.model.device):
                encoded = self.model.encode([texts[row] for row in rows], batch_size=batch_size, **options)
            for row, states in zip(rows, encoded, strict=True):
                real = states["attention_mask"].bool()
                tokens[row] = states["token_embeddings"][real].half().cpu().numpy()
                pooled[row] = states["sentence_embedding"].half().cpu().numpy()
            tick(len(set(rows)))
        return tokens, pooled, sum(length > limit for length in lengths)


TextEncoder = ClipTexts | SentenceTexts


def load_text_encoder(clip: Clip) -> TextEncoder:
    """Load the text encoder named by `clip`, a CLIP or another one; raise `PenumbraError` with a remedy on failure."""
    from transformers import AutoConfig

    place, kind = Path(model_source(source(clip.encoder))).expanduser(), "clip"
    with suppress(OSError, ValueError):  # `load` reports a model that can't be found
        options = {"local_files_only": place.is_dir(), "trust_remote_code": False}
        kind = AutoConfig.from_pretrained(str(place), **options).model_type
    return ClipTexts(load(clip)) if kind == "clip" else SentenceTexts(clip.encoder)


def batches_of_one_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of rows of equal lengths, the longest first; rows may occur twice in a batch (`pad_batch`)."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for _, group in groupby(order, key=lambda row: lengths[row]):
        while rows := list(islice(group, batch_size)):
            yield pad_batch(rows, batch_size)


# -- the stage --------------------------------------------------------------------------------------------------------


def pieces_of(parents: Sequence[Artifact], known: Artifact | None = None) -> list[list[str]]:
    """Return the distinct queries and negatives of the parents, sorted, in parts, without the `known` texts."""
    texts: set[str] = set()
    for parent in parents:
        column = "query" if parent.stage == "annotations" else "negative"
        for part in Store().parts(parent, [column]):
            texts.update(part[column].to_pylist())
    if known:
        texts.difference_update(Store().table(known, ["text"])["text"].to_pylist())
    ordered = sorted(texts)
    return [ordered[start : start + TEXTS_A_PART] for start in range(0, len(ordered), TEXTS_A_PART)]


@dataclass(frozen=True)
class TextFeatures(Stage):
    """Token states of every distinct text of the queries and, if given, the negatives."""

    name = STAGE
    version = 1
    unit = "text"
    on_device = True  # a GPU holds one encoder; on a CPU its threads use all cores

    annotations: Artifact
    negatives: Artifact | None
    clip: Clip

    def parameters(self) -> dict[str, Any]:
        return {"encoder": self.clip.encoder, "precision": "float32", "texts_a_part": TEXTS_A_PART}

    key_parameters = parameters

    def inputs(self) -> dict[str, str]:
        return required_digests(self.clip)

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        return pieces_of(self.parents)

    @cached_property
    def encoder(self) -> TextEncoder:
        return load_text_encoder(self.clip)

    def part(self, piece: list[str]) -> Part:
        tokens, pooled, truncated = self.encoder.encode(piece)
        good = [i for i in range(len(piece)) if np.isfinite(tokens[i]).all() and np.isfinite(pooled[i]).all()]
        bad = [piece[i] for i in sorted(set(range(len(piece))).difference(good))]
        columns = {
            "text": pa.array([piece[i] for i in good], pa.string()),
            "encoder": pa.array([self.encoder.name] * len(good), pa.string()),
            "tokens": lists_of([tokens[i] for i in good], self.encoder.width),
            "pooled": vectors_of(pooled[good]),
        }
        rejected = [rejection(text, STAGE, "features are not finite in half precision", text) for text in bad]
        notes = +Counter({"text cut to the encoder's longest": truncated})
        return Part(pa.table(columns), len(piece), len(good), rejected, notes)


@dataclass(frozen=True)
class JudgingTexts(TextFeatures):
    """Token states of the false sentences of `judging` that are missing in the `known` text features."""

    name = "judging_texts"
    may_be_empty = True

    judging: tuple[Artifact, ...] = ()
    known: Artifact | None = None

    def inputs(self) -> dict[str, str]:
        """Return the digests of the encoder, which may be missing, as it is not needed if all texts are known."""
        return digests(self.clip)

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        return pieces_of(self.judging, self.known)


def judging_texts(annotations: Artifact, known: Artifact, judging: tuple[Artifact, ...]) -> Artifact | None:
    """Return features of false sentences, computed by the encoder of the `known` features.

    Return None if these were imported: evaluations then use only false sentences that have features.
    """
    made = work_of(known).parameters
    if not judging or "precision" not in made:
        return None
    return run(JudgingTexts(annotations, None, Clip(encoder=made["encoder"]), judging, known))


def chosen_negatives(dataset: str, texts: Texts) -> Artifact | None:
    """Return the negatives whose texts get features, if any; raise `ArtifactError` if the key is unknown."""
    if texts.negatives not in (NEWEST, NONE):
        return Store().with_key(dataset, "negatives", texts.negatives)
    newest = Store().newest_if_any(dataset, "negatives") if texts.negatives == NEWEST else None
    if newest is None and texts.negatives == NEWEST:
        logger().info("no negatives of %s: features of the queries only", dataset)
    return newest
