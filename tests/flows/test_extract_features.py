"""`extract-features` on real Prefect: good and bad videos in, features and a page out; a model that reads patches."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.extract_features import extract_features
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import FOLDER, Clip, load, normalise, patch_sizes
from penumbra.tasks.features.extraction import ExtractedFeatures
from penumbra.tasks.features.frames import Picture, VideoSummary, clip_frames, resize
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.batches.examples import load_patches
from penumbra.tasks.grounding.configs import RunChoice, Training
from penumbra.tasks.grounding.evaluation.predictions import sources_of_run
from penumbra.tasks.grounding.families.vdi import VDIConfig
from penumbra.tasks.grounding.prediction import Grounder
from penumbra.tasks.stage import build
from penumbra.tasks.text.tags import Tagging, Tags
from tests.films import cut, film, lie_about_duration, sound, turn
from tests.grounding_data import TINY_MAP
from tests.markup import published

Made = tuple[Store, ExtractedFeatures]
TINY = Clip(encoder="tiny-clip")
INTERVAL = 0.5  # seconds of a clip, and between two frames whose patches are kept
GOOD = ("good", "turned", "uneven", "single", "pixel", "lying", "large", "upper")
BAD = {
    "missing": "no video file",
    "empty": "file can't be opened as a video",
    "text": "file can't be opened as a video",
    "sound": "file has no video stream",
    "broken": "damaged video breaks off",
    "short": "video is shorter than its annotations say",
    "ribbon": "picture is more than 50 times as long as it is wide",
}


def make_videos(folder: Path) -> dict[str, float]:
    """Every kind of file; returns the duration that the annotations tell of each."""
    film(folder / "good.mp4", 23)
    turn(film(folder / "turned.mp4"))
    film(folder / "uneven.mkv", times=[0, 100, 130, 1400, 1900])
    film(folder / "single.mp4", 1)
    film(folder / "pixel.mkv", 5, size=(1, 1), codec="ffv1")
    lie_about_duration(film(folder / "lying.mp4"))
    film(folder / "large.mkv", 1, size=(4320, 7680), codec="mjpeg")
    film(folder / "upper.mp4").rename(folder / "upper.MP4")
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "text.mp4").write_text("no video")
    sound(folder / "sound.mp4")
    cut(film(folder / "broken.mp4", 40, options={"movflags": "faststart"}), 0.5)
    film(folder / "short.mp4", 10)
    film(folder / "ribbon.mkv", 2, size=(2, 400), codec="ffv1")
    durations = dict.fromkeys((*GOOD, *BAD), 2.0)
    return durations | {"good": 2.3, "single": 0.1, "pixel": 0.5, "large": 0.1, "broken": 4.0, "short": 9.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    (folder / "videos").mkdir()
    rows = {}
    for vid, duration in make_videos(folder / "videos").items():
        sentences, timestamps = [f"a person opens the {vid} door.", "a person runs."], [[0, 0.05], [0, 0.1]]
        rows[vid] = {"sentences": sentences, "timestamps": timestamps, "duration": duration}
    (folder / "train.json").write_text(json.dumps(rows))
    (folder / "test_trivial.json").write_text(json.dumps({"good": rows["good"]}))
    return folder


def dataset(folder: Path) -> Dataset:
    return Dataset(name="films", folder=str(folder))


def refusals(store: Store, artifact: Artifact) -> dict[str, str]:
    return {row["qid"]: row["reason"] for part in store.rejected(artifact) for row in part.to_pylist()}


@pytest.fixture(scope="module")
def made(folder: Path, module_store: Store, prefect_server: None) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penumbra.tasks.features.video.PATCH_INTERVAL", INTERVAL)
        videos = Videos(folder=str(folder / "videos"), clip_length=INTERVAL, patches=True)
        yield module_store, extract_features(dataset(folder), TINY, Texts(), videos)


def test_good_videos_have_features_and_bad_ones_a_reason(made: Made) -> None:
    store, artifact = made[0], made[1].video_features[0]
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    assert rows.keys() == set(GOOD)
    assert refusals(store, artifact) == BAD
    manifest = store.manifest(artifact)
    assert (manifest.taken, manifest.kept) == (len(GOOD) + len(BAD), len(GOOD))
    assert manifest.notes["video turned as its metadata asks"] == 1
    assert store.verify(artifact) == []
    for row in rows.values():
        assert (row["encoder"], row["clip_length"]) == ("tiny-clip", 0.5)
        assert 0.5 * (len(row["features"]) - 1) < row["duration"] <= 0.5 * len(row["features"])
    assert rows["lying"]["duration"] == 2.0


def clips_of(path: Path, frames: int) -> list[list[Picture]]:
    """The frames of each clip; the last one's are repeated to its end."""
    pictures = list(clip_frames(path, INTERVAL / frames, VideoSummary()))
    pictures += pictures[-1:] * (-len(pictures) % frames)
    return [pictures[start : start + frames] for start in range(0, len(pictures), frames)]


