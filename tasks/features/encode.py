"""Encode the frames of a video, and keep the features of each finished video as a draft.

All batches have the same size (the last one of a video is padded with zeros), so a run that was killed and continues
gives the same bytes. A GPU computes one batch while the next one is decoded: its results are copied at the end.
"""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import DRAFTS, Store
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

    vid: str
    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnails: tuple[tuple[int, bytes], ...] = ()  # index of the frame, JPEG
    reason: str = ""
    value: str = ""


def encode_video(
    encoder: Encoder,
    decoder: Decoder,
    path: Path,
    vid: str = "",
    batch_size: int = BATCH_SIZE,
    states: States = frame_states,
    thumbnails: int = 0,
) -> EncodedVideo:
    """Decode and encode a video, `Encoder.frames` frames a clip; `states` are the features that are kept."""
    summary, rows = VideoSummary(), list[torch.Tensor]()
    clips = clips_of(decoder.frames(path, summary, thumbnails), encoder.frames)
    try:
        with torch.inference_mode():
            while batch := list(islice(clips, batch_size)):
                pixels = normalise(batch, encoder.processing, encoder.device)
                padding = pixels.new_zeros(batch_size - len(batch), *pixels.shape[1:])
                rows.append(states(encoder.model, torch.cat([pixels, padding]))[: len(batch)].half())
            features: Float16Array = torch.cat(rows).cpu().numpy()
    except VideoError as error:
        return EncodedVideo(vid, reason=error.reason, value=error.value)
    return EncodedVideo(vid, features, summary, tuple(decoder.thumbnails))


def clips_of(frames: Iterator[Picture], number: int) -> Iterator[Picture]:
    """Yield each `number` frames as one picture of 3 · `number` channels; the last frame is repeated as needed."""
    while clip := list(islice(frames, number)):
        clip += clip[-1:] * (number - len(clip))
        yield np.concatenate(clip, axis=2)


# -- drafts: the finished videos of an unfinished artifact, which are not decoded again after kill -9 -----------------


def draft_name(vid: str) -> str:
    """Return the path of a video's draft in the artifact's folder."""
    return f"{DRAFTS}/{sha256(vid.encode(errors='replace')).hexdigest()[:32]}.npz"


def write_draft(store: Store, artifact: Artifact, video: EncodedVideo) -> None:
    """Keep the features of a video, or the reason why there are none."""
    facts = {"vid": video.vid, "summary": asdict(video.summary), "reason": video.reason, "value": video.value}
    features = video.features if video.features is not None else np.zeros((0, 0), np.float16)
    data = io.BytesIO()
    np.savez(data, features=features, video=np.frombuffer(json.dumps(facts).encode(), np.uint8))
    store.write_file(artifact, draft_name(video.vid), data.getvalue())


def read_draft(store: Store, artifact: Artifact, vid: str) -> EncodedVideo | None:
    data = store.read_file(artifact, draft_name(vid))
    if data is None:
        return None
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        facts = json.loads(arrays["video"].tobytes())
        features = None if facts["reason"] else arrays["features"]
        return EncodedVideo(**facts | {"summary": VideoSummary(**facts["summary"])}, features=features)
