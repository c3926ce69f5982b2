"""CLIP through transformers: the encoder of texts and of frames, with its own tokenizer and preprocessing.

Any CLIP that transformers knows, by its name on the hub or as a folder; `tiny-clip` is the one that comes with the
project. Features are those of `CLIPModel.get_text_features` and `get_image_features`. A CLIP whose vision tower takes
3·n channels sees n frames of a clip at once, in their order, and so how things move.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.devices import attention_implementation, device_of
from penumbra.tasks.stage import Parameters

if TYPE_CHECKING:
    import torch

SHIPPED = "tiny-clip"
FOLDER = PROJECT / "models" / "tiny_clip"
COLOURS = 3  # channels of a frame
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # as the images library numbers them, and preprocessor_config.json


class Clip(Parameters):
    """Which CLIP makes features of texts and of frames."""

    encoder: str = Field(
        "openai/clip-vit-base-patch32",
        description="A CLIP of transformers: a name on the hub or a folder; `tiny-clip` comes with the project.",
    )
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1` …; `auto` is a GPU where there is one.")
    precision: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="What the encoder computes in; features are stored as halves in any case."
    )


class ClipError(PenumbraError):
    """The encoder can't be loaded."""


@dataclass(frozen=True)
class Processing:
    """CLIP's preprocessing, from preprocessor_config.json: shortest side or exact size, resampling, crop, colours."""

    shortest: int | None
    size: tuple[int, int]
    crop: tuple[int, int] | None
    resampling: str
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Encoder:
    """A loaded CLIP: model on its device, tokenizer, preprocessing."""

    name: str
    model: Any
    tokenizer: Any
    processing: Processing
    device: "torch.device"
    dtype: "torch.dtype"

    @property
    def frames(self) -> int:
        """How many frames of a clip it sees at once, three channels each."""
        return int(self.model.config.vision_config.num_channels) // COLOURS


def encoder_threads(encoder: Encoder) -> tuple[ThreadPoolExecutor, int]:
    """Threads that run the encoder, and how many: one for a GPU; on a CPU one a core, each with a batch of its own.

    Threads that share a batch wait for each other at every step, and for whatever else runs on their cores: on a busy
    machine that takes ten times as long.
    """
    import torch

    if encoder.device.type != "cpu":
        return ThreadPoolExecutor(1, "encoder"), 1
    together = torch.get_num_threads()
    threads = ThreadPoolExecutor(together, "encoder", torch.set_num_threads, (1,))
    started = threading.Barrier(together)
    for ready in [threads.submit(started.wait) for _ in range(together)]:  # so that every thread has set its number
        ready.result()
    torch.set_num_threads(together)  # of this thread, and of those to come
    return threads, together


def source(encoder: str) -> str:
    """The folder or hub name to load."""
    return str(FOLDER) if encoder == SHIPPED else encoder


def digests(clip: Clip) -> dict[str, str]:
    """The digest of the encoder's files where it is a folder, as key material of a stage."""
    folder = Path(source(clip.encoder)).expanduser()
    return {"encoder": file_digest(folder)} if folder.is_dir() else {}


def patch_sizes(encoder: Encoder) -> tuple[int, int]:
    """Patches along each side of a frame, and the width of their states."""
    vision = encoder.model.config.vision_config
    return vision.image_size // vision.patch_size, vision.hidden_size


def load(clip: Clip) -> Encoder:
    """Load the encoder, once a process; raises `ClipError` with the remedy."""
    return _load(clip.encoder, clip.device, clip.precision)


@cache
def _load(name: str, device: str, precision: str) -> Encoder:
    import torch
    from transformers import AutoConfig, CLIPModel, CLIPTokenizer

    where = str(Path(source(name)).expanduser()) if Path(source(name)).expanduser().is_dir() else source(name)
    local = Path(where).is_dir()
    try:
        kind = AutoConfig.from_pretrained(where, local_files_only=local).model_type
        if kind != "clip":
            raise ClipError(f"{name} is a {kind} model, no CLIP: name a CLIP of transformers")
        dtype = getattr(torch, precision)
        model: Any = CLIPModel.from_pretrained(where, local_files_only=local, use_safetensors=True, dtype=dtype)
        channels = model.config.vision_config.num_channels
        if channels % COLOURS:
            raise ClipError(f"{name} takes {channels} channels, no whole number of frames with {COLOURS} each")
        tokenizer = CLIPTokenizer.from_pretrained(where, local_files_only=local)
        processing = read_processing(_processing_file(where, local))
    except (OSError, ValueError, KeyError) as error:
        raise ClipError(
            f"CLIP {name!r} can't be loaded ({type(error).__name__}): without a network give a folder, or `{SHIPPED}`, "
            "with --param encoder=…"
        ) from None
    try:
        target = device_of(device)
        if attention := attention_implementation(target):
            model.set_attn_implementation(attention)
        return Encoder(name, model.eval().to(target), tokenizer, processing, target, dtype)
    except RuntimeError as error:
        raise ClipError(f"CLIP can't be put on device {device!r}: {str(error).splitlines()[0]}") from None


def _processing_file(where: str, local: bool) -> Path:
    if local:
        return Path(where) / "preprocessor_config.json"
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(where, "preprocessor_config.json"))


def read_processing(file: Path) -> Processing:
    """What preprocessor_config.json asks for; raises ValueError or KeyError where that is nothing that CLIP does."""
    config = json.loads(file.read_text(encoding="utf-8"))
    size, crop = config["size"], config["crop_size"]
    size = {"shortest_edge": size} if isinstance(size, int) else size
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    shortest = size.get("shortest_edge")
    return Processing(
        shortest=shortest,
        size=(shortest or size["height"], shortest or size["width"]),
        crop=(crop["height"], crop["width"]) if config.get("do_center_crop", True) else None,
        resampling=RESAMPLING[config.get("resample", 3)],
        scale=config.get("rescale_factor", 1 / 255),
        mean=tuple(config["image_mean"]),
        deviation=tuple(config["image_std"]),
    )
