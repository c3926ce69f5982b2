"""Stage `annotations`: every data set's own files become one table, and every unusable row a stated reason.

A row that can't be used is rejected; a file that is no data set stops the run. A video's queries always share a
part, so that later stages can compare the queries of a video without looking further.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import Dataset, DatasetError, RawRow, read_rows
from penumbra.tasks.data.english import foreign
from penumbra.tasks.stage import Stage, run

STAGE = "annotations"
ROWS_A_PART = 1024


def make_part(rows: Iterable[tuple[RawRow, dict[str, Any], str, list[str]]]) -> Part:
    """One part: the usable rows, and the others with their reasons."""
    kept, rejected, notes = [], [], Counter[str]()
    for raw, row, reason, changes in rows:
        if reason:
            rejected.append(rejection(raw.qid, STAGE, reason, raw.query))
        else:
            kept.append(row)
            notes.update(changes)
    return Part(table_of(STAGE, kept), len(kept) + len(rejected), len(kept), rejected, notes)


@dataclass(frozen=True)
class Annotations(Stage):
    """A data set's own files as one table; a part holds whole videos of one split."""

    name = STAGE
    version = 1
    total = 0  # the files are streamed

    source: Dataset
    rows_a_part: int = ROWS_A_PART

    @property
    def dataset(self) -> str:
        """Its name."""
        return self.source.name

    def parameters(self) -> dict[str, Any]:
        """The files' names, and how they are cut into parts."""
        files = self.source.split_files()
        return {"splits": {split: path.name for split, path in files.items()}, "rows_a_part": self.rows_a_part}

    def determines(self) -> dict[str, Any]:
        """All of them: files' names tell the splits; and whether queries of any language are taken."""
        return self.parameters() | self.source.model_dump(include={"english"}, exclude_defaults=True)

    def inputs(self) -> dict[str, str]:
        """The files' digests; raises `DatasetError` naming one that can't be read."""
        files = self.source.split_files()
        try:
            return {f"{split}: {path.name}": file_digest(path) for split, path in files.items()}
        except OSError as error:
            raise DatasetError(f"{error.filename} can't be read ({error.strerror}): check its permissions") from None

    def parts(self) -> Iterator[Callable[[], Part]]:
        """Yield the work of each part, split after split."""
        seen: set[str] = set()
        for split, path in self.source.split_files().items():
            batch: list[tuple[RawRow, dict[str, Any], str, list[str]]] = []
            last = None
            for raw in read_rows(path, split):
                if len(batch) >= self.rows_a_part and raw.vid != last:
                    yield partial(make_part, batch)
                    batch = []
                batch.append((raw, *clean_row(raw, split, seen, self.source.english)))
                last = raw.vid
            yield partial(make_part, batch)

    def part(self, piece: Any) -> Part:
        """See `make_part`."""
        return make_part(piece)


def read_annotations(dataset: Dataset) -> Artifact:
    """Read a data set's files."""
    return run(Annotations(dataset))


MAX_WORDS = 256
MASK = "<mask>"  # stands in a masked query, and so in no query
LARGEST = 1e9  # seconds or clips: no video is longer
SAFE_VID = re.compile(r"[^/\\\x00-\x1f]{1,200}\Z")


def check_query(query: Any) -> str:
    """Why a query can't be used, or ''."""
    if not isinstance(query, str) or not query.strip():
        return "query is empty"
    if not _is_text(query):
        return "query is no valid Unicode text"
    letters = [c for c in query if c.isalpha()]
    if not letters:
        return "query has no letter"
    if sum(c.isascii() for c in letters) < 0.5 * len(letters):
        return "query is not written in Latin letters"
    if len(query.split()) > MAX_WORDS:
        return f"query is longer than {MAX_WORDS} words"
    return "query contains <mask>" if MASK in query else ""


def clean_windows(windows: Any, duration: float) -> tuple[list[list[float]], str, str]:
    """The windows clipped to the video, why they can't be used (or ''), and what was changed (or '')."""
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def clean_saliency(clips: Any, scores: Any) -> tuple[list[dict[str, Any]] | None, str]:
    """QVHighlights' annotator scores of each relevant clip, and why they can't be used (or '')."""
    if clips is None and scores is None:
        return None, ""
    if not isinstance(clips, list) or not isinstance(scores, list) or len(clips) != len(scores):
        return None, "saliency scores and clips differ in number"
    whole = all(type(clip) is int and 0 <= clip < LARGEST for clip in clips)
    fits = all(isinstance(s, list) and all(type(n) is int and 0 <= n < 128 for n in s) for s in scores)
    if not whole or not fits:
        return None, "saliency is no list of small whole numbers"
    return [{"clip": clip, "scores": score} for clip, score in zip(clips, scores, strict=True)], ""


