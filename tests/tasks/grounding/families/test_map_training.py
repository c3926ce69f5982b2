"""MMN in the training loop: whole videos as samples, drawn sentences, schedule, negatives, odd videos."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.mmn import MapData
from penumbra.tasks.grounding.training.loop import train
from penumbra.tasks.grounding.training.presets import Settings
from tests import grounding_data
from tests.grounding_data import CHANNELS, TINY_MAP, features, model_of, negatives, rows

pytestmark = pytest.mark.slow


def settings(training: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **losses: Any) -> Settings:
    usual = {"epochs": 2, "batch_size": 3, "learning_rate": 3e-3, "clip_norm": 5.0, "evaluate_every": 1}
    chosen = model_of(**{"name": "mmn", **TINY_MAP, "hidden": 16, **(model or {})})
    return Settings.model_validate({"model": {**chosen, "losses": losses}, "training": {**usual, **(training or {})}})


def data(chosen: Settings, count: int = 24, **changes: Any) -> MapData:
    return system_of(chosen).data(replace(grounding_data.data(count), **changes), torch.device("cpu"))


def values(history: list[dict[str, Any]], name: str) -> list[float]:
    return [row["value"] for row in history if row["name"] == name]


def test_training_learns_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    weights = {"hard_order": 1.0, "hard_overlap": 1.0, "full_epochs": 8}
    chosen = settings({"epochs": 8}, weights, shine=True)
    whole = train(*grounding_data.job(tmp_path / "whole", chosen))
    assert values(whole, "total")[-1] < 0.9 * values(whole, "total")[0]
    assert values(whole, "hard_order")[0] > 0
    assert values(whole, "hard_overlap")[-1] < values(whole, "hard_overlap")[0]
    train(*grounding_data.job(tmp_path / "parts", settings({"epochs": 3}, weights, shine=True)))
    after = train(*grounding_data.job(tmp_path / "parts", chosen))
    for name in ("total", "gradient_norm", "mIoU"):
        assert values(after, name) == values(whole, name)


def test_the_contrastive_weight_falls_after_the_full_epochs(tmp_path: Path) -> None:
    chosen = settings({"epochs": 4}, {"full_epochs": 2, "contrastive": 1.0})
    history = train(*grounding_data.job(tmp_path, chosen))
    for epoch, total in enumerate(values(history, "total")):
        mutual = values(history, "among_sentences")[epoch] + values(history, "among_moments")[epoch]
        share = (total - values(history, "iou")[epoch]) / mutual
        assert share == pytest.approx(1.0 if epoch < 2 else 0.01, rel=1e-3)


def test_an_epoch_has_every_video_once_with_all_its_sentences() -> None:
    found = data(settings())
    batches = found.batches(seed=1, epoch=0)
    assert sorted(torch.cat(batches).tolist()) == list(range(7))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    sentences = [found.batch(batch)[0] for batch in batches]
    assert sum(len(inputs.video_of) for inputs in sentences) == 24
    again = data(settings()).batches(seed=1, epoch=0)
    assert all(torch.equal(first, second) for first, second in zip(batches, again, strict=True))
    assert not torch.equal(torch.cat(batches), torch.cat(found.batches(seed=1, epoch=1)))


def test_a_sentence_has_its_own_text_video_and_windows() -> None:
    found = data(settings(shine=True))
    found.batches(seed=0, epoch=0)
    batch = found.batch(torch.tensor([4, 2]))
    videos, texts, number = grounding_data.videos(), grounding_data.texts(24), 0
    for place, video in enumerate((4, 2)):
        for row in found.labelled[video][1]:
            qid = int(found.examples.rows[row]["qid"][1:])
            assert int(batch[0].video_of[number]) == place
            own = texts.index[f"text {qid}"]
            wanted = texts.values[texts.offsets[own] : texts.offsets[own + 1]]
            assert torch.equal(batch[0].text[0, number][batch[0].text_mask[0, number]], wanted)
            assert batch[1].windows[number, 0].tolist() == rows(24)[qid]["windows"][0]
            number += 1
    assert len(batch[0].text) == 4
    first = videos.values[videos.offsets[4] : videos.offsets[5]]
    torch.testing.assert_close(batch[0].video[0, 0], first[0] / first[0].norm())


def test_predictions_are_whole_moments_kept_apart_and_saliency_is_per_clip() -> None:
    chosen = settings(model={"keep": 4})
    system, found = system_of(chosen), data(chosen)
    model = system.build(CHANNELS, CHANNELS)
    predictions = system.predict(model, found)
    assert [p.qid for p in predictions] == [row["qid"] for row in found.examples.rows]
    for row, prediction in enumerate(predictions):
        windows, duration = prediction.windows, float(found.examples.duration[row])
        assert 1 <= len(windows) <= 4
        assert (np.diff(windows[:, 2]) <= 0).all()
        np.testing.assert_allclose(windows[:, :2] * 8 / duration, np.round(windows[:, :2] * 8 / duration), atol=1e-5)
        assert len(prediction.saliency) == found.videos.host_lengths[found.examples.video[row]]
    assert model.training  # as before


@pytest.mark.parametrize("clips", [1, 3, 100])
def test_videos_shorter_and_longer_than_the_map_with_one_sentence(tmp_path: Path, clips: int) -> None:
    """One video of so many clips with one sentence, alone in its batch."""
    videos = features(["v"], [clips], seed=3, clip_length=2.0)
    row = {**rows(1)[0], "vid": "v", "duration": 2.0 * clips, "windows": [[0.0, 1.0]]}
    texts = grounding_data.texts(1)
    prepared = grounding_data.make_examples([row], negatives([row]), videos, texts)
    history = train(settings({"epochs": 1}), prepared, prepared, tmp_path)
    assert np.isfinite([entry["value"] for entry in history]).all()


def test_empty_windows_are_not_taught_and_long_ones_end_with_the_video() -> None:
    windows = torch.zeros(24, 1, 2)
    windows[:, 0, 1] = 1000.0
    windows[3] = 5.0
    found = data(settings(), windows=windows)
    assert 3 not in np.concatenate([members for _, members in found.labelled])
    assert 3 in np.concatenate([members for _, members in found.every])
    overlap = found.batch(torch.tensor([0]))[1].overlap
    whole = (found.cells[:, 1] - found.cells[:, 0]).argmax()
    assert overlap[0, whole] == pytest.approx(1.0)
