"""Reading annotations: three formats, the real files, and every kind of damage gives a reason, never a crash."""

import json
import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penumbra.tasks.data import annotations
from penumbra.tasks.data.annotations import Annotations, check_query
from penumbra.tasks.data.dataset import Dataset, DatasetError, read_rows

Row = dict[str, Any]
VIDEO: Row = {"sentences": ["a man runs.", "he sits down."], "timestamps": [[0, 4.5], [5, 9]], "duration": 10}
LINE: Row = {"qid": 1, "vid": "v1", "query": "a man runs.", "duration": 10, "relevant_windows": [[0, 4]]}
REMEDY = re.compile(r"fetch|convert|check|PENUMBRA_DATA|name |is it ")


@dataclass
class Outcome:
    """What became of a data set's rows."""

    taken: int = 0
    rows: list[Row] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    vids: list[set[str]] = field(default_factory=list)  # of each part

    @property
    def reasons(self) -> dict[str, str]:
        return {row["qid"]: row["reason"] for row in self.rejected}


def outcome(dataset: Dataset, rows_a_part: int = annotations.ROWS_A_PART) -> Outcome:
    found = Outcome()
    for make in Annotations(dataset, rows_a_part).parts():
        part = make()
        rows = part.rows.to_pylist()
        assert part.kept == len(rows)
        assert part.taken == part.kept + len(part.rejected)
        found.taken += part.taken
        found.rows += rows
        found.rejected += part.rejected
        found.notes += part.notes
        found.vids.append({row["vid"] for row in rows})
    return found


def json_of(*videos: tuple[str, Any]) -> str:
    """A JSON object of videos, in which a key may come twice."""
    return "{" + ", ".join(f"{json.dumps(vid)}: {json.dumps(video)}" for vid, video in videos) + "}"


def compositional(folder: Path, *videos: tuple[str, Any], name: str = "train.json") -> Dataset:
    (folder / name).write_text(json_of(*videos))
    return Dataset(name="own", folder=str(folder))


