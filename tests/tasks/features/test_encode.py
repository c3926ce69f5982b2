"""Frames are prepared as CLIP does, whatever their size; long pictures and changing videos."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.features.clip import FOLDER, Clip, Encoder, load, normalise
from penumbra.tasks.features.decoders import Decoder
from penumbra.tasks.features.frames import Picture, resize
from penumbra.tasks.features.video import VideoFeatures, Videos, encode_video, frame_states
from penumbra.tasks.stage import build as run_stage
from tests.films import film
from tests.rows import annotation, build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(Clip(encoder="tiny-clip"))


@pytest.mark.parametrize("size", [(160, 160), (48, 64), (97, 1500), (1, 1), (1080, 1920)])
def test_preprocessing_equals_that_of_clip(encoder: Encoder, size: tuple[int, int]) -> None:
    pictures: list[Picture] = [*np.random.default_rng(0).integers(0, 256, (3, *size, 3), np.uint8)]
    resized = [resize(it, encoder.resizing) for it in pictures]
    ours = normalise(resized, encoder)
    processor = CLIPImageProcessorPil.from_pretrained(FOLDER)
    theirs = processor(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=0)


def test_a_picture_that_is_shown_for_long_is_encoded_once(encoder: Encoder, tmp_path: Path) -> None:
    path, batches = film(tmp_path / "a.mp4", times=[0, 500, 3_600_000]), list[int]()

    def counted(model: Any, pixels: torch.Tensor) -> torch.Tensor:
        batches.append(len(pixels))
        return frame_states(model, pixels)

    with closing(Decoder(1.0, encoder.resizing)) as decoder:
        features = encode_video(encoder, decoder, path, batch_size=4, states=counted).features
    assert batches == [4]
    assert len(features) == 1 + 3600 // encoder.frames
    np.testing.assert_array_equal(features[1:-2], features[2:-1])
    assert (features[0] != features[-1]).any()


def test_a_video_that_changes_before_it_is_encoded_is_refused(store: Store, tmp_path: Path) -> None:
    annotations = build(store, "annotations", [annotation("a1", "a person runs.", vid="a", duration=2.0)])
    clip, path = Clip(encoder="tiny-clip"), film(tmp_path / "a.mp4")
    stage = VideoFeatures(annotations, tmp_path, clip, Videos())
    assert stage.work.inputs["videos"]
    film(path, 25)
    with pytest.raises(ArtifactError, match=r"a\.mp4 was changed while it was read"):
        run_stage(stage)
    artifact = run_stage(VideoFeatures(annotations, tmp_path, clip, Videos()))
    assert artifact != stage.artifact
    assert store.manifest(artifact).notes == {}
