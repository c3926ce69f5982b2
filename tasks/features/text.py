"""Stage `text_features`: an encoder's states of every distinct text among the queries of all splits and the negatives.

`tokens` are the last hidden states of a text's real tokens, the start and the end token among them and padding not: the
positions that Moment-DETR keeps. `pooled` is one vector a text (`penumbra.tasks.features.text`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of, fast_cpu_matmul, pad_batch
from penumbra.tasks.features.clip import Clip, Encoder, digests, encoder_threads, load, source
from penumbra.tasks.features.reading import Float16Array, lists_of, vectors_of
from penumbra.tasks.progress import counting
from penumbra.tasks.stage import Parameters, Stage, logger, run
from penumbra.tasks.text.embeddings import load_encoder, model_source

Encoded = tuple[list[Float16Array], Float16Array, int]


class TextEncoder(Protocol):
    """Makes `width` numbers a token and `pooled_width` a text."""

    name: str
    width: int

    def encode(self, texts: Sequence[str], batch_size: int) -> Encoded:
        """Token states (tokens, width) of each text, pooled states (texts, …), and how many texts were cut."""


class ClipTexts:
    """CLIP's text side."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.encoder = encoder.name, encoder
        self.width: int = encoder.model.config.text_config.hidden_size

    def encode(self, texts: Sequence[str], batch_size: int) -> Encoded:
        """See `TextEncoder.encode`."""
        return encode_texts(texts, self.encoder, batch_size)


class SentenceTexts:
    """An encoder that sentence-transformers loads."""

    def __init__(self, name: str, device: str, precision: str) -> None:
        import torch

        self.name = name
        self.model: Any = load_encoder(name).to(device_of(device))
        if precision != "float32":
            self.model = self.model.to(getattr(torch, precision))
        self.width: int = self.model[0].get_embedding_dimension()

    def encode(self, texts: Sequence[str], batch_size: int) -> Encoded:
        """See `TextEncoder.encode`."""
        limit = self.model.max_seq_length
        lengths = [len(ids) for ids in self.model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]
        tokens: list[Float16Array] = [np.zeros((0, 0), np.float16)] * len(texts)
        pooled: Float16Array = np.zeros((len(texts), self.model.get_embedding_dimension()), np.float16)
        tick = counting("texts", len(texts))
        for rows in batches_of_one_length([min(length, limit) for length in lengths], batch_size):
            with fast_cpu_matmul(self.model.device):
                found = self.model.encode(
                    [texts[row] for row in rows], batch_size=batch_size, output_value=None, show_progress_bar=False
                )
            for row, states in zip(rows, found, strict=True):
                real = states["attention_mask"].bool()
                tokens[row] = states["token_embeddings"][real].half().cpu().numpy()
                pooled[row] = states["sentence_embedding"].half().cpu().numpy()
            tick(len(set(rows)))
        return tokens, pooled, sum(length > limit for length in lengths)


def load_text_encoder(clip: Clip) -> TextEncoder:
    """Load the encoder that `clip` names, a CLIP or any other; raises `ClipError` or `EncoderError` with the remedy."""
    if model_source(clip.encoder) == clip.encoder and _is_clip(clip.encoder):
        return ClipTexts(load(clip))
    return SentenceTexts(clip.encoder, clip.device, clip.precision)


def _is_clip(name: str) -> bool:
    """Whether a name or folder is a CLIP; what can't be found is taken for one, for `load` to tell."""
    from transformers import AutoConfig

    where = Path(source(name)).expanduser()
    try:
        config = AutoConfig.from_pretrained(str(where) if where.is_dir() else name, local_files_only=where.is_dir())
    except (OSError, ValueError):
        return True
    return bool(config.model_type == "clip")


def batches_of_one_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Rows of equal lengths, at most so many together, the longest first; some are there twice (`pad_batch`)."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for _, group in groupby(order, key=lambda row: lengths[row]):
        while rows := list(islice(group, batch_size)):
            yield pad_batch(rows, batch_size)


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

    def encode(rows: list[int]) -> int:
        with torch.inference_mode():
            states = encoder.model.get_text_features(torch.tensor([ids[row] for row in rows], device=encoder.device))
        last = states.last_hidden_state.half().cpu().numpy()
        pooled[rows] = states.pooler_output.half().cpu().numpy()
        for row, vectors in zip(rows, last, strict=True):
            tokens[row] = vectors
        return len(set(rows))

    tick = counting("texts", len(texts))
    threads, _ = encoder_threads(encoder)
    with fast_cpu_matmul(encoder.device), threads:
        for done in threads.map(encode, batches_of_one_length([len(text) for text in ids], batch_size)):
            tick(done)
    return tokens, pooled, sum(len(text) > limit for text in whole)


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