def lines(folder: Path, *rows: Any, name: str = "my_train.jsonl") -> Dataset:
    (folder / name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return Dataset(name="own", folder=str(folder))


def one_sentence(query: Any = "a man runs.", window: Any = (1, 2), **more: Any) -> Row:
    return {"sentences": [query], "timestamps": [window], "duration": 10, **more}


# --- formats ---------------------------------------------------------------------------------------------------------


def test_compositional_files_become_rows(tmp_path: Path) -> None:
    novel = one_sentence("she puts the cup away.", [2, 3], novels=[{"v-n": [["put", "cup"]], "a-n": []}])
    compositional(tmp_path, ("B2", novel), name="novel_composition.json")
    compositional(tmp_path, ("C3", one_sentence(news=[{"NOUN": ["man"]}])), name="novel_word.json")
    compositional(tmp_path, ("D4", one_sentence()), name="test_trivial.json")
    found = outcome(compositional(tmp_path, ("A1", VIDEO)))
    assert found.rejected == []
    assert [(row["qid"], row["split"]) for row in found.rows] == [
        ("A1_train_0", "train"),
        ("A1_train_1", "train"),
        ("D4_test_0", "test"),
        ("B2_composition_0", "composition"),
        ("C3_word_0", "word"),
    ]
    assert found.rows[1] == {
        "qid": "A1_train_1",
        "vid": "A1",
        "split": "train",
        "query": "he sits down.",
        "duration": 10.0,
        "windows": [[5.0, 9.0]],
        "novel": [],
        "saliency": None,
    }
    assert found.rows[3]["novel"] == [{"type": "v-n", "words": ["put", "cup"]}]
    assert found.rows[4]["novel"] == [{"type": "NOUN", "words": ["man"]}]


def test_moment_detr_lines_become_rows(tmp_path: Path) -> None:
    row = {
        **LINE,
        "relevant_windows": [[0, 2], [4, 6]],
        "relevant_clip_ids": [0, 2],
        "saliency_scores": [[4, 3, 2], [1, 0, 1]],
    }
    hidden = {"qid": 7, "query": "a dog.", "duration": 150, "vid": "v7"}
    lines(tmp_path, hidden, name="highlight_test_release.jsonl")
    lines(tmp_path, {**LINE, "qid": 2}, name="highlight_val_release.jsonl")
    found = outcome(lines(tmp_path, row, "", "   ", name="highlight_train_release.jsonl"))
    assert found.rejected == []
    train, val, test = sorted(found.rows, key=lambda row: row["qid"])
    assert [(row["qid"], row["split"]) for row in (train, val, test)] == [("1", "train"), ("2", "val"), ("7", "test")]
    assert train["windows"] == [[0.0, 2.0], [4.0, 6.0]]
    assert train["saliency"] == [{"clip": 0, "scores": [4, 3, 2]}, {"clip": 2, "scores": [1, 0, 1]}]
    assert test["windows"] == [], "a hidden test split has no windows, and is none the worse"


def test_shines_lines_become_rows(tmp_path: Path) -> None:
    row = {
        "qid": "IG_train_0",
        "query": "person starts.",
        "duration": 33.12,
        "vid": "IG",
        "relevant_windows": [[22.7, 34.0]],
        "masked_queries": ["person <mask>."] * 3,
        "recomposed_queries": ["person stops."] * 3,
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    found = outcome(Dataset(name="own", folder=str(tmp_path), files={"train": "a.jsonl"}))
    assert [(row["qid"], row["query"], row["windows"]) for row in found.rows] == [
        ("IG_train_0", "person starts.", [[22.7, 33.12]])
    ]


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json_of(("A1", VIDEO)), encoding="utf-8-sig")
    assert len(outcome(Dataset(name="own", folder=str(tmp_path))).rows) == 2


def test_white_space_between_members_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("\n " + json.dumps({"A1": VIDEO, "B2": VIDEO}, indent=2) + "\n\n")
    assert len(outcome(Dataset(name="own", folder=str(tmp_path))).rows) == 4


# --- real data -------------------------------------------------------------------------------------------------------


def test_charades_cg(shared: Path) -> None:
    found = outcome(Dataset(name="charades-cg", folder=str(shared / "data" / "charades-cg")))
    assert found.taken == len(found.rows) == 15514
    assert Counter(row["split"] for row in found.rows) == {
        "train": 8281,
        "test": 3096,
        "composition": 3442,
        "word": 695,
    }
    assert found.notes == {"window clipped to the video's end": 2228}
    assert found.rows[0]["qid"] == "IGDIE_train_0"
    assert all(re.fullmatch(rf"{row['vid']}_{row['split']}_\d+", row["qid"]) for row in found.rows)
    assert all(bool(row["novel"]) == (row["split"] in ("composition", "word")) for row in found.rows)
    assert all(0 <= start < end <= row["duration"] for row in found.rows for start, end in row["windows"])


def test_the_train_split_of_charades_cg(shared: Path) -> None:
    folder = str(shared / "data" / "charades-cg")
    found = outcome(Dataset(name="charades-cg", folder=folder, files={"train": "train.json"}))
    assert len(found.rows) == 8281
    assert found.notes == {"window clipped to the video's end": 1255}


def test_activitynet_cg_train(shared: Path) -> None:
    folder = str(shared / "data" / "activitynet-cg")
    found = outcome(Dataset(name="activitynet-cg", folder=folder, files={"train": "train.json"}))
    assert found.taken == 36724
    assert Counter(found.reasons.values())["window ends before it begins"] == 2
    assert found.notes["blanks around the query removed"] > 25000
    assert len(found.rejected) <= 4


@pytest.mark.parametrize(
    ("name", "splits"),
    [("charades-sta", {"train": 12404, "test": 3720}), ("qvhighlights", {"train": 7218, "val": 1550, "test": 1542})],
)
def test_moment_detr_family(shared: Path, name: str, splits: dict[str, int]) -> None:
    found = outcome(Dataset(name=name, folder=str(shared / "data" / name)))
    assert Counter(row["split"] for row in found.rows) == splits
    assert found.rejected == []


def test_shines_release(shared: Path) -> None:
    folder = str(shared / "data" / "charades-cg")
    found = outcome(Dataset(name="shine", folder=folder, files={"train": "shine_release_first200.jsonl"}))
    assert len(found.rows) == 200


# --- rows that can't be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "empty"),
        ("   \t\n", "empty"),
        (None, "empty"),
        (5, "empty"),
        (["a man"], "empty"),
        ("word " * 10_000, "longer than 256 words"),
        ("a man <mask> the door.", "<mask>"),
        ("🙂🙃🎉", "no letter"),
        ("123 ... !!", "no letter"),
        ("人がドアを開ける。", "Latin"),
        ("человек открывает дверь a", "Latin"),
    ],
)
def test_unusable_queries_are_rejected_with_a_reason(tmp_path: Path, query: Any, reason: str) -> None:
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", one_sentence(query))))
    assert len(found.rows) == 2
    assert reason in found.reasons["B2_train_0"]
    assert len(found.rejected[0]["value"]) <= 300


