"""Negatives that others have made, such as the authors' release: told what they pass, and kept whatever that is.

Only what is no negative of a training query is refused. A query lacks the levels that the file lacks.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import category

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.annotations import check_query
from penumbra.tasks.negatives.choosing.guard import normal_form
from penumbra.tasks.negatives.quality.negative import NegativesError
from penumbra.tasks.negatives.selection import STAGE
from penumbra.tasks.negatives.sentence_negatives.described import Sentence, WholeNegatives, training_rows
from penumbra.tasks.negatives.sentence_negatives.reading import Entry, read_entries
from penumbra.tasks.stage import read_part

IMPORTED = "imported"
LEVELS = range(1, 4)


@dataclass(frozen=True)
class ImportedNegatives(WholeNegatives):
    """The negatives of a file."""

    version = 1

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.sourcing.file).expanduser()

    @property
    def source(self) -> dict[str, Any]:
        """That they are others'."""
        return {"source": self.sourcing.source}

    def parameters(self) -> dict[str, Any]:
        """The same as for others, and the file's name."""
        return {**super().parameters(), "file": self.path.name}

    def inputs(self) -> dict[str, str]:
        """The digest of the file among those of others; raises `NegativesError` where it can't be read."""
        try:
            return {**super().inputs(), "negatives": file_digest(self.path)}
        except OSError as error:
            raise NegativesError(f"{self.path} can't be read ({error.strerror}): name it with file=…") from None

    @cached_property
    def splits(self) -> dict[str, str]:
        """The split of every query."""
        pairs = (part.to_pylist() for part in Store().parts(self.annotations, ["qid", "split"]))
        return {row["qid"]: row["split"] for rows in pairs for row in rows}

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The file's negatives by training query, by level; '' for those that are of none.

        Raises `NegativesError` where all are: then the file belongs to another data set.
        """
        found = defaultdict[str, list[Entry]](list)
        for entry in read_entries(self.path):
            found[entry.qid if self.splits.get(entry.qid) == "train" else ""].append(entry)
        if not found.keys() - {""}:
            first = next(entry.qid for entry in found[""] if not entry.fault)
            raise NegativesError(
                f"{self.path}: no qid is of a training query of {self.dataset}, the first is {first!r:.80}"
            )
        return {qid: sorted(several, key=lambda entry: entry.level) for qid, several in found.items()}

    def part(self, piece: int) -> Part:
        """Take the negatives of one part's queries; those of no training query are refused in the first part."""
        annotations, tags = read_part(piece, self.annotations, self.tags)
        sentences, rejected = list[Sentence](), []
        for entry in self.entries.get("", ()) if piece == 0 else ():
            rejected.append(rejection(entry.qid, STAGE, entry.fault or self._stranger(entry), entry.value))
        for query in training_rows(annotations):
            seen = set[int]()
            for entry in self.entries.get(query["qid"], ()):
                reason = entry.fault or refusal(entry, query["query"], seen)
                if reason:
                    rejected.append(rejection(entry.qid, STAGE, reason, entry.value))
                else:
                    sentences.append(Sentence(entry.qid, entry.level, entry.text, self.path.name))
        rows = self.rows(annotations, tags, sentences)
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)

    def _stranger(self, entry: Entry) -> str:
        split = self.splits.get(entry.qid)
        return f"its query is of split {split}, not of train" if split else "no query has its qid"


def refusal(entry: Entry, query: str, seen: set[int]) -> str:
    """Why a negative can't be one of a training query, or ''; `seen` holds the levels that the query has."""
    if entry.level not in LEVELS:
        return "level is not 1, 2 or 3"
    if entry.level in seen:
        return "its query has another of this level"
    if fault := check_query(entry.text):
        return fault.replace("query", "negative", 1)
    if any(category(character) == "Cc" for character in entry.text):
        return "negative holds a control character"
    if entry.positive and normal_form(entry.positive) != normal_form(query):
        return "its query is not what the data set has under its qid"
    if normal_form(entry.text) == normal_form(query):
        return "equals its query"
    seen.add(entry.level)
    return ""


def newest_imported(annotations: Artifact) -> Artifact:
    """What was imported last for these queries; raises `ArtifactError` where nothing was."""
    store, dataset = Store(), annotations.dataset
    for manifest in reversed(store.find(dataset, STAGE)):
        if manifest.parameters.get("source") == IMPORTED and annotations in manifest.parents:
            return store.reference(manifest)
    raise ArtifactError(
        f"no negatives of {dataset} were imported: penumbra run import-negatives {dataset} --param file=…, or name the "
        "file with sourcing.file"
    )
