"""What training sees of a query: features, clips, windows, pairs; and features that can't be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penumbra.artifacts.store import Store
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Examples, Features, clip_range, joined, load_features, normalised
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import apart
from penumbra.tasks.grounding.families.detr import draw_pairs, length_groups
from tests.golden.reading import Golden, close, golden_files, read_golden
from tests.grounding_data import features, make_examples, negatives, row_of, rows, settings, texts, videos
from tests.rows import DATASET, build

BAD = "are empty or hold a NaN"


def data_of(examples: Examples, training: dict[str, Any] | None = None, **groups: dict[str, Any]) -> Any:
    return system_of(settings(training, **groups)).data(examples, torch.device("cpu"))


def raw_features(golden: Golden, kind: str, cut: int | None) -> Features:
    """The golden raw arrays of all samples, sources joined and normalised."""
    sources: dict[str, list[Tensor]] = {}
    clip_length = float(golden.config["args"]["clip_length"]) if kind == "video" else 0.0
    for name, value in sorted(golden.under(f"raw.{kind}.").items()):
        sample, _, source = name.partition(".")
        if "_" not in sample:
            sources.setdefault(source, []).append(value[:cut])
    parts = []
    for _, found in sorted(sources.items(), reverse=True):
        offsets, index = torch.tensor([0, *np.cumsum([*map(len, found)])]), {str(n): n for n in range(len(found))}
        parts.append(normalised(Features(torch.cat(found), offsets, index, clip_length), None))
    return joined(parts)


@pytest.mark.parametrize("path", golden_files("qd_detr") + golden_files("shine"), ids=lambda path: path.stem)
def test_inputs_and_labels_are_those_of_the_published_loader(path: Path) -> None:
    golden = read_golden(path)
    # SHINE's released loader slices with [:-1] and loses the last clip; here it is lost before
    video = raw_features(golden, "video", golden.config["args"].get("max_v_l"))
    text = raw_features(golden, "text", None)
    annotations = []
    for sample, row in enumerate(golden.config["annotations"]):
        judged = zip(row.get("relevant_clip_ids", []), row.get("saliency_scores", []), strict=True)
        saliency = [{"clip": c, "scores": s} for c, s in judged] or None
        others = {"windows": row["relevant_windows"], "saliency": saliency}
        annotations.append(row_of(str(row["qid"]), str(sample), str(sample), row["duration"], 0.0, **others))
    found = data_of(make_examples(annotations, {}, video, text), losses={})
    batch, wanted = found.batch(torch.arange(len(annotations))), golden.targets()
    close(batch[0].video, golden.tensor("in.src_vid"), 1e-6)
    close(batch[0].text[0], golden.tensor("in.src_txt"), 1e-6)
    assert torch.equal(batch[0].video_mask, golden.tensor("in.src_vid_mask") > 0)
    assert torch.equal(batch[1].clip_scores, wanted.clip_scores)
    if max(len(row["windows"]) for row in annotations) <= 5:  # more are drawn at random
        close(batch[1].spans * batch[1].span_mask[..., None], wanted.spans, 1e-6)
        assert torch.equal(batch[1].span_mask, wanted.span_mask)
    graded = [sample for sample, row in enumerate(annotations) if row["saliency"]]
    assert torch.equal(batch[1].high_clips[graded, 0], wanted.high_clips[graded, 0])
    assert torch.equal(batch[1].low_clips[graded, 0], wanted.low_clips[graded, 0])


@pytest.mark.parametrize(("seconds", "relevant", "highest"), [(1.0, [4, 5, 6, 7], 6), (2.0, [2, 3], 3), (4.0, [1], 1)])
def test_judged_clips_of_two_seconds_are_those_of_features_of_another_length(
    seconds: float, relevant: list[int], highest: int
) -> None:
    judged = [{"clip": 2, "scores": [1, 1, 1]}, {"clip": 3, "scores": [4, 4, 4]}]
    row = row_of("q", "v", "text", 12.0, 4.0, saliency=judged)
    films = features(["v"], [int(12 / seconds)], 1, seconds)
    examples = make_examples([row], {}, films, features(["text"], [3], 2))
    assert examples.clips.values[:, 1].nonzero().flatten().tolist() == relevant
    assert examples.extremes[0, 0] == highest


def test_several_encoders_are_cut_to_the_shortest_of_each_video() -> None:
    first, second = features(["a", "b"], [4, 2], 0, 2.0), features(["b", "c", "a"], [3, 1, 3], 1, 2.0)
    found = joined([first, second])
    assert found.index == {"a": 0, "b": 1}
    assert found.lengths.tolist() == [3, 2]
    torch.testing.assert_close(found.values[:3], torch.cat((first.values[:3], second.values[4:7]), 1))
    torch.testing.assert_close(found.values[3:], torch.cat((first.values[4:6], second.values[:2]), 1))
    with pytest.raises(FeatureError, match=r"clips of \[1.0, 2.0\] s"):
        joined([first, features(["a"], [2], 0, 1.0)])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("video missing", "no features of its video"),
        ("text missing", "no features of its text"),
        ("video NaN", f"features of its video {BAD}"),
        ("text inf", f"features of its text {BAD}"),
        ("video empty", f"features of its video {BAD}"),
    ],
)
def test_queries_without_usable_features_are_rejected_with_their_reason(fault: str, reason: str) -> None:
    video, text, found = videos(), texts(8), rows(8)
    kind, _, what = fault.partition(" ")
    chosen, name = (video, "v1") if kind == "video" else (text, "text 1")
    place = int(chosen.offsets[chosen.index[name]])
    if what == "missing":
        del chosen.index[name]
    elif what == "empty":
        video = features([f"v{n}" for n in range(7)], [0 if n == 1 else 6 for n in range(7)], 1, 2.0)
    else:
        chosen.values[place + 1, 3] = float(what.lower())
    prepared = make_examples(found, negatives(found), video, text)
    assert {row["qid"]: row["reason"] for row in prepared.rejected} == {"q1": reason}
    assert [row["qid"] for row in prepared.rows] == [f"q{n}" for n in (0, 2, 3, 4, 5, 6, 7)]


def test_a_negative_without_features_counts_as_missing() -> None:
    text, found = texts(3), rows(3)
    del text.index["text 1 2"]
    prepared = make_examples(found, negatives(found), videos(), text)
    assert prepared.notes == {"query with 2 of 3 hard negatives": 1}
    assert prepared.hard_present.tolist() == [[True, True, True], [True, False, True], [True, True, True]]
    assert prepared.hard[1, 1] == text.index["text 1"]


@pytest.mark.parametrize(
    ("window", "clips", "wanted"),
    [
        ((0.0, 20.0), 10, (0, 9)),
        ((3.9, 8.1), 10, (1, 3)),
        ((4.1, 4.3), 10, (1, 1)),
        ((0.1, 0.2), 10, (0, 0)),
        ((19.0, 30.0), 10, (9, 9)),
        ((50.0, 60.0), 10, (9, 9)),
        ((0.0, 1.0), 1, (0, 0)),
    ],
)
def test_a_window_has_a_clip_inside_the_video(window: tuple[float, float], clips: int, wanted: tuple[int, int]) -> None:
    assert clip_range(*window, clips, 2.0) == wanted


def test_of_many_windows_five_are_drawn_anew() -> None:
    found = rows(2)
    found[0]["windows"] = [[float(n), n + 1.0] for n in range(8)]
    many = data_of(make_examples(found, {}, videos(), texts(2)), losses={})
    torch.manual_seed(0)
    drawn = set()
    for _ in range(20):
        targets = many.batch(torch.arange(2))[1]
        assert targets.span_mask.tolist() == [[True] * 5, [True] + [False] * 4]
        starts = ((targets.spans[0, :, 0] - targets.spans[0, :, 1] / 2) * 12).round().int().tolist()
        assert len(set(starts)) == 5
        drawn |= set(starts)
    assert drawn == set(range(8))


def test_a_step_may_read_one_hard_negative_of_a_query_drawn_anew() -> None:
    levels = [negatives(rows(2))["q0"], {2: "text 1 2"}]
    found = make_examples(rows(2), dict(zip(("q0", "q1"), levels, strict=True)), videos(), texts(2))
    data = data_of(found, model={"levels_a_step": 1})
    torch.manual_seed(0)
    drawn = set()
    for _ in range(40):
        inputs, targets = data.batch(torch.arange(2))
        for query, of in enumerate(levels):
            own = {level: texts(2).gather(torch.tensor([texts(2).index[text]]), 6)[0] for level, text in of.items()}
            text = inputs.text[1, query, : inputs.text_mask[1, query].sum()]
            level = next((it for it, states in own.items() if states[0, : len(text)].equal(text)), 0)
            assert targets.hard_present[0, query] == (level > 0)  # otherwise it is the query's own text
            drawn.add((query, level))
    assert drawn == {(0, 1), (0, 2), (0, 3), (1, 0), (1, 2)}


def test_hard_negatives_may_be_left_out_of_steps_alike_in_each_epoch() -> None:
    found = make_examples(rows(5), negatives(rows(5)), videos(), texts(5))
    data = data_of(found, {"batch_size": 1}, model={"hard_every": 2})
    for epoch in range(2):
        batches = [data.batch(step) for step in data.batches(0, epoch)]
        assert [targets.hard_present is not None for _, targets in batches] == [True, False, True, False, True]
        assert [len(inputs.text) for inputs, _ in batches] == [4, 1, 4, 1, 4]


def pairs(relevant: list[int], clips: int, extremes: tuple[int, int] = (-1, -1)) -> set[tuple[int, ...]]:
    """All (high, high, low, low) that are drawn."""
    flags = torch.zeros(1, 6, dtype=torch.bool)
    flags[0, relevant] = True
    mask = torch.arange(6)[None] < clips
    torch.manual_seed(0)
    drawn = [draw_pairs(flags, mask, torch.tensor([extremes])) for _ in range(200)]
    return {(*high[0].tolist(), *low[0].tolist()) for high, low in drawn}


def test_pairs_are_random_clips_inside_and_outside() -> None:
    found = pairs([1, 2, 3], 5)
    assert {frozenset(four[:2]) for four in found} == {frozenset(two) for two in ((1, 2), (1, 3), (2, 3))}
    assert {frozenset(four[2:]) for four in found} == {frozenset((0, 4))}


def test_pairs_where_clips_are_few() -> None:
    assert {four[:2] for four in pairs([2], 5)} == {(2, 2)}
    assert {four[2:] for four in pairs([0, 1, 2, 3], 5)} == {(4, 4)}
    assert all(four[:2] == four[2:] for four in pairs([0, 1, 2], 3))  # a moment that covers the video teaches nothing
    one = draw_pairs(torch.ones(1, 1).bool(), torch.ones(1, 1).bool(), torch.tensor([[-1, -1]]))
    assert [side.tolist() for side in one] == [[[0, 0]], [[0, 0]]]


def test_batches_of_like_length_hold_every_query_once_and_pad_little() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, size=1000)
    batches = length_groups(lengths, 32, seed=1, epoch=0)
    assert sorted(torch.cat(batches).tolist()) == list(range(1000))
    assert {len(batch) for batch in batches} == {32, 1000 % 32}
    assert lengths.sum() > 0.9 * sum(len(batch) * lengths[batch.numpy()].max() for batch in batches)
    again, later = (length_groups(lengths, 32, 1, epoch) for epoch in (0, 1))
    assert all(torch.equal(one, other) for one, other in zip(batches, again, strict=True))
    assert not torch.equal(batches[0], later[0])


def test_the_next_query_of_a_batch_is_of_another_video_where_the_batch_allows_it() -> None:
    generator = np.random.default_rng(0)
    for count in [*range(1, 12), 32]:
        video = generator.integers(0, max(2, count // 2), count)
        rows = torch.from_numpy(generator.permutation(count))
        found = apart(rows, video)
        assert sorted(found.tolist()) == list(range(count))
        same = (video[found] == np.roll(video[found], -1)).sum()
        if np.bincount(video).max() <= count // 2:
            assert same == 0
        else:
            assert same <= (video[rows] == np.roll(video[rows], -1)).sum()
    distinct = torch.tensor([2, 0, 1])
    assert apart(distinct, np.arange(3)) is distinct


def test_an_artifact_without_features_says_what_to_do(store: Store) -> None:
    with pytest.raises(FeatureError, match=f"artifacts show {DATASET}/video_features says why.*extract-features"):
        load_features(build(store, "video_features", []))