@pytest.mark.parametrize("query", ["a café.", "a man 🙂 runs", "naïve façade", "t", "a  b", "word " * 256])
def test_usable_queries_are_kept(query: str) -> None:
    assert check_query(query) == ""


def test_blanks_around_a_query_are_removed_and_noted(tmp_path: Path) -> None:
    found = outcome(compositional(tmp_path, ("A1", one_sentence("  a  man\truns. "))))
    assert found.rows[0]["query"] == "a  man\truns."
    assert found.notes == {"blanks around the query removed": 1}


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ([5, 2], "ends before it begins"),
        ([3, 3], "is empty"),
        ([], "not two finite numbers"),
        ([1], "not two finite numbers"),
        ([1, 2, 3], "not two finite numbers"),
        ([-1, 2], "starts before 0"),
        ([-3, -1], "starts before 0"),
        ([math.nan, 2], "not two finite numbers"),
        ([1, math.nan], "not two finite numbers"),
        ([1, math.inf], "not two finite numbers"),
        ([-math.inf, 2], "not two finite numbers"),
        (["1", "2"], "not two finite numbers"),
        ([True, 2], "not two finite numbers"),
        ([None, None], "not two finite numbers"),
        ("1-2", "not two finite numbers"),
        (None, "not two finite numbers"),
        ({"start": 1, "end": 2}, "not two finite numbers"),
        ([10, 12], "after the video's end"),
        ([11, 12], "after the video's end"),
    ],
)
def test_unusable_windows_are_rejected_with_a_reason(tmp_path: Path, window: Any, reason: str) -> None:
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", one_sentence(window=window))))
    assert len(found.rows) == 2
    assert reason in found.reasons["B2_train_0"]


def test_a_window_past_the_videos_end_is_clipped_and_noted(tmp_path: Path) -> None:
    found = outcome(compositional(tmp_path, ("A1", one_sentence(window=[8, 10.01])), ("B2", one_sentence())))
    assert found.rows[0]["windows"] == [[8.0, 10.0]]
    assert found.notes == {"window clipped to the video's end": 1}


@pytest.mark.parametrize("windows", [[], None, "0-4", 4, [[0, 1], [9, 3]], [0, 4]])
def test_unusable_lists_of_windows_are_rejected(tmp_path: Path, windows: Any) -> None:
    found = outcome(lines(tmp_path, LINE, {**LINE, "qid": 2, "relevant_windows": windows}))
    assert [row["qid"] for row in found.rows] == ["1"]
    assert "window" in found.reasons["2"]


@pytest.mark.parametrize("duration", [0, -1, None, math.nan, math.inf, True, "10", [10]])
def test_unusable_durations_are_rejected(tmp_path: Path, duration: Any) -> None:
    video = one_sentence(duration=duration)
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", video)))
    assert found.reasons == {"B2_train_0": "duration is not a positive number"}
    found = outcome(lines(tmp_path, LINE, {**LINE, "qid": 2, "duration": duration}, name="train.jsonl"))
    assert len(found.rejected) == 1


@pytest.mark.parametrize("vid", ["a/b", "..", "../b", "a\\b", "/etc/passwd", "a..b", "", "a\nb", "a\0b", "x" * 201])
def test_video_ids_that_are_no_file_names_are_rejected(tmp_path: Path, vid: str) -> None:
    found = outcome(compositional(tmp_path, ("A1", VIDEO), (vid, one_sentence())))
    assert len(found.rows) == 2
    assert list(found.reasons.values()) == ["video id is no safe file name"]