def test_features_equal_those_of_a_plain_call(made: Made, folder: Path) -> None:
    """Frames and texts through transformers one at a time, padded to 77, as anyone would do it."""
    store, artifact = made[0], made[1].video_features[0]
    model = CLIPModel.from_pretrained(FOLDER, dtype=torch.float32)
    processor, frames = CLIPImageProcessorPil.from_pretrained(FOLDER), load(TINY).frames
    videos = read_features(artifact)
    for vid in ("good", "turned", "uneven", "large"):
        for index, clip in enumerate(clips_of(next((folder / "videos").glob(f"{vid}.*")), frames)):
            pixels = processor(clip, return_tensors="pt")["pixel_values"].flatten(0, 1)[None]
            with torch.inference_mode():
                plain = model.get_image_features(pixels).pooler_output[0].numpy()
            assert np.abs(videos[vid][index] - plain).max() < 1e-3 * max(1, np.abs(plain).max())
    artifact, tokenizer = store.newest("films", "text_features"), CLIPTokenizer.from_pretrained(FOLDER)
    texts, pooled = read_features(artifact), store.frame(artifact, ["text", "pooled"]).set_index("text")["pooled"]
    assert len(texts) == len(GOOD) + len(BAD) + 1, "each distinct text once"
    for text in ("a person runs.", "a person opens the good door."):
        inputs = tokenizer(text, padding="max_length", max_length=77, return_tensors="pt")
        with torch.inference_mode():
            plainly = model.get_text_features(**inputs)
        real = int(inputs["attention_mask"].sum())
        assert texts[text].shape[0] == real == len(tokenizer(text)["input_ids"])
        assert np.abs(texts[text] - plainly.last_hidden_state[0, :real].numpy()).max() < 4e-3
        assert np.abs(pooled[text] - plainly.pooler_output[0].numpy()).max() < 4e-3


def test_the_page_shows_figures_and_what_is_missing(made: Made) -> None:
    data = published("report-films-extract-features", "rows-films-video-features")
    page = data["report-films-extract-features"]
    for text in ("videos with features | 8 of 15", "Videos without features: 7", "no video file"):
        assert text in page
    assert "training leaves them out | train 14" in page
    assert json.loads(data["rows-films-video-features"])[0]["features"] == "5 × 192"


def test_a_missing_folder_of_videos_is_reported_at_once(prefect_server: None, folder: Path, store: Store) -> None:
    nowhere = Videos(folder=str(folder / "nowhere"))
    with pytest.raises(MissingError, match=r"no folder .*/nowhere of video files"):
        extract_features(dataset(folder), TINY, Texts(), nowhere)


def test_patches_are_clips_own_to_half_a_step_and_a_bad_video_has_a_reason(made: Made, folder: Path) -> None:
    store, artifact = made[0], made[1].patch_features
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    assert (rows.keys(), refusals(store, artifact).keys()) == (set(GOOD), set(BAD))
    encoder = load(TINY)
    side, width = patch_sizes(encoder)
    for vid in ("good", "turned", "lying"):
        row = rows[vid]
        pictures = clips_of(folder / "videos" / f"{vid}.mp4", encoder.frames)
        clips = [np.concatenate([resize(it, encoder.resizing) for it in clip], axis=2) for clip in pictures]
        assert np.allclose(row["seconds"], [(n + 0.5) * INTERVAL for n in range(len(clips))], atol=INTERVAL / 2)
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


def test_each_frame_is_read_with_its_own_patches_and_vector(made: Made) -> None:
    store, artifact = made[0], made[1].patch_features
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    patches = load_patches(artifact, {"turned": 0, "without patches": 1, "good": 2})
    frames, states, mask = patches.gather(np.array([2, 1, 0]))
    assert mask.sum(1).tolist() == [len(rows["good"]["scale"]), 0, len(rows["turned"]["scale"])]
    for place, vid in ((0, "good"), (2, "turned")):
        found, row = mask[place], rows[vid]
        np.testing.assert_array_equal(frames[place][found].numpy(), np.array(row["frames"], np.float32))
        values = np.frombuffer(row["patches"], np.int8).reshape(states[place][found].shape)
        np.testing.assert_allclose(states[place][found], values * np.array(row["scale"])[:, None, None], rtol=1e-6)


def test_vdi_trains_on_motion_and_is_judged_without_patches(made: Made, folder: Path) -> None:
    store, annotations = made[0], made[1].annotations
    build(Tags(annotations, Tagging()))
    training = Training(epochs=1, batch_size=4, learning_rate=1e-3, evaluate_every=1, validation=0.3)
    model = VDIConfig(clip_encoder="tiny-clip", losses={"spatial_dynamics": 0.5}, ablation=TINY_MAP)
    run = train_grounding(dataset(folder), model=model, training=training)
    terms = {row["name"]: row["value"] for row in store.table(run).to_pylist()}
    assert 0 < terms["spatial_dynamics"] < 4
    assert [parent.stage for parent in store.manifest(run).parents].count("patch_features") == 1
    figures = store.table(evaluate_grounding(dataset(folder), RunChoice(run=run.key)))
    assert "mIoU" in figures["metric"].to_pylist()
    assert sources_of_run(run, annotations).patch_features is None
    [grounding] = Grounder.of_run(run.key).ground(folder / "videos" / "good.mp4", ["a person waves."])
    assert all(0 <= window.start < window.end for window in grounding.windows)
