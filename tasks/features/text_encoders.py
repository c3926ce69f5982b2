"""What makes vectors of texts: CLIP's text side, or any text encoder of transformers or sentence-transformers.

CLIP's `tokens` are after its final layer norm, and `pooled` is the end token's state projected into the space that
texts and frames share. Any other's are its last hidden states, and what sentence-transformers pools of them: of a plain
transformers model, which says nothing of pooling, their mean. Texts of one length are encoded together, so that
nothing is padded and a text's vectors do not depend on its company.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penumbra.tasks.devices import device_of, fast_cpu_matmul, pad_batch
from penumbra.tasks.features.clip import Clip, Encoder, encoder_threads, load, source
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.progress import counting
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
