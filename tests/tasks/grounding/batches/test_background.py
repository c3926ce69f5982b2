"""BM-DETR's training data: negatives of the same video, batches of distinct videos, shifted moments, and its runs."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penumbra.models.spans import to_windows
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.bm_detr import BackgroundData, distinct_videos
from penumbra.tasks.grounding.training.presets import Settings
from tests.grounding_data import features, make_examples, negatives, row_of, rows, settings, texts, videos

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
COUNT = 24  # queries, over seven videos


def in_video() -> dict[str, list[str]]:
    """The other queries of a query's video; the first three videos have none left, as if all were too similar."""
    found = rows(COUNT)
    return {
        row["qid"]: [other["query"] for other in found if other["vid"] == row["vid"] and other is not row]
        for row in found
        if row["vid"] > "v2"
    }


def prepared() -> Examples:
    found = rows(COUNT)
    return make_examples(found, negatives(found), videos(), texts(COUNT), in_video=in_video())


def bm_settings(training: dict[str, Any] | None = None, **groups: dict[str, Any]) -> Settings:
    model = {"name": "bm_detr", "alignment": 8, "shifting": True, **groups.get("model", {})}
    return settings(training, model=model, losses=groups.get("losses", {}), ranking=groups.get("ranking", {}))


def background(negatives: str = "in_video") -> BackgroundData:
    return BackgroundData(prepared(), CPU, bm_settings(losses={"negatives": negatives}, model={"shifting": False}))


@pytest.mark.parametrize("sizes", [[3] * 40, [1] * 7, [50, 1, 1, 2], [5]])
def test_no_batch_has_a_video_twice_and_no_query_is_lost(sizes: list[int]) -> None:
    video = np.repeat(np.arange(len(sizes)), sizes)
    batches = distinct_videos(video, 8, seed=1, epoch=0)
    assert sorted(torch.cat(batches).tolist()) == list(range(len(video)))
    assert all(len(set(video[rows.numpy()])) == len(rows) <= 8 for rows in batches)
    lengths = [len(rows) for rows in batches]
    assert max(lengths) - min(lengths) <= 1
    assert len(batches) == max(-(-len(video) // 8), *sizes)


def drawn(data: BackgroundData, row: int, times: int = 60) -> set[str]:
    """Texts that a query gets as its negative, told by their features; "" for none."""
    every = texts(COUNT)
    starts = zip(every.index, every.offsets.tolist(), strict=False)
    names = {tuple(every.values[start].tolist()): name for name, start in starts}
    found = set()
    for _ in range(times):
        inputs = data.batch(torch.tensor([row]))[0]
        found.add(names[tuple(inputs.text[1, 0, 0].tolist())] if inputs.text_mask[1].any() else "")
    return found


@pytest.mark.parametrize(("row", "own"), [(3, {"text 10", "text 17"}), (0, set())])  # the second is alone in its video
def test_a_negative_is_drawn_anew_from_the_querys_own(row: int, own: set[str]) -> None:
    generated = {f"text {row} {level}" for level in (1, 2, 3)}
    assert drawn(background(), row) == (own or {""})
    assert drawn(background("generated"), row) == generated
    assert drawn(background("both"), row) == own | generated
    assert len(background("none").batch(torch.tensor([row]))[0].text) == 1


def numbered(windows: list[list[float]], clips: int, clip_length: float, **changes: Any) -> BackgroundData:
    """One video whose only feature is the number of the clip."""
    video = features(["v"], [clips], 0, clip_length)
    video = replace(video, values=torch.arange(float(clips))[:, None])
    others = {"windows": windows, "saliency": changes.pop("saliency", None)}
    row = row_of("q", "v", "text 0", clips * clip_length, 0.0, **others)
    examples = make_examples([row], {}, video, texts(1))
    return BackgroundData(examples, CPU, bm_settings(losses={"negatives": "none"}, model=changes))


@pytest.mark.parametrize(
    ("window", "clip_length", "moving", "inside"),
    [
        ([2.4, 6.6], 1.0, [2, 3, 4, 5, 6], [2, 3, 4, 5]),
        ([3.0, 3.9], 1.0, [3], [3]),
        ([3.0, 4.0], 1.0, [3], [3]),
        ([1.0, 3.0], 0.5, [2, 3, 4, 5], [2, 3, 4, 5]),
        ([4.0, 40.0], 2.0, [2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_moment_moves_with_its_window(
    window: list[float], clip_length: float, moving: list[int], inside: list[int]
) -> None:
    data, begins = numbered([window], 8, clip_length), Counter[int]()
    rest = [clip for clip in range(8) if clip not in moving]
    start, end = window[0] / clip_length, min(window[1] / clip_length, 8)
    for _ in range(200):
        batch = data.batch(torch.tensor([0]))
        shifted, order = batch[1][1], batch[0].video[1, :, 0].int().tolist()
        found = shifted.inside[0].nonzero()[:, 0].tolist()
        span = (to_windows(shifted.spans[0, 0]) * int(shifted.video_mask.sum())).tolist()
        begin = order.index(moving[0])
        assert order[begin : begin + len(moving)] == moving
        assert [clip for clip in order if clip not in moving] == rest
        assert [order[place] for place in found] == inside
        moved_by = begin - moving[0]  # whole clips, so that the window lies on the same content at any clip length
        assert span == pytest.approx([start + moved_by, end + moved_by], abs=1e-4)
        assert set(shifted.high_clips[0].tolist()) <= set(found)
        assert not set(shifted.low_clips[0].tolist()) & set(found)
        begins[begin] += 1
    assert set(begins) == set(range(len(rest) + 1))  # every place, the last one too


@pytest.mark.parametrize(
    ("windows", "changes"),
    [
        ([[0.0, 9.0]], {}),
        ([[0.0, 2.0], [5.0, 6.0]], {}),
        ([[1.0, 3.0]], {"shift_below": 8.0}),
        ([[1.0, 3.0]], {"saliency": [{"clip": 1, "scores": [3, 2, 1]}, {"clip": 2, "scores": [1, 0, 1]}]}),
    ],
)
def test_moments_that_can_not_be_shifted_stay(windows: list[list[float]], changes: dict[str, Any]) -> None:
    """A moment as long as the video, several windows, a long video, graded clips: none is rejected."""
    data = numbered(windows, 8, 1.0, **changes)
    for _ in range(20):
        batch = data.batch(torch.tensor([0]))
        assert torch.equal(batch[0].video[1], batch[0].video[0])
        main, shifted = batch[1]
        assert torch.equal(shifted.spans, main.spans)
        assert torch.equal(shifted.clip_scores, main.clip_scores)


def test_prediction_knows_no_negative_and_ends_where_a_video_is_cut() -> None:
    system = system_of(bm_settings(losses={"negatives": "generated"}))
    model = system.build(videos().channels, texts(COUNT).channels)
    data = system.data(prepared(), CPU)
    alone = system_of(bm_settings(losses={"negatives": "none"}))
    other = alone.data(prepared(), CPU)
    for one, two in zip(system.predict(model, data), alone.predict(model, other), strict=True):
        np.testing.assert_array_equal(one.windows, two.windows)
        np.testing.assert_array_equal(one.saliency, two.saliency)
    inputs = system.settings.inputs.model_copy(update={"longest_video": 4})
    cut = system_of(system.settings.model_copy(update={"inputs": inputs}))
    shorter = cut.data(prepared(), CPU)
    assert float(shorter.examples.duration.max()) == 8.0  # type: ignore[attr-defined]
    assert max(found.windows[:, :2].max() for found in cut.predict(model, shorter)) <= 8.0
