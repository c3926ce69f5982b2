"""`extract-features` on real Prefect: good and bad videos in, Parquet out, and a page with figures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.extract_features import extract_features
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import FOLDER, Clip, load
from penumbra.tasks.features.frames import VideoSummary, clip_frames
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from tests.films import cut, film, lie_about_duration, sound, turn
from tests.markup import published

TINY = Clip(encoder="tiny-clip")
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
    return folder


@pytest.fixture(scope="module")
def made(folder: Path, module_store: Store, prefect_server: None) -> tuple[Store, Artifact]:
    videos = Videos(folder=str(folder / "videos"), clip_length=0.5)
    [found] = extract_features(Dataset(name="films", folder=str(folder)), TINY, Texts(), videos).video_features
    return module_store, found


def test_good_videos_have_features_and_bad_ones_a_reason(made: tuple[Store, Artifact]) -> None:
    store, artifact = made
    rows = {row["vid"]: row for row in store.table(artifact).to_pylist()}
    refused = {row["qid"]: row["reason"] for part in store.rejected(artifact) for row in part.to_pylist()}
    assert rows.keys() == set(GOOD)
    assert refused == BAD
    manifest = store.manifest(artifact)
    assert (manifest.taken, manifest.kept) == (len(GOOD) + len(BAD), len(GOOD))
    assert manifest.notes["video turned as its metadata asks"] == 1
    assert store.verify(artifact) == []
    for row in rows.values():
        assert (row["encoder"], row["clip_length"]) == ("tiny-clip", 0.5)
        assert 0.5 * (len(row["features"]) - 1) < row["duration"] <= 0.5 * len(row["features"])
    assert rows["lying"]["duration"] == 2.0


def test_features_equal_those_of_a_plain_call(made: tuple[Store, Artifact], folder: Path) -> None:
    """Frames and texts through transformers one at a time, padded to 77, as anyone would do it."""
    store, artifact = made
    model = CLIPModel.from_pretrained(FOLDER, dtype=torch.float32)
    processor, frames = CLIPImageProcessorPil.from_pretrained(FOLDER), load(TINY).frames
    videos = read_features(artifact)
    for vid in ("good", "turned", "uneven", "large"):
        path = next((folder / "videos").glob(f"{vid}.*"))
        pictures = list(clip_frames(path, 0.5 / frames, VideoSummary()))
        pictures += pictures[-1:] * (-len(pictures) % frames)
        for index in range(len(pictures) // frames):
            clip = pictures[frames * index : frames * (index + 1)]
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


def test_the_page_shows_figures_and_what_is_missing(made: tuple[Store, Artifact]) -> None:
    data = published("report-films-extract-features", "rows-films-video-features")
    page = data["report-films-extract-features"]
    for text in ("videos with features | 8 of 15", "Videos without features: 7", "no video file"):
        assert text in page
    assert "training leaves them out | train 14" in page
    assert json.loads(data["rows-films-video-features"])[0]["features"] == "5 × 192"


def test_a_missing_folder_of_videos_is_reported_at_once(prefect_server: None, folder: Path, store: Store) -> None:
    nowhere = Videos(folder=str(folder / "nowhere"))
    with pytest.raises(MissingError, match=r"no folder .*/nowhere of video files"):
        extract_features(Dataset(name="films", folder=str(folder)), TINY, Texts(), nowhere)
