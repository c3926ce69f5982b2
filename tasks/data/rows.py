"""Which rows of a data set's files can be used, and what `penumbra check` reports of them.

Nothing here imports Prefect, which takes a second and a half.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from unicodedata import category, normalize

from penumbra.artifacts.markdown import counted, truncated
from penumbra.tasks.data.dataset import Dataset, RawRow, read_rows
from penumbra.tasks.data.english import foreign

MAX_WORDS, MAX_LENGTH = 256, 10_000  # of a query; characters
MASK = "<mask>"  # replaces words in masked queries, so no query may contain it
LARGEST = 1e9  # seconds or clips; no video is longer
SAFE_VID = re.compile(r"[^/\\\x00-\x1f]{1,200}\Z")

CheckedRow = tuple[RawRow, dict[str, Any], str, list[str]]  # row of the file, row of the table, reason, notes


# -- what a row must be -----------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[str], str]] = {  # what is changed in a text, in this order
    "control or format characters removed": lambda text: "".join(c for c in text if c.isspace() or not _controls(c)),
    "letters and accents composed (Unicode NFC)": lambda text: normalize("NFC", text),
    "blanks around the text removed": str.strip,
    "blanks between words made single spaces": lambda text: " ".join(text.split()),
}


def _controls(character: str) -> bool:
    return category(character) in ("Cc", "Cf")


def clean_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a query or negative without control characters, in NFC, with single blanks; and what was changed."""
    changes = []
    for name, step in STEPS.items():
        changed = step(text)
        changes += [name] * (changed != text)
        text = changed
    return text, tuple(changes)


def check_query(query: Any) -> str:
    """Return why a query can't be used after `clean_text`, or ''."""
    query = clean_text(query)[0] if isinstance(query, str) else ""
    if not query:
        return "query is empty"
    if not is_text(query):
        return "query is no valid Unicode text"
    letters = [c for c in query if c.isalpha()]
    if not letters:
        return "query has no letter"
    if sum(c.isascii() for c in letters) < 0.5 * len(letters):
        return "query is not written in Latin letters"
    if len(query.split()) > MAX_WORDS:
        return f"query is longer than {MAX_WORDS} words"
    if len(query) > MAX_LENGTH:
        return f"query is longer than {MAX_LENGTH:,} characters"
    return "query contains <mask>" if MASK in query else ""


def clean_windows(windows: Any, duration: float) -> tuple[list[list[float]], str, str]:
    """Return the windows clipped to the video, why they can't be used (or ''), and what was changed (or '')."""
    if not isinstance(windows, list):
        return [], "windows are no list", ""
    kept, note = [], ""
    for window in windows:
        if not isinstance(window, list) or len(window) != 2 or not all(_is_number(edge) for edge in window):
            return [], "window is not two finite numbers", ""
        start, end = float(window[0]), float(window[1])
        if start < 0:
            return [], "window starts before 0", ""
        if end < start:
            return [], "window ends before it begins", ""
        if start >= duration:
            return [], "window starts after the video's end", ""
        if end > duration:
            end, note = duration, "window clipped to the video's end"
        if end == start:
            return [], "window is empty", ""
        kept.append([start, end])
    return kept, "", note


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def clean_saliency(clips: Any, scores: Any) -> tuple[list[dict[str, Any]] | None, str]:
    """Return QVHighlights' scores of each relevant clip, and why they can't be used (or '')."""
    if clips is None and scores is None:
        return None, ""
    if not isinstance(clips, list) or not isinstance(scores, list) or len(clips) != len(scores):
        return None, "saliency scores and clips differ in number"
    whole = all(type(clip) is int and 0 <= clip < LARGEST for clip in clips)
    fits = all(isinstance(s, list) and all(type(n) is int and 0 <= n < 128 for n in s) for s in scores)
    if not whole or not fits:
        return None, "saliency is no list of small whole numbers"
    return [{"clip": clip, "scores": score} for clip, score in zip(clips, scores, strict=True)], ""


def _fault(raw: RawRow, seen: set[str], english: bool) -> str:
    """Return why a row can't be used, apart from its windows and saliency, or ''."""
    if fault := raw.fault or check_query(raw.query):
        return fault
    if english and (language := foreign(raw.query)):
        return f"query is not in English, but in {language}"
    if not raw.qid or not is_text(raw.qid):
        return "qid is empty or no text"
    if raw.qid in seen:
        return "qid occurs twice"
    if not (is_text(raw.vid) and SAFE_VID.match(raw.vid) and ".." not in raw.vid):
        return "video id is no safe file name"
    if not (_is_number(raw.duration) and raw.duration > 0):
        return "duration is not a positive number"
    if not all(is_text(text) for label in raw.novel for text in (label["type"], *label["words"])):
        return "novel label is no text"
    return ""


