"""Features of frames equal those of a plain transformers call, for any size, batch and order."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from penumbra.tasks.features.clip import FOLDER, Clip, Encoder, load, preprocess
from penumbra.tasks.features.decoders import DecoderMessage, Video
from penumbra.tasks.features.encode import FrameEncoder
from penumbra.tasks.features.frames import Picture, VideoSummary, resize

pytestmark = pytest.mark.slow

SIZES = [(160, 160), (48, 64), (97, 1500), (1, 1), (1080, 1920)]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(Clip(encoder="tiny-clip", device="cpu"))


def picture(rows: int, columns: int, seed: int) -> Picture:
    """A picture with smooth and noisy parts, as photographs have."""
    chance = np.random.default_rng(seed)
    ramp = np.linspace(0, 255, rows * columns * 3).reshape(rows, columns, 3)
    return np.where(chance.random((rows, columns, 1)) < 0.5, ramp, chance.integers(0, 256, (rows, columns, 3))).astype(
        np.uint8
    )


def encode(
    encoder: Encoder, frames: dict[str, list[Picture]], batch_size: int, order: list[tuple[str, int]] | None = None
) -> dict[str, npt.NDArray[np.float16]]:
    """Encode frames in the order that decoders send them: (video, index), or one video after the other."""
    order = order or [(vid, index) for vid, pictures in frames.items() for index in range(len(pictures))]
    left = {vid: len(pictures) for vid, pictures in frames.items()}
    messages = []
    for vid, index in order:
        video = Video(vid, Path(vid))
        messages.append(DecoderMessage(video, resize(frames[vid][index], encoder.processing.resizing)))
        left[vid] -= 1
        if not left[vid]:
            messages.append(DecoderMessage(video, summary=VideoSummary(1.0, len(frames[vid]))))
    done = FrameEncoder(encoder, batch_size).encode(messages)
    return {video.vid: video.features for video in done if video.features is not None}


def plainly(pictures: list[Picture]) -> torch.Tensor:
    """Preprocess with transformers."""
    processor = CLIPImageProcessorPil.from_pretrained(FOLDER)
    pixels: torch.Tensor = processor(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    return pixels


@pytest.mark.parametrize("size", SIZES)
def test_preprocessing_equals_that_of_clip(encoder: Encoder, size: tuple[int, int]) -> None:
    pictures = [picture(*size, seed) for seed in range(3)]
    ours = preprocess(pictures, encoder.processing, encoder.device)
    torch.testing.assert_close(ours, plainly(pictures), atol=1e-5, rtol=0)


def test_a_clip_has_as_many_frames_as_the_encoder_sees(encoder: Encoder) -> None:
    """The shipped encoder sees three frames in order; the last clip is padded with the last frame."""
    assert encoder.frames == 3
    first, second, third, fourth = (picture(64, 80, seed) for seed in range(4))
    found = encode(encoder, {"a": [first, second, third, fourth], "b": [third, second, first]}, 8)
    assert [len(found[vid]) for vid in "ab"] == [2, 1]
    assert not np.allclose(found["a"][0], found["b"][0], atol=1e-2)
    filled = encode(encoder, {"a": [first, second, third, fourth, fourth, fourth]}, 8)["a"]
    np.testing.assert_allclose(filled, found["a"], atol=4e-3)


def test_features_do_not_depend_on_the_other_frames_of_the_batch(encoder: Encoder) -> None:
    """Other videos, another order, a batch that is not full."""
    frames = {f"v{i}": [picture(64 + i, 80, seed) for seed in range(5)] for i in range(5)}
    found = encode(encoder, frames, 8)
    mixed = [(vid, index) for index in range(5) for vid in frames]
    again = encode(encoder, frames, 8, mixed)
    alone = {vid: encode(encoder, {vid: pictures}, 8)[vid] for vid, pictures in frames.items()}
    for vid in frames:
        np.testing.assert_allclose(again[vid], found[vid], atol=4e-3)
        np.testing.assert_allclose(alone[vid], found[vid], atol=4e-3)


def test_a_video_that_fails_halfway_has_only_a_reason(encoder: Encoder) -> None:
    good, bad = Video("good", Path("good")), Video("bad", Path("bad"))
    first, second = (resize(picture(9, 9, seed), encoder.processing.resizing) for seed in range(2))
    messages = [
        DecoderMessage(bad, first),
        DecoderMessage(good, second),
        DecoderMessage(bad, reason="decoder failed"),
        DecoderMessage(good, summary=VideoSummary(0.5, 1)),
    ]
    done = {video.vid: video for video in FrameEncoder(encoder, 2).encode(messages)}
    assert (done["bad"].reason, done["bad"].features) == ("decoder failed", None)
    assert done["good"].features is not None
    assert done["good"].features.shape == (1, encoder.model.config.projection_dim)
