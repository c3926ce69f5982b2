"""VDI's motion from end to end: real films to patches, patches to a trained model, which predicts without them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.extract_features import extract_features
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip, load, normalise, patch_sizes
from penumbra.tasks.features.frames import VideoSummary, clip_frames, resize
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.batches.examples import load_patches
from penumbra.tasks.grounding.configs import RunChoice, Training
from penumbra.tasks.grounding.evaluation.predictions import sources_of_run
from penumbra.tasks.grounding.families.vdi import VDIConfig
from penumbra.tasks.stage import build
from penumbra.tasks.text.tags import Tagging, Tags
from tests.films import film
from tests.grounding_data import TINY_MAP

TINY = Clip(encoder="tiny-clip")
INTERVAL, LENGTHS = 0.5, {"a": 10, "b": 23, "c": 20, "d": 16}  # frames of a film, ten a second


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("motion")
    (folder / "videos").mkdir()
    videos = {}
    for vid, frames in {**LENGTHS, "broken": 10}.items():
        sentences = ["a person opens the door.", f"a person puts the {vid} cup down."]
        videos[vid] = {"sentences": sentences, "timestamps": [[0, 0.5], [0.4, 0.9]], "duration": frames / 10}
    for vid, frames in LENGTHS.items():
        film(folder / "videos" / f"{vid}.mp4", frames)
    (folder / "videos" / "broken.mp4").write_text("no video")
    (folder / "train.json").write_text(json.dumps(videos))
    (folder / "test_trivial.json").write_text(json.dumps({"a": videos["a"]}))
    return folder


@pytest.fixture(scope="module")
def store(folder: Path, module_store: Store, prefect_server: None) -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penumbra.tasks.features.video.PATCH_INTERVAL", INTERVAL)
        videos = Videos(folder=str(folder / "videos"), clip_length=0.25, patches=True)
        extract_features(dataset(folder), TINY, Texts(), videos)
        build(Tags(annotations(module_store), Tagging()))
        yield module_store


def dataset(folder: Path) -> Dataset:
    return Dataset(name="motion", folder=str(folder))


def annotations(store: Store) -> Artifact:
    return store.newest("motion", "annotations")


@pytest.fixture(scope="module")
def run(folder: Path, store: Store) -> Artifact:
    training = Training(epochs=1, batch_size=4, learning_rate=1e-3, evaluate_every=1, validation=0.3)
    model = VDIConfig(clip_encoder="tiny-clip", losses={"spatial_dynamics": 0.5}, ablation=TINY_MAP)
    return train_grounding(dataset(folder), model=model, training=training)


def test_patches_are_clips_own_to_half_a_step_and_a_bad_video_has_a_reason(store: Store, folder: Path) -> None:
    artifact = store.newest("motion", "patch_features")
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    refused = [(row["qid"], row["reason"]) for part in store.rejected(artifact) for row in part.to_pylist()]
    assert (set(rows), refused) == (set(LENGTHS), [("broken", "file can't be opened as a video")])
    encoder = load(TINY)
    side, width = patch_sizes(encoder)
    for vid, row in rows.items():
        pictures = list(clip_frames(folder / "videos" / f"{vid}.mp4", INTERVAL / encoder.frames, VideoSummary()))
        pictures += pictures[-1:] * (-len(pictures) % encoder.frames)
        pictures = [resize(it, encoder.resizing) for it in pictures]
        starts = range(0, len(pictures), encoder.frames)
        clips = [np.concatenate(pictures[n : n + encoder.frames], axis=2) for n in starts]
        assert np.allclose(row["seconds"], [(n + 0.5) * INTERVAL for n in range(len(clips))], atol=INTERVAL / 2)
        assert max(row["seconds"]) <= LENGTHS[vid] / 10 + 1e-6
        with torch.inference_mode():
            pixels = normalise(clips, encoder)
            states = encoder.model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:].numpy()
            own = encoder.model.get_image_features(pixels).pooler_output.numpy()
        np.testing.assert_allclose(np.array(row["frames"], np.float32), own, rtol=2e-3, atol=2e-3)
        assert (row["encoder"], row["grid"], states.shape[1:]) == ("tiny-clip", [side, side], (side**2, width))
        scale = np.array(row["scale"])[:, None, None]
        values = np.frombuffer(row["patches"], np.int8).reshape(states.shape)
        assert np.abs(values).max() == 127
        halves = np.abs(states) * 2.0**-11 + 2e-3  # drafts are halves
        assert (np.abs(values * scale - states) <= 0.5 * scale + halves).all()


def test_each_frame_is_read_with_its_own_patches_and_vector(store: Store) -> None:
    artifact = store.newest("motion", "patch_features")
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    patches = load_patches(artifact, {"d": 0, "without patches": 1, "b": 2})
    frames, states, mask = patches.gather(np.array([2, 1, 0]))
    assert mask.sum(1).tolist() == [len(rows["b"]["scale"]), 0, len(rows["d"]["scale"])]
    for place, vid in ((0, "b"), (2, "d")):
        found, row = mask[place], rows[vid]
        np.testing.assert_array_equal(frames[place][found].numpy(), np.array(row["frames"], np.float32))
        values = np.frombuffer(row["patches"], np.int8).reshape(states[place][found].shape)
        np.testing.assert_allclose(states[place][found], values * np.array(row["scale"])[:, None, None], rtol=1e-6)


def test_it_trains_and_is_judged_and_reads_no_patches_then(run: Artifact, folder: Path, store: Store) -> None:
    terms = {row["name"]: row["value"] for row in store.table(run).to_pylist()}
    assert 0 < terms["spatial_dynamics"] < 4
    assert [parent.stage for parent in store.manifest(run).parents].count("patch_features") == 1
    figures = store.table(evaluate_grounding(dataset(folder), RunChoice(run=run.key)))
    assert "mIoU" in figures["metric"].to_pylist()
    assert sources_of_run(run, annotations(store)).patch_features is None
