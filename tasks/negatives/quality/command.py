"""Evaluate negatives that a user names, a file, an artifact or a data frame: needs no Prefect server."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from penumbra.artifacts.catalogue import names_in
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import MANIFEST, NAME, Store
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.quality.negatives import ArtifactNegatives, FileNegatives, dataset_named, dataset_of_file
from penumbra.tasks.negatives.quality.page import Table, figure_tables, figures_by_name
from penumbra.tasks.negatives.quality.report import make_quality, page_of
from penumbra.tasks.text.embeddings import Encoding

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("qid", "level", "query", "negative")
OPTIONAL = ("vid", "masked_query", "provider", "similarity")


@dataclass(frozen=True)
class QualityTables:
    """The output of `penumbra quality`: a table for each provider, and notes on what was not evaluated."""

    artifact: Artifact
    page: str
    tables: list[tuple[str, Table]]
    notes: list[str]


def find_negatives(store: Store, reference: str) -> ArtifactNegatives | FileNegatives:
    """Return the negatives of a file or folder, or of an artifact of the store; raise `NegativesError` otherwise."""
    path = Path(reference).expanduser()
    if (path / MANIFEST).is_file():
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        root = Store(str(path.resolve().parents[2]))
        return ArtifactNegatives(root, root.reference(manifest))
    if path.exists():
        return FileNegatives(path)
    names = names_in(reference)
    is_file = path.suffix in (".jsonl", ".json", ".parquet", ".csv", ".tsv")
    if is_file or len(names) not in (2, 3) or not all(map(NAME.match, names)):
        raise NegativesError(f"no file {reference}: give a file of negatives, or DATASET/negatives of the store")
    dataset, stage, *key = names
    return ArtifactNegatives(store, store.with_key(dataset, stage, key[0]) if key else store.newest(dataset, stage))


def evaluate_reference(reference: str, dataset: str | None, settings: Mapping[str, Any]) -> QualityTables:
    """Evaluate what `reference` names; an artifact against the data set that it was made from unless one is named."""
    try:
        config = QualityConfig(**{name: value for name, value in settings.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise NegativesError(f"{first['loc'][0]}: {first['msg']} (was {first['input']!r})") from None
    store = Store()
    negatives = find_negatives(store, reference)
    if isinstance(negatives, FileNegatives):
        data = dataset_named(store, dataset) if dataset else dataset_of_file(store, negatives)
    else:
        data = dataset_named(store, dataset) if dataset else negatives.dataset()
    artifact = make_quality(negatives, data, Encoding(), config)
    tables = figure_tables(figures_by_name(store.table(artifact).to_pylist()))
    return QualityTables(artifact, page_of(store, artifact), tables, list(store.manifest(artifact).notes))


def evaluate_frame(negatives: "pd.DataFrame", dataset: str | None, settings: Mapping[str, Any]) -> QualityTables:
    """Evaluate a data frame with the columns of the artifact `negatives`."""
    lacking = [name for name in COLUMNS if name not in negatives.columns]
    if lacking:
        raise NegativesError(f"the data frame lacks {', '.join(lacking)}: give what build_negatives gives")
    with tempfile.TemporaryDirectory(prefix="penumbra-") as folder:
        file = Path(folder) / "negatives.parquet"
        columns = [name for name in (*COLUMNS, *OPTIONAL) if name in negatives.columns]
        negatives[columns].to_parquet(file, index=False)
        return evaluate_reference(str(file), dataset, settings)
