"""CLIP through transformers: the encoder of texts and frames, with its own tokenizer and preprocessing.

Any CLIP of transformers can be used; `tiny-clip` comes with the project. A CLIP whose vision tower takes 3·n channels
sees n frames of a clip at once, in order, and can therefore see motion.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.devices import attention_implementation, device_of
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.frames import Picture, Resizing
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.text.embeddings import encoder_inputs

if TYPE_CHECKING:
    import torch

SHIPPED = "tiny-clip"
FOLDER = PROJECT / "models" / "tiny_clip"
CHANNELS = 3  # of a frame


class Clip(Parameters):
    """Which CLIP makes the features of texts and frames."""

    encoder: str = Field(
        "openai/clip-vit-base-patch32",
        description="A CLIP of transformers: a name on the hub or a folder; `tiny-clip` comes with the project.",
    )


@dataclass(frozen=True)
class Encoder:
    """A loaded CLIP: the model on its device, the tokenizer and the preprocessing."""

    name: str
    model: Any
    tokenizer: Any
    resizing: Resizing
    scale: float  # factor of a pixel's byte
    mean: tuple[float, ...]  # of each channel
    deviation: tuple[float, ...]
    device: "torch.device"

    @property
    def frames(self) -> int:
        """Return how many frames of a clip the model sees at once."""
        return int(self.model.config.vision_config.num_channels) // CHANNELS


def encoder_threads(encoder: Encoder, on_gpu: int = 1) -> ThreadPoolExecutor:
    """Return the threads that run the encoder: `on_gpu` threads for a GPU, one per core with its own batches on a CPU.

    Threads that share a batch wait for each other at every operation, ten times longer on a busy machine.
    """
    import torch

    if encoder.device.type != "cpu":
        return ThreadPoolExecutor(on_gpu, "encoder")
    number = before = torch.get_num_threads()
    threads = ThreadPoolExecutor(number, "encoder", torch.set_num_threads, (1,))
    barrier = threading.Barrier(number)
    for started in [threads.submit(barrier.wait) for _ in range(number)]:  # until each thread has set its own number
        started.result()
    torch.set_num_threads(before)  # in this thread and in later ones
    return threads


def source(encoder: str) -> str:
    return str(FOLDER) if encoder == SHIPPED else encoder


def digests(clip: Clip) -> dict[str, str]:
    """Return the digest of the encoder's files, or its commit on the hub, as key material; nothing if it is missing."""
    return encoder_inputs("encoder", source(clip.encoder))


def required_digests(clip: Clip) -> dict[str, str]:
    """Return `digests`, for a stage that needs the encoder; raise `FeatureError` if the encoder is missing."""
    found = digests(clip)
    if not found:
        raise not_loaded(clip.encoder, "not found")
    return found


def not_loaded(encoder: str, why: str) -> FeatureError:
    return FeatureError(
        f"encoder {encoder!r} can't be loaded ({why}): without a network give a folder, or `{SHIPPED}`, "
        "with --param clip.encoder=tiny-clip"
    )


def patch_sizes(encoder: Encoder) -> tuple[int, int]:
    """Return the number of patches along each side of a frame, and the width of their states."""
    vision = encoder.model.config.vision_config
    return vision.image_size // vision.patch_size, vision.hidden_size


@cache
def load(clip: Clip, on_cpu: bool = False) -> Encoder:
    """Load the encoder, once per process and device; raise `FeatureError` with a remedy if that fails."""
    import torch
    from transformers import AutoConfig, CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading; downloads have another bar
    name, folder = clip.encoder, Path(source(clip.encoder)).expanduser()
    local = folder.is_dir()
    origin = str(folder) if local else name
    try:
        kind = AutoConfig.from_pretrained(origin, local_files_only=local, trust_remote_code=False).model_type
        if kind != "clip":
            raise FeatureError(f"{name} is a {kind} model and no CLIP: name a CLIP of transformers")
        options: dict[str, Any] = {"local_files_only": local, "use_safetensors": True, "dtype": torch.float32}
        loaded: Any = CLIPModel.from_pretrained(origin, output_loading_info=True, **options)
        model, report = loaded
        if missing := len(report["missing_keys"]):  # transformers would replace them by random numbers
            raise not_loaded(name, f"it lacks {missing} of its weights")
        if model.config.vision_config.num_channels % CHANNELS:
            raise FeatureError(f"{name} takes pictures whose number of channels is no multiple of {CHANNELS}")
        tokenizer = CLIPTokenizer.from_pretrained(origin, local_files_only=local)
        read: Any = CLIPImageProcessorPil.from_pretrained(origin, local_files_only=local)
        size = (read.size.shortest_edge,) if read.size.shortest_edge else (read.size.height, read.size.width)
        crop = (read.crop_size.height, read.crop_size.width) if read.do_center_crop else None
        resizing = Resizing(size, crop, int(read.resample))
        numbers = read.rescale_factor, tuple(read.image_mean), tuple(read.image_std)
    except FeatureError:
        raise
    except Exception as error:  # a wrong value in a configuration fails where it is first used
        raise not_loaded(name, type(error).__name__) from None
    target = torch.device("cpu") if on_cpu else device_of()
    if attention := attention_implementation(target):
        model.set_attn_implementation(attention)
    return Encoder(name, model.eval().to(target), tokenizer, resizing, *numbers, target)


def normalise(pictures: Sequence[Picture], encoder: Encoder) -> "torch.Tensor":
    """Normalise frames of one size: uint8 (rows, columns, 3·n) → float32 (frames, 3·n, rows, columns)."""
    import torch

    stacked = torch.from_numpy(np.stack(pictures))
    stacked = stacked.pin_memory() if encoder.device.type == "cuda" else stacked  # copied while the GPU computes
    pixels = stacked.to(encoder.device, non_blocking=True).permute(0, 3, 1, 2)
    frames = pixels.shape[1] // CHANNELS
    mean = torch.tensor(encoder.mean * frames, device=encoder.device).view(-1, 1, 1)
    deviation = torch.tensor(encoder.deviation * frames, device=encoder.device).view(-1, 1, 1)
    return (pixels.float() - mean / encoder.scale) / (deviation / encoder.scale)
