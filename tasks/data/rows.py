"""Which rows of a data set's files can be used, and what `penumbra check` reports of them.

Nothing here imports Prefect, which takes a second and a half.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from statistics import median
from typing import Any
from unicodedata import category, combining, normalize

from penumbra.artifacts.markdown import counted, truncated
from penumbra.tasks.data.dataset import Dataset, RawRow, read_rows

TRAINING = "train"
MAX_WORDS, MAX_LENGTH = 256, 10_000  # of a query; characters
MAX_ACCENTS = 30  # on a letter (Unicode's annex 15, stream-safe text)
LONGEST_WORD = 200  # characters; spaCy takes 25 s for a word of 10,000
MASK = "<mask>"  # replaces words in masked queries, so no query may contain it
FEWEST_VIDEOS = 20  # of a split that gets intervals: resampling fewer gives intervals that are far too narrow
LARGEST = 1e9  # seconds or clips; no video is longer
SAFE_VID = re.compile(r"[^/\\\x00-\x1f]{1,200}\Z")

CheckedRow = tuple[RawRow, dict[str, Any], str, list[str]]  # row of the file, row of the table, reason, notes


def composed(text: str) -> str:
    """Return a text in NFC, unless it is too long or has too many accents on a letter: n accents take n² steps."""
    if text.isascii() or len(text) > MAX_LENGTH:
        return text
    accents = (sum(1 for _ in run) for is_accent, run in groupby(text, lambda c: combining(c) > 0) if is_accent)
    return text if max(accents, default=0) > MAX_ACCENTS else normalize("NFC", text)


STEPS: dict[str, Callable[[str], str]] = {  # what is changed in a text, in this order
    "control or format characters removed": lambda text: "".join(
        c for c in text if c.isspace() or category(c) not in ("Cc", "Cf")
    ),
    "letters and accents composed (Unicode NFC)": composed,
    "blanks around the text removed": str.strip,
    "blanks between words made single spaces": lambda text: " ".join(text.split()),
}


def clean_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a query or negative without control characters, in NFC, with single blanks; and what was changed."""
    changes = []
    for name, step in STEPS.items():
        changed = step(text)
        changes += [name] * (changed != text)
        text = changed
    return text, tuple(changes)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def check_query(query: Any) -> str:
    """Return why a query can't be used after `clean_text`, or ''."""
    if query is not None and not isinstance(query, str):
        return "query is no text"
    query = clean_text(query or "")[0]
    if not query:
        return "query is empty"
    if not is_text(query):
        return "query is no valid Unicode text"
    letters = [c for c in query if c.isalpha()]
    if not letters:
        return "query has no letter"
    if sum(c.isascii() for c in letters) < 0.5 * len(letters):
        return "query is not written in Latin letters"
    if len(query.split()) > MAX_WORDS or len(query) > MAX_LENGTH:
        return f"query is longer than {MAX_WORDS} words or {MAX_LENGTH:,} characters"
    if max(map(len, query.split())) > LONGEST_WORD:
        return f"query has a word of more than {LONGEST_WORD} characters"
    return "query contains <mask>" if MASK in query else ""


def clean_row(raw: RawRow, split: str, seen: set[str]) -> tuple[dict[str, Any], str, list[str]]:
    """Return a row of the table, why it is rejected (or ''), and what was changed in it; `seen` are earlier qids."""
    reason = raw.fault or check_query(raw.query) or _fault(raw, seen)
    if reason:
        return {}, reason, []
    seen.add(raw.qid)
    query, changes = clean_text(raw.query)
    notes, duration = [f"query: {change}" for change in changes], float(raw.duration)
    notes += ["window clipped to the video's end"] * any(end > duration for _, end in raw.windows)
    windows = [[float(start), min(float(end), duration)] for start, end in raw.windows]
    clips, scores = raw.saliency
    pairs = None if clips is None else [{"clip": c, "scores": s} for c, s in zip(clips, scores, strict=True)]
    row = {"qid": raw.qid, "vid": raw.vid, "split": split, "query": query, "duration": duration}
    return row | {"windows": windows, "novel": raw.novel, "saliency": pairs}, "", notes


def _fault(raw: RawRow, seen: set[str]) -> str:
    """Return why a row with a good query can't be used, or ''."""
    if not raw.qid or not is_text(raw.qid):
        return "qid is empty or no text"
    if raw.qid in seen:
        return "qid occurs twice"
    if raw.vid in (None, ""):
        return "video id is empty"
    if not (is_text(raw.vid) and SAFE_VID.match(raw.vid) and ".." not in raw.vid):
        return "video id is no safe file name"
    if not (_is_number(raw.duration) and raw.duration > 0):
        return "duration is not a positive number"
    if not all(is_text(text) for label in raw.novel for text in (label["type"], *label["words"])):
        return "novel label is no text"
    return _fault_of_windows(raw) or _fault_of_saliency(*raw.saliency)