@pytest.mark.parametrize("vid", [7, None, ["v"], {"v": 1}])
def test_video_ids_that_are_no_text_are_rejected(tmp_path: Path, vid: Any) -> None:
    found = outcome(lines(tmp_path, LINE, {**LINE, "qid": 2, "vid": vid}))
    assert found.reasons == {"2": "video id is no safe file name"}


@pytest.mark.parametrize("more", [[[0, 1]], [[0, 1], [1, 2], [2, 3]]])
def test_sentences_and_timestamps_of_different_number_are_rejected(tmp_path: Path, more: Any) -> None:
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", {**VIDEO, "timestamps": more})))
    assert len(found.rows) == 2
    assert found.taken == 2 + max(2, len(more)), "each sentence and each window without a sentence is accounted for"
    assert set(found.reasons.values()) == {"sentences and timestamps differ in number"}


@pytest.mark.parametrize("wrong", [{"sentences": "a man runs."}, {"timestamps": None}, {"timestamps": {"0": [1, 2]}}])
def test_sentences_that_are_no_list_are_rejected(tmp_path: Path, wrong: Row) -> None:
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", {**VIDEO, **wrong})))
    assert found.reasons == {"B2_train_0": "sentences or timestamps are no list"}


def test_a_qid_that_occurs_twice_is_rejected(tmp_path: Path) -> None:
    lines(tmp_path, {**LINE, "qid": "1", "vid": "v9"}, name="my_test.jsonl")
    found = outcome(lines(tmp_path, LINE, {**LINE, "query": "another."}, {**LINE, "qid": 2}))
    assert [(row["qid"], row["query"]) for row in found.rows] == [("1", "a man runs."), ("2", "a man runs.")]
    assert [row["reason"] for row in found.rejected] == ["qid occurs twice"] * 2


@pytest.mark.parametrize("qid", [None, "", "  "])
def test_a_row_without_a_qid_is_rejected(tmp_path: Path, qid: Any) -> None:
    found = outcome(lines(tmp_path, LINE, {**LINE, "qid": qid}))
    assert len(found.rows) == 1
    assert "qid" in found.rejected[0]["reason"]


def test_a_video_key_that_occurs_twice_is_seen(tmp_path: Path) -> None:
    other = {"sentences": ["other.", "more."], "timestamps": [[0, 1], [1, 2]], "duration": 10}
    found = outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", one_sentence()), ("A1", other)))
    assert [row["query"] for row in found.rows] == ["a man runs.", "he sits down.", "a man runs."]
    assert found.reasons == dict.fromkeys(("A1_train_0", "A1_train_1"), "video id occurs twice in the file")


@pytest.mark.parametrize("bad", ['{"qid": 2, "query": ', "[1, 2]", "null", '{"qid": 2, "vid": "v1"}', "ok"])
def test_a_broken_line_among_good_ones_is_rejected(tmp_path: Path, bad: str) -> None:
    found = outcome(lines(tmp_path, LINE, bad, {**LINE, "qid": 3}))
    assert [row["qid"] for row in found.rows] == ["1", "3"]
    assert list(found.reasons) == ["my_train.jsonl:2"]


LARGE = "1" + "0" * 400
ENDLESS = "1" * 5000  # more digits than Python reads
ONE = '{"sentences": ["a man runs."], "timestamps": [[1, 2]], "duration": 10}'


@pytest.mark.parametrize(
    "member",
    [
        '"B2": ' + ONE.replace("man", "man \\ud83d"),
        '"B2\\ud83d": ' + ONE,
        '"B2": ' + ONE.replace("10", LARGE),
        '"B2": ' + ONE.replace("[1, 2]", f"[1, {LARGE}]"),
        '"B2": ' + ONE.replace("10", ENDLESS),
        '"B2": ' + ONE[:-1] + ', "novels": {"v-n": [["put", "cup"]]}}',
        '"B2": ' + ONE[:-1] + ', "novels": 7}',
        '"B2": ' + ONE[:-1] + ', "novels": [{"v-n\\ud83d": [["put", "cup"]]}]}',
        '"B2": {"sentences": ["a man runs."], "timestamps": [[1, 2]]}',
        '"B2": null',
    ],
    ids=[
        "half an emoji in the query",
        "half an emoji in the id",
        "vast duration",
        "vast window",
        "endless number",
        "labels no list",
        "labels a number",
        "half an emoji in a label",
        "no duration",
        "no video",
    ],
)
def test_one_bad_video_never_stops_a_run(tmp_path: Path, member: str) -> None:
    text = f'{json_of(("A1", VIDEO))[:-1]}, {member}, "C3": {ONE}}}'
    (tmp_path / "train.json").write_text(text)
    found = outcome(Dataset(name="own", folder=str(tmp_path)))
    assert found.taken == 4
    assert {row["vid"] for row in found.rows} >= {"A1", "C3"}


