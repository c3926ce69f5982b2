"""Frames through CLIP: the numbers of a plain transformers call, whatever the size, the batch and the company."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from penumbra.tasks.features import clip as pixels
from penumbra.tasks.features.clip import FOLDER, Clip, Encoder, load
from penumbra.tasks.features.decoders import DecoderMessage, Video
from penumbra.tasks.features.encode import Encoded, FrameEncoder
from penumbra.tasks.features.frames import Picture, VideoSummary

pytestmark = pytest.mark.slow

SIZES = [(160, 160), (48, 64), (360, 202), (97, 1500), (1, 1), (1080, 1920)]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(Clip(encoder="tiny-clip", device="cpu"))


def picture(rows: int, columns: int, seed: int) -> Picture:
    """Smooth and noisy parts, as photographs have."""
    chance = np.random.default_rng(seed)
    ramp = np.linspace(0, 255, rows * columns * 3).reshape(rows, columns, 3)
    return np.where(chance.random((rows, columns, 1)) < 0.5, ramp, chance.integers(0, 256, (rows, columns, 3))).astype(
        np.uint8
    )


def messages_of(frames: dict[str, list[Picture]], order: list[tuple[str, int]]) -> Iterator[DecoderMessage]:
    left = {vid: len(pictures) for vid, pictures in frames.items()}
    for vid, index in order:
        video = Video(vid, Path(vid))
        yield DecoderMessage(video, frames[vid][index])
        left[vid] -= 1
        if not left[vid]:
            yield DecoderMessage(video, summary=VideoSummary(1.0, len(frames[vid])))


def one_after_the_other(frames: dict[str, list[Picture]]) -> list[tuple[str, int]]:
    return [(vid, index) for vid, pictures in frames.items() for index in range(len(pictures))]


def encode(encoder: Encoder, frames: dict[str, list[Picture]], batch_size: int) -> dict[str, npt.NDArray[np.float16]]:
    done: list[Encoded] = list(
        FrameEncoder(encoder, batch_size).encode(messages_of(frames, one_after_the_other(frames)))
    )
    return {each.video.vid: each.features for each in done if each.features is not None}


def clips_of(pixels: torch.Tensor, frames: int) -> torch.Tensor:
    """Frames (n, 3, rows, columns) as clips of so many, the last one filled up with its last frame."""
    filled = torch.cat([pixels, pixels[-1:].expand(-len(pixels) % frames, -1, -1, -1)])
    return filled.reshape(-1, 3 * frames, *pixels.shape[2:])


def plainly(pictures: list[Picture]) -> torch.Tensor:
    """transformers' own preprocessing."""
    processor = CLIPImageProcessorPil.from_pretrained(FOLDER)
    pixels: torch.Tensor = processor(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    return pixels


@pytest.mark.parametrize("size", SIZES)
def test_preprocessing_is_clip_s_own(encoder: Encoder, size: tuple[int, int]) -> None:
    pictures = [picture(*size, seed) for seed in range(3)]
    theirs, ours = plainly(pictures), pixels.preprocess(pictures, encoder.processing, encoder.device)
    assert ours.shape == theirs.shape
    step = 1 / 255 / min(encoder.processing.deviation)
    assert (ours - theirs).abs().max() <= 1.01 * step, "more than one of 255 levels"
    assert ((ours - theirs).abs() > 0.5 * step).float().mean() < 0.004


def test_frames_of_a_clip_are_preprocessed_as_each_by_itself(encoder: Encoder) -> None:
    pictures = [picture(97, 150, seed) for seed in range(3)]
    together = pixels.preprocess([np.concatenate(pictures, axis=2)], encoder.processing, encoder.device)
    apart = pixels.preprocess(pictures, encoder.processing, encoder.device)
    assert torch.equal(together[0], apart.flatten(0, 1))


def test_a_clip_has_as_many_frames_as_the_encoder_sees(encoder: Encoder) -> None:
    """The shipped one sees three, in their order; the last frame fills the last clip up."""
    assert encoder.frames == 3
    first, second, third, fourth = (picture(64, 80, seed) for seed in range(4))
    found = encode(encoder, {"a": [first, second, third, fourth], "b": [third, second, first]}, 8)
    assert [len(found[vid]) for vid in "ab"] == [2, 1]
    assert not np.allclose(found["a"][0], found["b"][0], atol=1e-2)
    filled = encode(encoder, {"a": [first, second, third, fourth, fourth, fourth]}, 8)["a"]
    assert filled.tobytes() == found["a"].tobytes()


def test_features_are_those_of_a_plain_call(encoder: Encoder) -> None:
    frames = {f"v{i}": [picture(*size, seed) for seed in range(4)] for i, size in enumerate(SIZES)}
    found = encode(encoder, frames, 8)
    model = CLIPModel.from_pretrained(FOLDER, dtype=torch.float32)
    for vid, pictures in frames.items():
        with torch.inference_mode():
            plain = model.get_image_features(clips_of(plainly(pictures), encoder.frames)).pooler_output.numpy()
        assert found[vid].dtype == np.float16
        assert np.abs(found[vid] - plain).max() < 1e-3 * max(1.0, np.abs(plain).max())


def test_a_frame_s_features_don_t_depend_on_its_company(encoder: Encoder) -> None:
    """Other videos, another order, a batch that is not full: the same bytes."""
    frames = {f"v{i}": [picture(64 + i, 80, seed) for seed in range(5)] for i in range(5)}
    found = encode(encoder, frames, 8)
    mixed = [(vid, index) for index in range(5) for vid in frames]
    again = {e.video.vid: e.features for e in FrameEncoder(encoder, 8).encode(messages_of(frames, mixed))}
    alone = {vid: encode(encoder, {vid: pictures}, 8)[vid] for vid, pictures in frames.items()}
    for vid in frames:
        assert again[vid] is not None
        assert found[vid].tobytes() == again[vid].tobytes() == alone[vid].tobytes()


def test_large_frames_don_t_wait_for_a_full_batch(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    from penumbra.tasks.features import encode as module

    monkeypatch.setattr(module, "RESIZED_AT_ONCE", 100_000)
    frames = {"a": [picture(200, 300, seed) for seed in range(9)]}
    many = encode(encoder, frames, 4)["a"]
    monkeypatch.undo()
    assert many.tobytes() == encode(encoder, frames, 4)["a"].tobytes()


def test_a_video_that_fails_half_way_gives_its_reason_only(encoder: Encoder) -> None:
    good, bad = Video("good", Path("good")), Video("bad", Path("bad"))
    messages = [
        DecoderMessage(bad, picture(9, 9, 0)),
        DecoderMessage(good, picture(9, 9, 1)),
        DecoderMessage(bad, reason="decoder failed"),
        DecoderMessage(good, summary=VideoSummary(0.5, 1)),
    ]
    done = {each.video.vid: each for each in FrameEncoder(encoder, 2).encode(messages)}
    assert done["bad"].reason == "decoder failed"
    assert done["bad"].features is None
    assert done["good"].features is not None
    assert done["good"].features.shape == (1, encoder.model.config.projection_dim)
