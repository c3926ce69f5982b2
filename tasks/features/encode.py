"""Encode the frames of a video.

All batches have the same size (the last one of a video is padded with zeros), so a run that was killed and continues
gives the same bytes. A GPU computes one batch while the next one is decoded: its results are copied at the end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penumbra.tasks.features.clip import Encoder, normalise
from penumbra.tasks.features.decoders import Decoder
from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.frames import Picture, VideoSummary
from penumbra.tasks.features.reading import Float16Array

BATCH_SIZE = 32

States = Callable[[Any, torch.Tensor], torch.Tensor]  # a CLIP model and pixels of frames → states, one row a frame


def frame_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return the frames' vectors in the space that they share with texts [frames, dimension]."""
    states: torch.Tensor = model.get_image_features(pixels).pooler_output
    return states


def patch_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return each frame's patches (last hidden states), then its vector [frames, patches·width + dimension]."""
    states = model.vision_model(pixel_values=pixels)
    patches = states.last_hidden_state[:, 1:].flatten(1)
    return torch.cat((patches, model.visual_projection(states.pooler_output)), dim=1)


@dataclass(frozen=True)
class EncodedVideo:
    """The features (clips, …) of a video with what decoding has shown; or the reason why there are none."""

    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnails: tuple[tuple[int, bytes], ...] = ()  # index of the frame, JPEG
    reason: str = ""
    value: str = ""


def encode_video(
    encoder: Encoder,
    decoder: Decoder,
    path: Path,
    batch_size: int = BATCH_SIZE,
    states: States = frame_states,
    thumbnails: int = 0,
) -> EncodedVideo:
    """Decode and encode a video, `Encoder.frames` frames a clip; `states` are the features that are kept."""
    summary, rows, counts = VideoSummary(), list[torch.Tensor](), list[int]()
    frames = decoder.frames(path, summary, thumbnails)

    def clips() -> Iterator[Picture]:
        """Yield the frames of each clip as one picture of 3·n channels; the last frame is repeated as needed.

        Equal pictures that follow each other are yielded once and counted: a still picture may be shown for a day.
        """
        last: Picture | None = None
        while clip := list(islice(frames, encoder.frames)):
            clip += clip[-1:] * (encoder.frames - len(clip))
            picture = np.concatenate(clip, axis=2)
            if last is not None and np.array_equal(picture, last):
                counts[-1] += 1
                continue
            counts.append(1)
            last = picture
            yield picture

    pictures = clips()
    try:
        with torch.inference_mode():
            while batch := list(islice(pictures, batch_size)):
                pixels = normalise(batch, encoder)
                padding = pixels.new_zeros(batch_size - len(batch), *pixels.shape[1:])
                rows.append(states(encoder.model, torch.cat([pixels, padding]))[: len(batch)].half())
            features: Float16Array = np.repeat(torch.cat(rows).cpu().numpy(), counts, axis=0)
    except VideoError as error:
        return EncodedVideo(reason=error.reason, value=error.value)
    return EncodedVideo(features, summary, tuple(decoder.thumbnails))