def clean_row(raw: RawRow, split: str, seen: set[str], english: bool) -> tuple[dict[str, Any], str, list[str]]:
    """Return a row of the table, why it is rejected (or ''), and what was changed in it.

    `seen` holds the qids of the earlier rows; `english` rejects queries in other languages.
    """
    reason, note, windows, saliency = _fault(raw, seen, english), "", list[list[float]](), None
    if not reason:
        windows, reason, note = clean_windows(raw.windows, float(raw.duration))
    if not reason and raw.labelled and not windows:
        reason = "query has no window"
    if not reason:
        saliency, reason = clean_saliency(*raw.saliency)
    if reason:
        return {}, reason, []
    seen.add(raw.qid)
    query, changes = clean_text(raw.query)
    notes = [note] * bool(note) + [f"query: {change}" for change in changes]
    row = {"qid": raw.qid, "vid": raw.vid, "split": split, "query": query, "duration": float(raw.duration)}
    return row | {"windows": windows, "novel": raw.novel, "saliency": saliency}, "", notes


HEADER = ("split", "file", "rows", "rejected", "videos", "windows", "video, s", "window, s", "words")
MAX_EXAMPLE = 120  # characters


@dataclass
class Split:
    """A split: the number of its rows and of its usable rows, and figures of the usable rows."""

    name: str
    file: str
    rows: int = 0
    usable: int = 0
    durations: dict[str, float] = field(default_factory=dict)  # seconds, by video
    word_counts: list[int] = field(default_factory=list)  # of the queries
    window_lengths: list[float] = field(default_factory=list)  # seconds
    queries: dict[str, tuple[str, str]] = field(default_factory=dict)  # by the query in lower case: first place, query

    def add(self, row: dict[str, Any], place: str) -> None:
        self.usable += 1
        self.durations[row["vid"]] = row["duration"]
        self.word_counts.append(len(row["query"].split()))
        self.window_lengths += [end - start for start, end in row["windows"]]
        self.queries.setdefault(row["query"].lower(), (place, row["query"]))

    def figures(self) -> list[str]:
        counts = [self.rows, self.rows - self.usable, len(self.durations), len(self.window_lengths)]
        values: list[Sequence[float]] = [[*self.durations.values()], self.window_lengths, self.word_counts]
        ranges = [(min(own), median(own), max(own)) if own else () for own in values]
        shown = [" – ".join(f"{value:.4g}" for value in own) for own in ranges]
        return [self.name, self.file, *(f"{count:,}" for count in counts), *shown]


@dataclass
class CheckedDataset:
    """The content of a data set; each reason of rejection has a number of rows and an example."""

    splits: list[Split]
    rejected: dict[str, tuple[int, str]]
    changed: dict[str, int]
    notes: list[str]


def check(dataset: Dataset) -> CheckedDataset:
    """Read the files of a data set as the stage does; raise `DatasetError` if they are no data set."""
    seen = set[str]()
    checked = CheckedDataset([], {}, Counter[str](), [])
    for name, path in dataset.split_files().items():
        split = Split(name, path.name)
        for raw in read_rows(path, name):
            row, reason, changes = clean_row(raw, name, seen, dataset.english)
            split.rows += 1
            if reason:
                text = f"{raw.query!r}, {raw.vid}, {raw.windows} of {raw.duration} s"
                first = raw.place if raw.fault else f"{raw.place}: {truncated(text, MAX_EXAMPLE)}"
                count, example = checked.rejected.get(reason, (0, first))
                checked.rejected[reason] = (count + 1, example)
            else:
                checked.changed |= {change: checked.changed.get(change, 0) + 1 for change in changes}
                split.add(row, raw.place)
        checked.splits.append(split)
    training = next((split for split in checked.splits if split.name == "train"), None)
    for split in checked.splits if training else ():
        if training and split is not training:
            videos = split.durations.keys() & training.durations.keys()
            queries = split.queries.keys() & training.queries.keys()
            checked.notes += [f"also in train: {counted(len(videos), 'video')} of {split.name}"] * bool(videos)
            note = f"also in train, word for word: {counted(len(queries), 'query')} of {split.name}"
            checked.notes += [note] * bool(queries)
    return checked
