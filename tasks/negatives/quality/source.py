"""What a user names on the command line: which negatives, and the data set whose annotations judge them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import NAME, Store
from penumbra.tasks.data.annotations import STAGE as ANNOTATIONS
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, DatasetError
from penumbra.tasks.negatives.quality.file import FileNegatives
from penumbra.tasks.negatives.quality.negative import Negative, NegativesError
from penumbra.tasks.negatives.quality.reference import TRAINING
from penumbra.tasks.stage import build
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, Tagging, Tags, load_pipeline, tag_part
from penumbra.tasks.text.tags import STAGE as TAGS

UNNAMED = "unnamed"  # the data set of a file that belongs to none


@dataclass(frozen=True)
class AnnotatedDataset:
    """A data set's queries and their tokens: artifacts of the store, or the queries that a file of negatives has."""

    store: Store
    name: str
    annotations: Artifact | None = None
    tags: Artifact | None = None
    embeddings: Artifact | None = None
    tables: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    def annotated(self) -> Iterable[tuple[pa.Table, pa.Table]]:
        """The `annotations` and `tags`, part by part."""
        if self.annotations is None or self.tags is None:
            return self.tables
        return zip(self.store.parts(self.annotations), self.store.parts(self.tags), strict=True)


def dataset_named(store: Store, name: str, tagging: Tagging) -> AnnotatedDataset:
    """A data set by name: from its files where they are there, tagged now if need be, else the newest in the store."""
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
        return AnnotatedDataset(store, name, annotations, tags, embedded(store, annotations))
    annotations = build(Annotations(dataset))
    tags = build(Tags(annotations, tagging))
    return AnnotatedDataset(store, name, annotations, tags, embedded(store, annotations))


def embedded(store: Store, annotations: Artifact) -> Artifact | None:
    """The newest embeddings of these queries."""
    several = [m for m in store.find(annotations.dataset, "embeddings") if annotations in m.parents]
    return store.reference(several[-1]) if several else None


def own_dataset(store: Store, rows: Iterable[Negative]) -> AnnotatedDataset:
    """The queries of a file of negatives as a data set: all of them training queries."""
    queries = {row.qid: row for row in rows}
    annotations = table_of(
        ANNOTATIONS,
        [
            {
                "qid": row.qid,
                "vid": row.vid,
                "split": TRAINING,
                "query": row.positive,
                "duration": 0.0,
                "windows": [],
                "novel": [],
                "saliency": None,
            }
            for row in queries.values()
        ],
    )
    tags = tag_part(annotations, load_pipeline(SHIPPED_PIPELINE)).rows
    return AnnotatedDataset(store, UNNAMED, tables=[(annotations, tags)])


def guess_dataset(store: Store, negatives: FileNegatives) -> str | None:
    """The data set that a file belongs to: its folder's, or one in the store, that has the file's first query."""
    first = negatives.rows[0]
    for manifest in reversed(store.find(stage=ANNOTATIONS)):
        for part in store.parts(store.reference(manifest), ["qid", "query"]):
            places = zip(part["qid"].to_pylist(), part["query"].to_pylist(), strict=True)
            if (first.qid, first.positive) in places:
                return manifest.dataset
    name = negatives.path.resolve().parent.name
    return name if NAME.match(name) and (data_folder() / name).is_dir() else None


def judged_by(store: Store, negatives: FileNegatives, dataset: str | None, tagging: Tagging) -> AnnotatedDataset:
    """The data set that judges a file: the one named, the one it belongs to, or the file's own queries."""
    name = dataset or guess_dataset(store, negatives)
    if name:
        return dataset_named(store, name, tagging)
    return own_dataset(store, negatives.rows)
