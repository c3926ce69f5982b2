"""The negatives that are evaluated, of an artifact or of a file, and the data set that they are evaluated against."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME, Artifact, Manifest
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import MANIFEST, Store
from penumbra.tasks.data.annotations import STAGE as ANNOTATIONS
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, DatasetError
from penumbra.tasks.negatives.files import NegativesError, read_entries
from penumbra.tasks.negatives.fills import FILLED
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.stage import build
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, Tagging, Tags, load_pipeline, tag_part
from penumbra.tasks.text.tags import STAGE as TAGS

TRAINING = "train"
UNNAMED = "unnamed"  # the data set of a file that belongs to none


@dataclass(frozen=True, slots=True)
class Negative:
    """One negative and its query; masked query, slots and similarity (cosine) if they are known."""

    qid: str
    vid: str
    level: int
    query: str
    negative: str
    provider: str
    masked: str | None = None
    slots: tuple[Slot, ...] | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class AnnotatedDataset:
    """The queries of a data set and their tokens: artifacts of the store, or the queries of a file of negatives."""

    store: Store
    name: str
    annotations: Artifact | None = None
    tags: Artifact | None = None
    tables: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    def annotated(self) -> Iterable[tuple[pa.Table, pa.Table]]:
        if self.annotations is None or self.tags is None:
            return self.tables
        return zip(self.store.parts(self.annotations), self.store.parts(self.tags), strict=True)


@dataclass(frozen=True)
class ArtifactNegatives:
    """The rows of `negatives`, or the first fills of a provider, joined with their queries and masks."""

    store: Store
    artifact: Artifact

    @cached_property
    def ancestors(self) -> dict[str, list[Artifact]]:
        """The artifacts that it was made from, by stage; raises `NegativesError` without annotations or tags."""
        ancestors = self.store.ancestors(self.artifact)
        lacking = [stage for stage in ("annotations", "tags") if stage not in ancestors]
        if self.artifact.stage not in ("negatives", "fills"):
            raise NegativesError(f"{self.artifact.path} holds no negatives: give DATASET/negatives or DATASET/fills")
        if lacking:
            raise NegativesError(f"{self.artifact.path} does not name its {' and '.join(lacking)}: build it again")
        return ancestors

    def dataset(self) -> AnnotatedDataset:
        annotations = self.ancestors["annotations"][0]
        return AnnotatedDataset(self.store, annotations.dataset, annotations, self.ancestors["tags"][0])

    def parts(self, queries: Collection[str] | None = None) -> Iterator[list[Negative]]:
        """Yield the rows of each part, of all queries or of these."""
        wanted = None if queries is None else pa.array(queries, pa.string())
        yield from (self.part(index, wanted) for index in range(len(self.store.manifest(self.artifact).parts)))

    def part(self, index: int, queries: pa.Array | None = None) -> list[Negative]:
        """Return the rows of a part, of all queries or of these; of the fills of a query and level the first."""

        def read(artifact: Artifact, columns: list[str]) -> pa.Table:
            rows = self.store.part(artifact, index, columns)
            return rows if queries is None else rows.filter(pc.is_in(rows["qid"], queries))

        is_chosen = self.artifact.stage == "negatives"
        columns = ["qid", "level", "negative", "provider", "similarity" if is_chosen else "status"]
        negatives = read(self.artifact, columns)
        if not len(negatives):
            return []
        about = {row["qid"]: row for row in read(self.ancestors["annotations"][0], ["qid", "vid", "query"]).to_pylist()}
        masks: dict[Any, tuple[str, tuple[Slot, ...]]] = {}
        if "masks" in self.ancestors:
            tags = read(self.ancestors["tags"][0], ["qid", "tokens"])
            lemmas = {row["qid"]: [token["lemma"] for token in row["tokens"]] for row in tags.to_pylist()}
            for row in read(self.ancestors["masks"][0], ["qid", "level", "masked_query", "slots"]).to_pylist():
                slots = tuple(Slot(**slot, lemma=lemmas[row["qid"]][slot["token"]]) for slot in row["slots"])
                masks[row["qid"], row["level"]] = row["masked_query"], slots
        rows = []
        for row in (negatives if is_chosen else first_fills(negatives)).to_pylist():
            query, (masked, own_slots) = about[row["qid"]], masks.get((row["qid"], row["level"]), (None, None))
            place = row["qid"], query["vid"], row["level"], query["query"]
            rows.append(Negative(*place, row["negative"], row["provider"], masked, own_slots, row.get("similarity")))
        return rows


def first_fills(fills: pa.Table) -> pa.Table:
    """Return the first fill of each query and level that was filled."""
    filled = fills.filter(pc.equal(fills["status"], FILLED))
    places: dict[tuple[str, int], int] = {}
    for index, place in enumerate(zip(filled["qid"].to_pylist(), filled["level"].to_pylist(), strict=True)):
        places.setdefault(place, index)
    return filled.take(pa.array(places.values(), pa.int64()))


@dataclass(frozen=True)
class FileNegatives:
    """The rows of a file, or of the Parquet files of a folder."""

    path: Path

    @cached_property
    def rows(self) -> list[Negative]:
        """All rows; raises `NegativesError` that names the first row that is no negative."""
        rows = []
        for entry in read_entries(self.path):
            fault = entry.fault or ("" if entry.query else "its query is missing")
            fault = fault or ("" if entry.level else "level is no whole number from 1 on")
            if fault := fault or ("" if entry.text else "negative is empty"):
                place = entry.value.partition(": ")[0]
                raise NegativesError(f"{self.path}, {place}: {fault}: correct the row or delete it")
            about = entry.qid, entry.vid, entry.level, entry.query, entry.text, entry.provider or "file"
            rows.append(Negative(*about, masked=entry.masked, similarity=entry.similarity))
        return rows

    def parts(self, queries: Collection[str] | None = None) -> Iterator[list[Negative]]:
        """Yield all rows at once, of all queries or of these."""
        yield self.rows if queries is None else [row for row in self.rows if row.qid in queries]


def find_negatives(store: Store, reference: str) -> ArtifactNegatives | FileNegatives:
    """Return the negatives of a file or folder, or of an artifact of the store; raise `PenumbraError` otherwise."""
    path = Path(reference).expanduser()
    if (path / MANIFEST).is_file():
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        root = Store(str(path.resolve().parents[2]))
        return ArtifactNegatives(root, root.reference(manifest))
    if path.exists():
        return FileNegatives(path)
    if "/" not in reference or path.suffix:
        raise NegativesError(f"no file {reference}: give a file of negatives, or DATASET/negatives of the store")
    return ArtifactNegatives(store, store.resolve(reference))


def dataset_named(store: Store, name: str) -> AnnotatedDataset:
    """Return a data set by name: its files if there are any, tagged now if need be, else the newest in the store."""
    if not NAME.match(name):
        raise NegativesError(f"{name!r} is no name of a data set: give one as in --dataset charades-cg")
    try:
        dataset = Dataset(name=name)
        dataset.split_files()
    except (DatasetError, MissingError):
        if not store.find(name, TAGS):
            raise
        tags = store.newest(name, TAGS)
        annotations = next(p for p in store.manifest(tags).parents if p.stage == ANNOTATIONS)
        return AnnotatedDataset(store, name, annotations, tags)
    annotations = build(Annotations(dataset))
    return AnnotatedDataset(store, name, annotations, build(Tags(annotations, Tagging())))


def dataset_of_file(store: Store, negatives: FileNegatives) -> AnnotatedDataset:
    """Return the data set that a file belongs to, or else its queries, all of them as training queries."""
    first = negatives.rows[0]
    for manifest in reversed(store.find(stage=ANNOTATIONS)):
        for part in store.parts(store.reference(manifest), ["qid", "query"]):
            if (first.qid, first.query) in zip(part["qid"].to_pylist(), part["query"].to_pylist(), strict=True):
                return dataset_named(store, manifest.dataset)
    name = negatives.path.resolve().parent.name
    if NAME.match(name) and (data_folder() / name).is_dir():
        return dataset_named(store, name)
    others = {"split": TRAINING, "duration": 0.0, "windows": [], "novel": [], "saliency": None}
    queries = {row.qid: {"qid": row.qid, "vid": row.vid, "query": row.query, **others} for row in negatives.rows}
    annotations = table_of(ANNOTATIONS, list(queries.values()))
    tags = tag_part(annotations, load_pipeline(SHIPPED_PIPELINE)).rows
    return AnnotatedDataset(store, UNNAMED, tables=[(annotations, tags)])