def clean_row(raw: RawRow, split: str, seen: set[str], english: bool) -> tuple[dict[str, Any], str, list[str]]:
    """A row of the table, why it is rejected (or ''), and what was changed in it.

    `seen` holds the qids met so far; `english` says that a query of another language is rejected.
    """
    notes = []
    reason = raw.fault or check_query(raw.query)
    if not reason and english and (language := foreign(raw.query)):
        reason = f"query is not in English, but in {language}"
    if not reason and (not raw.qid or not _is_text(raw.qid)):
        reason = "qid is empty or no text"
    if not reason and raw.qid in seen:
        reason = "qid occurs twice"
    if not reason and not (_is_text(raw.vid) and SAFE_VID.match(raw.vid) and ".." not in raw.vid):
        reason = "video id is no safe file name"
    if not reason and not (_is_number(raw.duration) and raw.duration > 0):
        reason = "duration is not a positive number"
    windows: list[list[float]] = []
    if not reason:
        windows, reason, note = clean_windows(raw.windows, float(raw.duration))
        notes += [note] if note else []
        if not reason and raw.labelled and not windows:
            reason = "query has no window"
    if not reason and not all(_is_text(text) for label in raw.novel for text in (label["type"], *label["words"])):
        reason = "novel label is no text"
    saliency = None
    if not reason:
        saliency, reason = clean_saliency(*raw.saliency)
    if reason:
        return {}, reason, []
    seen.add(raw.qid)
    query = raw.query.strip()
    notes += ["blanks around the query removed"] if query != raw.query else []
    row = {
        "qid": raw.qid,
        "vid": raw.vid,
        "split": split,
        "query": query,
        "duration": float(raw.duration),
        "windows": windows,
        "novel": raw.novel,
        "saliency": saliency,
    }
    return row, "", notes


SHOWN = 60  # characters of an example


@dataclass
class Split:
    """What one split holds: rows, how many of them can be used, and of these what is measured."""

    name: str
    file: str
    rows: int = 0
    usable: int = 0
    windows: int = 0
    durations: dict[str, float] = field(default_factory=dict)  # seconds, by video
    words: list[int] = field(default_factory=list)  # of a sentence
    lasting: list[float] = field(default_factory=list)  # seconds of a window

    def figures(self) -> list[str]:
        """A row of the table."""
        counts = [self.rows, self.rows - self.usable, len(self.durations), self.windows]
        spans = [spread(list(self.durations.values())), spread(self.lasting), spread(self.words)]
        return [self.name, self.file, *(f"{count:,}" for count in counts), *spans]


@dataclass
class Checked:
    """What was found in a data set; reasons and changes have their number of rows and the first as an example."""

    splits: list[Split]
    rejected: dict[str, tuple[int, str]]
    changed: dict[str, int]
    notes: list[str]


HEADER = ("split", "file", "rows", "rejected", "videos", "windows", "video, s", "window, s", "words")


def spread(values: Sequence[float]) -> str:
    """The least, the middle and the largest of some values."""
    return " – ".join(f"{value:.4g}" for value in (min(values), median(values), max(values))) if values else ""


def check(dataset: Dataset) -> Checked:
    """Read a data set's files as stage `annotations` does; raises `DatasetError` where they are no data set."""
    seen: set[str] = set()
    queries: dict[str, set[str]] = {}
    splits: list[Split] = []
    rejected: dict[str, tuple[int, str]] = {}
    changed = Counter[str]()
    for name, path in dataset.split_files().items():
        split = Split(name, path.name)
        for raw in read_rows(path, name):
            row, reason, changes = clean_row(raw, name, seen, dataset.english)
            split.rows += 1
            if reason:
                count, example = rejected.get(reason, (0, f"{path.name}: {_example(raw)}"))
                rejected[reason] = (count + 1, example)
            else:
                changed.update(changes)
                _take(split, row)
                queries.setdefault(name, set()).add(row["query"].lower())
        splits.append(split)
    return Checked(splits, rejected, dict(changed), _notes(splits, queries))


def _take(split: Split, row: dict[str, Any]) -> None:
    split.usable += 1
    split.durations[row["vid"]] = row["duration"]
    split.words.append(len(row["query"].split()))
    split.windows += len(row["windows"])
    split.lasting += [end - start for start, end in row["windows"]]


def _example(raw: RawRow) -> str:
    text = f"{raw.qid} {raw.query!r}, {raw.vid}, {raw.windows} of {raw.duration} s" if not raw.fault else raw.qid
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}…"


def _notes(splits: Sequence[Split], queries: dict[str, set[str]]) -> list[str]:
    """What rejects no row and is better known: videos and queries of the training split that tests have, too."""
    notes = []
    training = next((split for split in splits if split.name == "train"), None)
    for split in splits:
        if training is None or split is training:
            continue
        videos = len(split.durations.keys() & training.durations.keys())
        same = len(queries.get(split.name, set()) & queries.get("train", set()))
        notes += [f"{videos:,} videos of {split.name} are also in train"] if videos else []
        notes += [f"{same:,} queries of {split.name} are also in train, word for word"] if same else []
    return notes
