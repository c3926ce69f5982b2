"""`penumbra check`: what a data set holds and what of it would be rejected, by the rules of stage `annotations`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from penumbra.tasks.data.dataset import Dataset, RawRow, read_rows
from penumbra.tasks.data.rows import clean_row

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