@pytest.mark.parametrize(
    "changes",
    [
        {"query": "a man \ud83d runs"},
        {"vid": "v\ud83d"},
        {"qid": "q\ud83d"},
        {"duration": 10**400},
        {"relevant_windows": [[0, 10**400]]},
        {"relevant_clip_ids": ["first"], "saliency_scores": [[1, 2, 3]]},
        {"relevant_clip_ids": [0], "saliency_scores": ["high"]},
        {"relevant_clip_ids": [0], "saliency_scores": [[300, 1, 1]]},
        {"relevant_clip_ids": [0], "saliency_scores": [5]},
        {"relevant_clip_ids": [2**40], "saliency_scores": [[1, 1, 1]]},
    ],
    ids=[
        "half an emoji in the query",
        "half an emoji in the id",
        "half an emoji in the qid",
        "vast duration",
        "vast window",
        "clip no number",
        "scores a text",
        "score too large",
        "scores a number",
        "clip too large",
    ],
)
def test_one_bad_row_never_stops_a_run(tmp_path: Path, changes: Row) -> None:
    found = outcome(lines(tmp_path, LINE, {**LINE, "qid": 2, **changes}, {**LINE, "qid": 3}))
    assert found.taken == 3
    assert {row["qid"] for row in found.rows} >= {"1", "3"}


@pytest.mark.parametrize("bad", [json.dumps(LINE).replace("10", ENDLESS), "[" * 100_000])
def test_one_line_that_python_cannot_read_never_stops_a_run(tmp_path: Path, bad: str) -> None:
    found = outcome(lines(tmp_path, LINE, bad, {**LINE, "qid": 3}))
    assert [row["qid"] for row in found.rows] == ["1", "3"]
    assert found.taken == 3


ODD: list[Any] = [
    None,
    True,
    "",
    "  ",
    0,
    -1,
    3.5,
    math.nan,
    math.inf,
    [],
    {},
    [1],
    [[1]],
    "a man runs.",
    "走る",
    "🙂",
    [[0, 5]],
    [[5, 0]],
    [["a", 1]],
    "x/y",
    "..",
    [0, 5],
    [5, 0],
    [0, 99],
    "<mask>",
]


def sound(found: Outcome, expected: int) -> None:
    """All rows are accounted for, and those that are kept are fit for use."""
    assert found.taken == expected
    assert len(found.rows) + len(found.rejected) == expected
    assert all(row["reason"] and row["stage"] == "annotations" for row in found.rejected)
    assert len({row["qid"] for row in found.rows}) == len(found.rows)
    for row in found.rows:
        assert row["query"] == row["query"].strip() != ""
        assert row["duration"] > 0
        assert all(0 <= start < end <= row["duration"] for start, end in row["windows"])


def test_damaged_compositional_files_lose_no_row(tmp_path: Path) -> None:
    chance = random.Random(0)
    rejected = 0
    for _ in range(150):
        videos: list[tuple[str, Row]] = [("good", VIDEO)]
        for number in range(chance.randint(1, 4)):
            video: Row = json.loads(json.dumps(VIDEO))
            place = chance.choice(["sentence", "window", "edge", "duration", "more", "sentences", "timestamps"])
            if place == "sentence":
                video["sentences"][chance.randrange(2)] = chance.choice(ODD)
            elif place == "window":
                video["timestamps"][chance.randrange(2)] = chance.choice(ODD)
            elif place == "edge":
                video["timestamps"][chance.randrange(2)][chance.randrange(2)] = chance.choice(ODD)
            elif place == "more":
                video[chance.choice(["sentences", "timestamps"])] += chance.choices(ODD, k=3)
            else:
                video[place] = chance.choice(ODD)
            videos.append((f"v{number}", video))
        expected = 0
        for _, video in videos:
            lists = [video["sentences"], video["timestamps"]]
            expected += max(map(len, lists)) if all(isinstance(entry, list) for entry in lists) else 1
        found = outcome(compositional(tmp_path, *videos), chance.randint(1, 4))
        sound(found, expected)
        rejected += len(found.rejected)
    assert rejected > 150


