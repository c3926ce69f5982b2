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

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from penumbra.tasks.features.frames import Picture

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


RESIZED_AT_ONCE = 32 << 20  # bytes of frames that are resized at once


def resized(height: int, width: int, processing: Processing) -> tuple[int, int]:
    """Rows and columns after resizing: the shorter side as asked, the longer one in proportion, rounded down."""
    if processing.shortest is None:
        return processing.size
    short, long = sorted((height, width))
    longer = int(processing.shortest * long / short)
    return (processing.shortest, longer) if height <= width else (longer, processing.shortest)


def preprocess(pictures: Sequence[Picture], processing: Processing, device: torch.device) -> torch.Tensor:
    """Frames (rows, columns, 3) of any sizes → float32 (frames, 3, rows, columns) on the device, in their order.

    Several frames of a clip may lie one after the other in the last axis: 3·n channels in, 3·n out.
    """
    with torch.inference_mode():
        return _preprocess_all(pictures, processing, device)


def _preprocess_all(pictures: Sequence[Picture], processing: Processing, device: torch.device) -> torch.Tensor:
    by_size: dict[tuple[int, ...], list[int]] = {}
    for index, picture in enumerate(pictures):
        by_size.setdefault(picture.shape, []).append(index)
    prepared: list[torch.Tensor | None] = [None] * len(pictures)
    for shape, indices in by_size.items():
        several = max(1, RESIZED_AT_ONCE // int(np.prod(shape)))
        for start in range(0, len(indices), several):
            some = indices[start : start + several]
            stacked = torch.from_numpy(np.stack([pictures[index] for index in some]))
            ready = _preprocess(stacked.to(device, non_blocking=True).permute(0, 3, 1, 2), processing)
            for index, pixels in zip(some, ready, strict=True):
                prepared[index] = pixels
    return torch.stack([pixels for pixels in prepared if pixels is not None])


def _preprocess(pixels: torch.Tensor, processing: Processing) -> torch.Tensor:
    """uint8 (frames, 3, rows, columns) → float32, resized, cut and normalised."""
    size = resized(pixels.shape[2], pixels.shape[3], processing)
    if size != tuple(pixels.shape[2:]):
        pixels = _resize(pixels, size, processing.resampling)
    if processing.crop:
        pixels = _middle(pixels, processing.crop)
    frames = pixels.shape[1] // COLOURS
    mean = torch.tensor(processing.mean * frames, device=pixels.device).view(-1, 1, 1)
    deviation = torch.tensor(processing.deviation * frames, device=pixels.device).view(-1, 1, 1)
    return (pixels.float() - mean / processing.scale) / (deviation / processing.scale)


def _resize(pixels: torch.Tensor, size: tuple[int, int], resampling: str) -> torch.Tensor:
    """Whole numbers from 0 to 255: columns, then rows, rounded after each as images libraries round.

    torch's own resizing of bytes is faster on a CPU, and off by one in several times as many pixels.
    """
    for shape in ((pixels.shape[2], size[1]), size):
        floats = functional.interpolate(pixels.float(), shape, mode=resampling, antialias=True, align_corners=False)
        pixels = floats.round_().clamp_(0, 255)
    return pixels


def _middle(pixels: torch.Tensor, crop: tuple[int, int]) -> torch.Tensor:
    """The middle of the pictures; black around them where they are smaller."""
    rows, columns = crop[0] - pixels.shape[2], crop[1] - pixels.shape[3]
    if rows > 0 or columns > 0:
        down, right = max(rows, 0), max(columns, 0)
        pixels = functional.pad(pixels, (right // 2, (right + 1) // 2, down // 2, (down + 1) // 2))
    top, left = (pixels.shape[2] - crop[0]) // 2, (pixels.shape[3] - crop[1]) // 2
    return pixels[:, :, top : top + crop[0], left : left + crop[1]]
