"""Negatives that others have made, such as the authors' release: kept as they are, with the checks that they pass.

A row is refused only if it is no negative of a training query. A query lacks the levels that the file lacks.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import category

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import check_query
from penumbra.tasks.negatives.choosing.checks import normal_form
from penumbra.tasks.negatives.files import Entry, NegativesError, read_entries
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.selection import STAGE, Choosing
from penumbra.tasks.negatives.sentence_negatives.nearest import NearestNegatives
from penumbra.tasks.negatives.sentence_negatives.stage import Sentence, SentenceNegatives, training_rows
from penumbra.tasks.stage import read_part, run
from penumbra.tasks.text.embeddings import Encoding

IMPORTED = "imported"
LEVELS = range(1, 4)


@dataclass(frozen=True)
class ImportedNegatives(SentenceNegatives):
    """The negatives of a file."""

    version = 1

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.sourcing.file).expanduser()

    @property
    def source(self) -> dict[str, Any]:
        """The kind of the source; the file enters the key by its digest."""
        return {"source": self.sourcing.source}

    def parameters(self) -> dict[str, Any]:
        """Return the source, the settings of the checks, and the file's name."""
        return {**super().parameters(), "file": self.path.name}

    def inputs(self) -> dict[str, str]:
        """Return the digests of all files; raise `NegativesError` if the file of negatives can't be read."""
        try:
            return {**super().inputs(), "negatives": file_digest(self.path)}
        except OSError as error:
            raise NegativesError(f"{self.path} can't be read ({error.strerror}): name it with file=…") from None

    @cached_property
    def splits(self) -> dict[str, str]:
        """The split of every query."""
        parts = Store().parts(self.annotations, ["qid", "split"])
        return {row["qid"]: row["split"] for part in parts for row in part.to_pylist()}

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The file's negatives of each training query, by level, and under '' those of no training query.

        Raises `NegativesError` if there are only the latter: then the file belongs to another data set.
        """
        by_query = defaultdict[str, list[Entry]](list)
        for entry in read_entries(self.path):
            by_query[entry.qid if self.splits.get(entry.qid) == "train" else ""].append(entry)
        if not by_query.keys() - {""}:
            first = next(entry.qid for entry in by_query[""] if not entry.fault)
            raise NegativesError(
                f"{self.path}: no qid is of a training query of {self.dataset}, the first is {first!r:.80}"
            )
        return {qid: sorted(entries, key=lambda entry: entry.level) for qid, entries in by_query.items()}

    def part(self, piece: int) -> Part:
        """Return the negatives of one part's queries; the first part refuses those of no training query."""
        annotations, tags = read_part(piece, self.annotations, self.tags)
        sentences, rejected = list[Sentence](), []
        for entry in self.entries.get("", ()) if piece == 0 else ():
            split = self.splits.get(entry.qid)
            reason = f"its query is of split {split}, not of train" if split else "no query has its qid"
            rejected.append(rejection(entry.qid, STAGE, entry.fault or reason, entry.value))
        for query in training_rows(annotations):
            levels = set[int]()
            for entry in self.entries.get(query["qid"], ()):
                reason = entry.fault or refusal(entry, query["query"], levels)
                if reason:
                    rejected.append(rejection(entry.qid, STAGE, reason, entry.value))
                else:
                    levels.add(entry.level)
                    sentences.append(Sentence(entry.qid, entry.level, entry.text, self.path.name))
        rows = self.rows(annotations, tags, sentences)
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)


def refusal(entry: Entry, query: str, levels: set[int]) -> str:
    """Return why an entry can't be a negative of a query that has negatives of these levels, or ''."""
    if entry.level not in LEVELS:
        return "level is not 1, 2 or 3"
    if entry.level in levels:
        return "its query has another of this level"
    if fault := check_query(entry.text):
        return fault.replace("query", "negative", 1)
    if any(category(character) == "Cc" for character in entry.text):
        return "negative holds a control character"
    if entry.query and normal_form(entry.query) != normal_form(query):
        return "its query is not what the data set has under its qid"
    return "equals its query" if normal_form(entry.text) == normal_form(query) else ""


def newest_imported(annotations: Artifact) -> Artifact:
    """Return the negatives of these queries that were imported last; raise `ArtifactError` if there are none."""
    store, dataset = Store(), annotations.dataset
    for manifest in reversed(store.find(dataset, STAGE)):
        if manifest.parameters.get("source") == IMPORTED and annotations in manifest.parents:
            return store.reference(manifest)
    raise ArtifactError(
        f"no negatives of {dataset} were imported: penumbra run import-negatives {dataset} --param file=…, or name the "
        "file with sourcing.file"
    )


def make_sentence_negatives(
    annotations: Artifact,
    tags: Artifact,
    dictionary: Artifact,
    embeddings: Artifact,
    sourcing: NegativeSource,
    choosing: Choosing,
    encoding: Encoding,
) -> Artifact:
    """Return negatives that are whole sentences; without the name of a file those that were imported last."""
    if sourcing.source == IMPORTED and not sourcing.file:
        return newest_imported(annotations)
    kind = ImportedNegatives if sourcing.source == IMPORTED else NearestNegatives
    return run(kind(annotations, tags, dictionary, embeddings, sourcing, choosing, encoding))