def test_damaged_lines_lose_no_row(tmp_path: Path) -> None:
    chance = random.Random(1)
    rejected = 0
    for _ in range(150):
        rows: list[Any] = [LINE]
        for number in range(chance.randint(1, 6)):
            row: Row = {**LINE, "qid": number + 2, "vid": chance.choice(["v1", "v2"])}
            for key in chance.sample(sorted(row), chance.randint(0, 2)):
                row[key] = chance.choice(ODD)
            text = json.dumps(row)
            rows.append(text[: len(text) // 2] if chance.random() < 0.1 else text)
        found = outcome(lines(tmp_path, *rows), chance.randint(1, 4))
        sound(found, len(rows))
        rejected += len(found.rejected)
    assert rejected > 150


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_a_part", [1, 2, 3, 7, 100])
def test_a_videos_rows_share_a_part(tmp_path: Path, rows_a_part: int) -> None:
    videos = [
        (f"v{i}", {**VIDEO, "sentences": ["a man."] * (i % 4 + 1), "timestamps": [[0, 1]] * (i % 4 + 1)})
        for i in range(12)
    ]
    whole = outcome(compositional(tmp_path, *videos))
    found = outcome(compositional(tmp_path, *videos), rows_a_part)
    assert found.rows == whole.rows
    assert sum(map(len, found.vids)) == 12, "a video is in two parts"
    assert rows_a_part > 1 or len(found.vids) == 12
    assert rows_a_part < 100 or len(found.vids) == 1


@pytest.mark.parametrize("rows_a_part", [1, 2, 3, 7, 100])
def test_a_videos_lines_share_a_part_even_where_the_file_mixes_videos(tmp_path: Path, rows_a_part: int) -> None:
    chance = random.Random(rows_a_part)
    rows = [{**LINE, "qid": i, "vid": f"v{chance.randrange(6)}"} for i in range(40)]
    found = outcome(lines(tmp_path, *rows), rows_a_part)
    assert len(found.rows) == 40
    assert sum(map(len, found.vids)) == len({row["vid"] for row in rows}), "a video is in two parts"


def test_a_repeated_videos_rows_share_a_part(tmp_path: Path) -> None:
    short = one_sentence()
    found = outcome(compositional(tmp_path, ("A1", short), ("B2", VIDEO), ("A1", VIDEO)), rows_a_part=1)
    assert found.taken == 5
    assert sum(map(len, found.vids)) == 2, "video A1 is in two parts"


def test_parts_hold_one_split(tmp_path: Path) -> None:
    compositional(tmp_path, ("B2", VIDEO), name="test_trivial.json")
    both = Annotations(compositional(tmp_path, ("A1", VIDEO)))
    splits = [set(make().rows["split"].to_pylist()) for make in both.parts()]
    assert splits == [{"train"}, {"test"}]


# --- files that are no data set --------------------------------------------------------------------------------------

NO_DATA_SETS = {
    "empty": b"",
    "blank": b" \n\n ",
    "no JSON": b"hello world",
    "an empty object": b"{}",
    "a list": b"[1, 2]",
    "a list of objects": b'[{"sentences": []}]',
    "null": b"null",
    "a text": b'"text"',
    "another object": b'{"version": "1.0", "data": []}',
    "another object of objects": b'{"v1": {"fps": 3}}',
    "truncated": json_of(("A1", VIDEO), ("B2", VIDEO)).encode()[:-40],
    "truncated after a comma": json_of(("A1", VIDEO)).encode()[:-1] + b", ",
    "truncated at the last brace": json_of(("A1", VIDEO)).encode()[:-1],
    "two objects": json_of(("A1", VIDEO)).encode() * 2,
    "nested without end": b'{"A1": ' + b"[" * 100_000,
    "binary": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe",
    "UTF-16": json_of(("A1", VIDEO)).encode("utf-16"),
    "Latin-1": json_of(("A1", VIDEO)).replace("man", "mañana").encode("latin-1"),
    "keys without quotes": b"{A1: {}}",
}
NO_LINES = {
    "empty": b"",
    "blank": b" \n\n ",
    "no JSON": b"hello world\n",
    "lists": b"[]\n[]\n",
    "numbers": b"5\n",
    "another object": b'{"a": 1}\n',
    "without query": b'{"qid": 1, "vid": "v"}\n',
    "pretty-printed": json.dumps(LINE, indent=1).encode(),
    "binary": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe",
    "Latin-1": json.dumps(LINE).replace("man", "mañana").encode("latin-1"),
    "nested without end": b"[" * 100_000,
}


def refused(dataset: Dataset, path: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        outcome(dataset)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert REMEDY.search(message), f"no remedy in: {message}"
    return message


@pytest.mark.parametrize("kind", NO_DATA_SETS)
def test_a_json_file_that_is_no_data_set_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(NO_DATA_SETS[kind])
    refused(Dataset(name="own", folder=str(tmp_path)), path)


@pytest.mark.parametrize("kind", NO_LINES)
def test_a_jsonl_file_that_is_no_data_set_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my_train.jsonl"
    path.write_bytes(NO_LINES[kind])
    refused(Dataset(name="own", folder=str(tmp_path)), path)


def test_a_missing_folder_file_or_split_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    refused(Dataset(name="own", folder=str(missing)), missing)
    refused(Dataset(name="own", folder=str(tmp_path)), tmp_path)
    refused(Dataset(name="own", folder=str(tmp_path), files={"train": "my.json"}), tmp_path / "my.json")


def test_a_folder_in_a_files_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.mkdir()
    refused(Dataset(name="own", folder=str(tmp_path), files={"train": "train.json"}), path)
    with pytest.raises(DatasetError, match="can't be read"):
        list(read_rows(path, "train"))


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = compositional(tmp_path, ("A1", VIDEO))

    def denied(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(Path, "read_text", denied)
    monkeypatch.setattr("penumbra.artifacts.digests._read", denied)
    assert "Permission denied" in refused(dataset, tmp_path / "train.json")
    with pytest.raises(DatasetError):
        Annotations(dataset).inputs()


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "sub/../../secret.json"])
def test_files_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.json").write_text(json_of(("A1", VIDEO)))
    with pytest.raises(DatasetError, match="lies outside"):
        Dataset(name="own", folder=str(folder), files={"train": name}).split_files()


@pytest.mark.parametrize("name", ["../x", "", "A", "a b", "a/b", "-a"])
def test_names_of_data_sets_are_names_of_folders(name: str) -> None:
    with pytest.raises(ValidationError):
        Dataset(name=name)


# --- the key ---------------------------------------------------------------------------------------------------------


def test_the_key_follows_the_files_contents(tmp_path: Path) -> None:
    first = Annotations(compositional(tmp_path, ("A1", VIDEO))).work.key
    assert Annotations(Dataset(name="own", folder=str(tmp_path))).work.key == first
    assert Annotations(compositional(tmp_path, ("A1", {**VIDEO, "duration": 11}))).work.key != first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = Annotations(compositional(elsewhere, ("A1", VIDEO)))
    assert moved.work.key == first, "the folder is no part of the content"
    compositional(elsewhere, ("B2", VIDEO), name="test_trivial.json")
    assert Annotations(Dataset(name="own", folder=str(elsewhere))).work.key != first


def test_the_sample_needs_no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path))
    found = outcome(Dataset(name="scenes"))
    assert found.rejected == []
    assert {row["split"] for row in found.rows} == {"train", "test", "composition", "word"}


def test_two_files_for_a_split_are_told_apart_by_the_user(tmp_path: Path) -> None:
    for name in ("a_train.jsonl", "b_train.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DatasetError, match=r"a_train\.jsonl and b_train\.jsonl.*dataset\.files"):
        Dataset(name="mine", folder=str(tmp_path)).split_files()
