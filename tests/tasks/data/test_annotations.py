"""Annotations: three formats, the real files, and every kind of damage has a reason and never stops the run."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.errors import MissingError
from penumbra.tasks.data import annotations
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, DatasetError
from penumbra.tasks.data.rows import clean_text

Row = dict[str, Any]
VIDEO: Row = {"sentences": ["a man runs.", "he sits down."], "timestamps": [[0, 4.5], [5, 9]], "duration": 10}
LINE: Row = {"qid": 1, "vid": "v1", "query": "a man runs.", "duration": 10, "relevant_windows": [[0, 4]]}
BLANKS = "blanks between words made single spaces"
REMEDY = re.compile(r"fetch|convert|check|PENUMBRA_DATA|name |is it ")
NOT_A_WINDOW = ([], [1], [1, 2, 3], [math.nan, 2], [1, math.inf], ["1", "2"], [True, 2], [None, None], "1-2", None)
UNSAFE_IDS = ("a/b", "..", "../b", "a\\b", "/etc/passwd", "a..b", "", "a\nb", "a\0b", "x" * 201, 7, None, ["v"])
UNUSABLE: list[tuple[Row, str]] = [
    *(({"query": query}, "query is empty") for query in ("", "   \t\n", None)),
    *(({"query": query}, "query is no text") for query in (5, ["a man"])),
    ({"query": "word " * 10_000}, "longer than"),
    ({"query": f"a person opens {'a' * 1_100_000}."}, "longer than"),
    ({"query": f"a person opens {'(' * 500}"}, "query has a word of more than 200 characters"),
    ({"query": "a man <mask> the door."}, "<mask>"),
    *(({"query": query}, "no letter") for query in ("🙂🙃🎉", "123 ... !!")),
    *(({"query": query}, "Latin") for query in ("人がドアを開ける。", "человек открывает дверь a")),
    ({"query": "a man \ud83d runs"}, "no valid Unicode text"),
    *(({"relevant_windows": [window]}, "not two finite numbers") for window in NOT_A_WINDOW),
    ({"relevant_windows": [[5, 2]]}, "ends before it begins"),
    ({"relevant_windows": [[3, 3]]}, "is empty"),
    ({"relevant_windows": [[0, 1], [-1, 2]]}, "starts before 0"),
    ({"relevant_windows": [[10, 12]]}, "after the video's end"),
    ({"relevant_windows": [[0, 10**400]]}, "not two finite numbers"),
    ({"relevant_windows": []}, "no window"),
    *(({"relevant_windows": windows}, "window") for windows in (None, "0-4", 4, [0, 4])),
    *(({"duration": duration}, "duration is not") for duration in (0, -1, None, math.nan, math.inf, True, "10", [10])),
    ({"duration": 10**400}, "duration is not"),
    *(({"vid": vid}, "no safe file name" if vid else "is empty") for vid in (*UNSAFE_IDS, "v\ud83d")),
    *(({"qid": qid}, "qid is empty") for qid in (None, "", "  ", "q\ud83d")),
    ({"qid": 1}, "qid occurs twice"),
    ({"relevant_clip_ids": [0], "saliency_scores": []}, "differ in number"),
    *(
        ({"relevant_clip_ids": clips, "saliency_scores": scores}, "small whole numbers")
        for clips, scores in (([2**40], [[1]]), (["first"], [[1]]), ([0], ["high"]), ([0], [[300]]), ([0], [5]))
    ),
]
ENDLESS = "1" * 5000  # more digits than Python reads
BROKEN_LINES = ['{"qid": 2, "query": ', "[1, 2]", "null", '{"qid": 2, "vid": "v1"}', "[" * 100_000]
ONE = '{"sentences": ["a man runs."], "timestamps": [[1, 2]], "duration": 10}'
BINARY = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe"
NO_TEXT = [b"", b" \n\n ", b"hello world", BINARY, b"[" * 100_000]
NO_LINES = [
    *(b"[]\n[]\n", b"5\n", b'{"a": 1}\n', b'{"qid": 1, "vid": "v"}\n', json.dumps(LINE, indent=1).encode()),
    json.dumps(LINE).replace("man", "mañana").encode("latin-1"),
]


class Outcome:
    """The rows of a data set after reading."""

    def __init__(self, dataset: Dataset, rows_a_part: int = annotations.ROWS_A_PART) -> None:
        parts = [make() for make in Annotations(dataset, rows_a_part).parts()]
        rows = [part.rows.to_pylist() for part in parts]
        assert [part.kept for part in parts] == [len(part) for part in rows]
        self.taken = sum(part.taken for part in parts)
        self.rows: list[Row] = [row for part in rows for row in part]
        self.rejected = [row for part in parts for row in part.rejected]
        self.notes = sum((Counter(part.notes) for part in parts), Counter[str]())
        self.places = [place for part in rows for place in {(row["split"], row["vid"]) for row in part}]
        self.reasons = {row["qid"]: row["reason"] for row in self.rejected}
        assert self.taken == len(self.rows) + len(self.rejected)


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


def test_compositional_files_become_rows(tmp_path: Path) -> None:
    novel = one_sentence("she puts the cup away.", [2, 3], novels=[{"v-n": [["put", "cup"]], "a-n": []}])
    compositional(tmp_path, ("B2", novel), name="novel_composition.json")
    compositional(tmp_path, ("C3", one_sentence(news=[{"NOUN": ["man"]}])), name="novel_word.json")
    compositional(tmp_path, ("D4", one_sentence()), name="test_trivial.json")
    found = Outcome(compositional(tmp_path, ("A1", VIDEO)))
    assert found.rejected == []
    qids = ["A1_train_0", "A1_train_1", "D4_test_0", "B2_composition_0", "C3_word_0"]
    assert [row["qid"] for row in found.rows] == qids
    assert [row["split"] for row in found.rows] == [qid.split("_")[1] for qid in qids]
    own = {"query": "he sits down.", "duration": 10.0, "windows": [[5.0, 9.0]], "novel": [], "saliency": None}
    assert found.rows[1] == {"qid": "A1_train_1", "vid": "A1", "split": "train", **own}
    assert found.rows[3]["novel"] == [{"type": "v-n", "words": ["put", "cup"]}]
    assert found.rows[4]["novel"] == [{"type": "NOUN", "words": ["man"]}]


@pytest.mark.parametrize("prefix", ["charades", "anet"])
def test_the_files_of_changing_distributions_are_found(tmp_path: Path, prefix: str) -> None:
    """Yuan et al. (2021) publish charades_train.json and so on, without labels of what is novel."""
    for number, split in enumerate(("train", "val", "test_iid", "test_ood")):
        dataset = compositional(tmp_path, (f"A{number}", VIDEO), name=f"{prefix}_{split}.json")
    found = Outcome(dataset)
    assert [row["qid"] for row in found.rows[::2]] == ["A0_train_0", "A1_val_0", "A2_test_iid_0", "A3_test_ood_0"]
    assert (len(found.rows), found.rejected) == (8, [])


def test_moment_detr_lines_become_rows(tmp_path: Path) -> None:
    labels = {"relevant_clip_ids": [0, 2], "saliency_scores": [[4, 3, 2], [1, 0, 1]]}
    row = {**LINE, "relevant_windows": [[0, 2], [4, 6]], **labels}
    hidden = {"qid": 7, "query": "a dog.", "duration": 150, "vid": "v7"}
    lines(tmp_path, hidden, name="highlight_test_release.jsonl")
    lines(tmp_path, {**LINE, "qid": 2}, name="highlight_val_release.jsonl")
    found = Outcome(lines(tmp_path, row, "", "   ", name="highlight_train_release.jsonl"))
    assert found.rejected == []
    train, val, test = sorted(found.rows, key=lambda row: row["qid"])
    assert [(row["qid"], row["split"]) for row in (train, val, test)] == [("1", "train"), ("2", "val"), ("7", "test")]
    assert train["windows"] == [[0.0, 2.0], [4.0, 6.0]]
    assert train["saliency"] == [{"clip": 0, "scores": [4, 3, 2]}, {"clip": 2, "scores": [1, 0, 1]}]
    assert test["windows"] == [], "a hidden test split has no windows, and is none the worse"


def test_charades_cg(shared: Path) -> None:
    found = Outcome(Dataset(name="charades-cg", folder=str(shared / "data" / "charades-cg")))
    assert found.taken == len(found.rows) == 15514
    splits = {"train": 8281, "test": 3096, "composition": 3442, "word": 695}
    assert Counter(row["split"] for row in found.rows) == splits
    assert found.notes == {"window clipped to the video's end": 2228, f"query: {BLANKS}": 41}
    assert found.rows[0]["qid"] == "IGDIE_train_0"
    assert all(re.fullmatch(rf"{row['vid']}_{row['split']}_\d+", row["qid"]) for row in found.rows)
    assert all(bool(row["novel"]) == (row["split"] in ("composition", "word")) for row in found.rows)
    assert all(0 <= start < end <= row["duration"] for row in found.rows for start, end in row["windows"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "splits", "rejected"),
    [
        ("charades-sta", {"train": 12404, "test": 3720}, {}),
        ("qvhighlights", {"train": 7218, "val": 1550, "test": 1542}, {}),
        ("activitynet-cg", {"train": 36724}, {"window ends before it begins": 2}),
    ],
)
def test_other_published_data_sets(shared: Path, name: str, splits: dict[str, int], rejected: dict[str, int]) -> None:
    files = {"train": "train.json"} if name == "activitynet-cg" else {}
    found = Outcome(Dataset(name=name, folder=str(shared / "data" / name), files=files))
    assert found.taken == sum(splits.values())
    assert Counter(found.reasons.values()).items() >= rejected.items()
    assert len(found.rejected) <= 2 * sum(rejected.values())
    if not rejected:
        assert Counter(row["split"] for row in found.rows) == splits


@pytest.mark.parametrize(("changes", "reason"), UNUSABLE)
def test_an_unusable_row_is_rejected_with_its_reason(tmp_path: Path, changes: Row, reason: str) -> None:
    found = Outcome(lines(tmp_path, LINE, {**LINE, "qid": 2, **changes}, {**LINE, "qid": 3}))
    assert [row["qid"] for row in found.rows] == ["1", "3"]
    assert found.taken == 3
    assert reason in found.rejected[0]["reason"]
    assert len(found.rejected[0]["value"]) <= 300


@pytest.mark.parametrize(
    ("text", "clean", "changes"),
    [
        ("a man\x07 runs", "a man runs", ["control or format characters removed"]),
        ("\ufeffa \u202eman\u200b runs", "a man runs", ["control or format characters removed"]),
        ("a cafe\u0301", "a caf\xe9", ["letters and accents composed (Unicode NFC)"]),
        ("a cafe" + "\u0301" * 31, "a cafe" + "\u0301" * 31, []),  # sorting n accents takes n² steps
        ("a\xa0man\r\nruns\u2028\x1ffast", "a man runs fast", [BLANKS]),
        (" a man \x07", "a man", ["control or format characters removed", "blanks around the text removed"]),
        ("a man runs, 🙂 100 %", "a man runs, 🙂 100 %", []),
    ],
)
def test_a_text_is_cleaned_and_each_change_is_named(text: str, clean: str, changes: list[str]) -> None:
    assert clean_text(text) == (clean, tuple(changes))
    assert clean_text(clean) == (clean, ())


def test_a_rejected_row_has_the_place_of_its_row(tmp_path: Path) -> None:
    own = {**LINE, "qid": 2, "query": "42", "source_row": "rows.csv:182"}
    found = Outcome(lines(tmp_path, LINE, own, {**LINE, "qid": 3, "query": "7"}))
    assert [row["value"] for row in found.rejected] == ["rows.csv:182: 42", "my_train.jsonl:3: 7"]


@pytest.mark.parametrize("windows", [[[0, 1]], [[0, 1], [1, 2], [2, 3]]])
def test_sentences_and_timestamps_of_different_number_are_rejected(tmp_path: Path, windows: Any) -> None:
    """Each sentence and each window without a sentence is counted."""
    found = Outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", {**VIDEO, "timestamps": windows})))
    assert (len(found.rows), found.taken) == (2, 2 + max(2, len(windows)))
    assert set(found.reasons.values()) == {"sentences and timestamps differ in number"}


def test_a_repeated_video_key_is_detected(tmp_path: Path) -> None:
    found = Outcome(compositional(tmp_path, ("A1", VIDEO), ("B2", one_sentence()), ("A1", VIDEO)), rows_a_part=1)
    assert [row["vid"] for row in found.rows] == ["A1", "A1", "B2"]
    assert found.reasons == dict.fromkeys(("A1_train_0", "A1_train_1"), "video id occurs twice in the file")
    assert len(found.places) == 2


@pytest.mark.parametrize("bad", [*BROKEN_LINES, json.dumps(LINE).replace("10", ENDLESS)])
def test_a_broken_line_is_rejected(tmp_path: Path, bad: str) -> None:
    found = Outcome(lines(tmp_path, LINE, bad, {**LINE, "qid": 3}))
    assert ([row["qid"] for row in found.rows], found.taken) == (["1", "3"], 3)


@pytest.mark.parametrize(
    "member",
    [
        '"B2\\ud83d": ' + ONE.replace("man", "man \\ud83d"),
        '"B2": ' + ONE.replace("[1, 2]", f"[1, 1{'0' * 400}]"),
        '"B2": ' + ONE.replace("10", ENDLESS),
        '"B2": ' + ONE[:-1] + ', "novels": {"v-n": [["put", "cup"]]}}',
        '"B2": ' + ONE[:-1] + ', "novels": [{"v-n\\ud83d": [["put", "cup"]]}]}',
        '"B2": {"sentences": ["a man runs."], "timestamps": [[1, 2]]}',
        '"B2": {"sentences": "a man runs.", "timestamps": null}',
        '"B2": null',
    ],
)
def test_one_bad_video_never_stops_a_run(tmp_path: Path, member: str) -> None:
    text = f'{json_of(("A1", VIDEO))[:-1]},\n {member}, "C3": {ONE}}}\n'
    (tmp_path / "train.json").write_text(text)
    found = Outcome(Dataset(name="own", folder=str(tmp_path)))
    assert found.taken == 4
    assert {row["vid"] for row in found.rows} >= {"A1", "C3"}


@pytest.mark.parametrize("rows_a_part", [1, 3, 100])
def test_the_rows_of_a_video_share_a_part(tmp_path: Path, rows_a_part: int) -> None:
    counts = [number % 4 + 1 for number in range(12)]
    several = [{**VIDEO, "sentences": ["a man."] * count, "timestamps": [[0, 1]] * count} for count in counts]
    dataset = compositional(tmp_path, *((f"v{number}", video) for number, video in enumerate(several)))
    found = Outcome(dataset, rows_a_part)
    assert found.rows == Outcome(dataset).rows
    assert len(found.places) == 12, "a video is in two parts"
    (tmp_path / "train.json").unlink()
    mixed = [{**LINE, "qid": number, "vid": f"v{number * 7 % 6}"} for number in range(40)]
    found = Outcome(lines(tmp_path, *mixed), rows_a_part)
    assert (len(found.rows), len(found.places)) == (40, 6), "a video is in two parts"


NO_DATA_SETS = [
    *(b"{}", b"[1, 2]", b"null", b'{"v1": {"fps": 3}}', b"{A1: {}}"),
    json_of(("A1", VIDEO), ("B2", VIDEO)).encode()[:-40],
    json_of(("A1", VIDEO)).encode() * 2,
    b'{"A1": ' + b"[" * 100_000,
    json_of(("A1", VIDEO)).encode("utf-16"),
    json_of(("A1", VIDEO)).replace("man", "mañana").encode("latin-1"),
]


def refused(dataset: Dataset, path: Path) -> str:
    with pytest.raises((DatasetError, MissingError)) as caught:
        Outcome(dataset)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert REMEDY.search(message), f"no remedy in: {message}"
    return message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("train.json", content) for content in (*NO_TEXT, *NO_DATA_SETS)),
        *(("my_train.jsonl", content) for content in (*NO_TEXT, *NO_LINES)),
    ],
)
def test_a_file_that_is_no_data_set_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(Dataset(name="own", folder=str(tmp_path)), tmp_path / name)


@pytest.mark.usefixtures("datasets")
def test_a_missing_folder_file_or_split_is_named(tmp_path: Path) -> None:
    for name, remedy in (
        ("charades-cg", "run `penumbra fetch charades-cg` or set PENUMBRA_DATA$"),
        ("charades", "init charades .*mean charades-cg"),
    ):
        with pytest.raises(MissingError, match=remedy):
            Dataset(name=name).split_files()
    missing = tmp_path / "nowhere"
    refused(Dataset(name="own", folder=str(missing)), missing)
    refused(Dataset(name="own", folder=str(tmp_path)), tmp_path)
    refused(Dataset(name="own", folder=str(tmp_path), files={"train": "my.json"}), tmp_path / "my.json")


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "sub/../../secret.json"])
def test_files_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.json").write_text(json_of(("A1", VIDEO)))
    with pytest.raises(DatasetError, match="lies outside"):
        Dataset(name="own", folder=str(folder), files={"train": name}).split_files()


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


def test_two_files_for_a_split_are_an_error(tmp_path: Path) -> None:
    for name in ("a_train.jsonl", "b_train.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DatasetError, match=r"a_train\.jsonl and b_train\.jsonl.*dataset\.files"):
        Dataset(name="mine", folder=str(tmp_path)).split_files()
