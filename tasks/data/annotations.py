"""Stage `annotations`: the files of a data set become one table; a row that can't be used is rejected with its reason.

A file that is no data set stops the run. All queries of a video are in the same part, so later stages can compare them
without reading other parts. `penumbra.tasks.data.rows` defines which rows can be used.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import Dataset, DatasetError, read_rows
from penumbra.tasks.data.rows import CheckedRow, clean_row
from penumbra.tasks.stage import Stage, run

STAGE = "annotations"
ROWS_A_PART = 1024
TRAINING = ("train",)  # the splits whose queries get negatives for training


def splits_parameter(splits: tuple[str, ...]) -> dict[str, list[str]]:
    """Return splits as a parameter of a stage; no parameter for the default, the training split alone."""
    return {} if splits == TRAINING else {"splits": list(splits)}


@dataclass(frozen=True)
class Annotations(Stage):
    """The files of a data set as one table; a part holds whole videos of one split."""

    name = STAGE
    version = 2
    pieces = ()  # `parts` streams the files

    source: Dataset
    rows_a_part: int = ROWS_A_PART

    @property
    def dataset(self) -> str:
        return self.source.name

    def parameters(self) -> dict[str, Any]:
        files = self.source.split_files()
        return {"splits": {split: path.name for split, path in files.items()}, "rows_a_part": self.rows_a_part}

    key_parameters = parameters

    def inputs(self) -> dict[str, str]:
        files = self.source.split_files()
        try:
            return {f"{split}: {path.name}": file_digest(path) for split, path in files.items()}
        except OSError as error:
            raise DatasetError(f"{error.filename} can't be read ({error.strerror}): check its permissions") from None

    def parts(self) -> Iterator[Callable[[], Part]]:
        """Yield the work of each part, one split after another."""
        seen: set[str] = set()
        for split, path in self.source.split_files().items():
            batch: list[CheckedRow] = []
            for raw in read_rows(path, split):
                if len(batch) >= self.rows_a_part and raw.vid != batch[-1][0].vid:
                    yield partial(self.part, batch)
                    batch = []
                batch.append((raw, *clean_row(raw, split, seen)))
            yield partial(self.part, batch)

    def part(self, piece: Iterable[CheckedRow]) -> Part:
        kept, rejected, notes = [], [], Counter[str]()
        for raw, row, reason, changes in piece:
            if reason:
                rejected.append(rejection(raw.qid, STAGE, reason, f"{raw.place}: {raw.query}"))
            else:
                kept.append(row)
                notes.update(changes)
        return Part(table_of(STAGE, kept), len(kept) + len(rejected), len(kept), rejected, notes)


class SplitsStage(Stage):
    """A stage that reads the queries of `splits`, which is a parameter unless it is the training split alone."""

    splits: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | splits_parameter(self.splits)

    def key_parameters(self) -> dict[str, Any]:
        return super().key_parameters() | splits_parameter(self.splits)


def read_annotations(dataset: Dataset) -> Artifact:
    return run(Annotations(dataset))