def _fault_of_windows(raw: RawRow) -> str:
    if not isinstance(raw.windows, list):
        return "windows are no list"
    for window in raw.windows:
        if not isinstance(window, list) or len(window) != 2 or not all(_is_number(edge) for edge in window):
            return "window is not two finite numbers"
        start, end = window
        if start < 0:
            return "window starts before 0"
        if end < start:
            return "window ends before it begins"
        if start >= raw.duration:
            return "window starts after the video's end"
        if end == start:
            return "window is empty"
    return "query has no window" if raw.labelled and not raw.windows else ""


def _fault_of_saliency(clips: Any, scores: Any) -> str:
    """Return why QVHighlights' scores of each relevant clip can't be used, or ''."""
    if clips is None and scores is None:
        return ""
    if not isinstance(clips, list) or not isinstance(scores, list) or len(clips) != len(scores):
        return "saliency scores and clips differ in number"
    whole = all(type(clip) is int and 0 <= clip < LARGEST for clip in clips)
    fits = all(isinstance(s, list) and all(type(n) is int and 0 <= n < 128 for n in s) for s in scores)
    return "" if whole and fits else "saliency is no list of small whole numbers"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def training_queries(dataset: Dataset, most: int | None = None) -> int:
    """Return the number of usable training queries of a data set; stop counting at `most`."""
    path, seen = dataset.split_files().get(TRAINING), set[str]()
    rows = read_rows(path, TRAINING) if path else ()
    return sum(1 for _ in islice((raw for raw in rows if not clean_row(raw, TRAINING, seen)[1]), most))


# -- what `penumbra check` reports ------------------------------------------------------------------------------------

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

    def figures(self) -> list[str]:
        counts = [self.rows, self.rows - self.usable, len(self.durations), len(self.window_lengths)]
        values: list[Sequence[float]] = [[*self.durations.values()], self.window_lengths, self.word_counts]
        ranges = [(min(own), median(own), max(own)) if own else () for own in values]
        shown = [" – ".join(f"{value:.4g}" for value in own) for own in ranges]
        return [self.name, self.file, *(f"{count:,}" for count in counts), *shown]


@dataclass
class CheckedDataset:
    """The content of a data set; each reason of rejection has a number of rows and an example."""

    splits: list[Split] = field(default_factory=list)
    rejected: dict[str, tuple[int, str]] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def check(dataset: Dataset) -> CheckedDataset:
    """Read the files of a data set as stage `annotations` does; raise `DatasetError` if they are no data set."""
    checked, seen = CheckedDataset(), set[str]()
    for name, path in dataset.split_files().items():
        split = Split(name, path.name)
        checked.splits.append(split)
        for raw in read_rows(path, name):
            row, reason, changes = clean_row(raw, name, seen)
            split.rows += 1
            if reason:
                text = f"{raw.query!r}, {raw.vid}, {raw.windows} of {raw.duration} s"
                first = raw.place if raw.fault else f"{raw.place}: {truncated(text, MAX_EXAMPLE)}"
                count, example = checked.rejected.get(reason, (0, first))
                checked.rejected[reason] = (count + 1, example)
                continue
            checked.changed.update(changes)
            split.usable += 1
            split.durations[row["vid"]] = row["duration"]
            split.word_counts.append(len(row["query"].split()))
            split.window_lengths += [end - start for start, end in row["windows"]]
            split.queries.setdefault(row["query"].lower(), (raw.place, row["query"]))
    training = next((split for split in checked.splits if split.name == "train"), None)
    for split in checked.splits:
        if training and split is not training:
            if len(split.durations) < FEWEST_VIDEOS:
                few = counted(len(split.durations), "video")
                checked.notes.append(f"{split.name} has {few}: `compare` gives intervals only from {FEWEST_VIDEOS} on")
            if videos := split.durations.keys() & training.durations.keys():
                names = truncated(", ".join(sorted(videos)), MAX_EXAMPLE)
                checked.notes.append(f"also in train: {counted(len(videos), 'video')} of {split.name}: {names}")
            if queries := split.queries.keys() & training.queries.keys():
                checked.notes.append(f"also in train, word for word: {counted(len(queries), 'query')} of {split.name}")
    return checked
