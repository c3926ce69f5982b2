"""Stage `annotations`: every data set's own files become one table, and every unusable row a stated reason.

A row that can't be used is rejected; a file that is no data set stops the run. A video's queries always share a
part, so that later stages can compare the queries of a video without looking further.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import Dataset, DatasetError, RawRow, read_rows
from penumbra.tasks.data.rows import clean_row
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
