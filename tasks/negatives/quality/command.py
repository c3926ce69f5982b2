"""`penumbra quality`: negatives named on the command line, judged without a Prefect server."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import MANIFEST, NAME, Store
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.quality.artifact import ArtifactNegatives
from penumbra.tasks.negatives.quality.assessment import judge_now, page_of
from penumbra.tasks.negatives.quality.file import FileNegatives
from penumbra.tasks.negatives.quality.negative import NegativesError
from penumbra.tasks.negatives.quality.page import cells, known, providers_of
from penumbra.tasks.negatives.quality.review import Sheet
from penumbra.tasks.negatives.quality.source import AnnotatedDataset, dataset_named, judged_by
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.tags import Tagging

if TYPE_CHECKING:
    import pandas as pd

OF_A_FILE = ("qid", "vid", "level", "query", "negative", "masked_query", "provider", "similarity")


@dataclass(frozen=True)
class QualityTables:
    """What `penumbra quality` prints: tables as a title, a header and rows, and notes on what is not judged."""

    artifact: Artifact
    page: str
    tables: list[tuple[str, list[tuple[str, ...]]]]
    notes: list[str]


def negatives_named(store: Store, reference: str) -> ArtifactNegatives | FileNegatives:
    """The negatives that this names: a file or folder, or an artifact of the store.

    Raises `NegativesError` naming it and the remedy.
    """
    path = Path(reference).expanduser()
    if (path / MANIFEST).is_file():
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        root = Store(str(path.resolve().parents[2]))
        return ArtifactNegatives(root, root.reference(manifest))
    if path.exists():
        return FileNegatives(path)
    names = reference.strip("/").split("/")
    if path.suffix in (".jsonl", ".json", ".parquet") or len(names) not in (2, 3) or not all(map(NAME.match, names)):
        raise NegativesError(f"no file {reference}: give a file of negatives, or DATASET/negatives of the store")
    dataset, stage, *key = names
    return ArtifactNegatives(store, store.with_key(dataset, stage, key[0]) if key else store.newest(dataset, stage))


def settings_of(settings: Mapping[str, Any]) -> QualityConfig:
    """The settings that were given, the others by default; raises `NegativesError` naming a wrong one."""
    try:
        return QualityConfig(**{name: value for name, value in settings.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise NegativesError(f"{first['loc'][0]}: {first['msg']} (was {first['input']!r})") from None


def judge_reference(
    reference: str,
    dataset: str | None,
    settings: Mapping[str, Any],
    human: Path | None = None,
    review: Path | None = None,
) -> QualityTables:
    """Judge what `reference` names; an artifact by the data set that it was made from unless another is named."""
    store, judging = Store(), settings_of(settings)
    if human and not human.is_file():
        raise NegativesError(f"no file {human}: give a text file with one sentence a line")
    negatives = negatives_named(store, reference)
    data = _judged_by(store, negatives, dataset)
    sheet = Sheet(review) if review else None
    if sheet:
        sheet.check(chain.from_iterable(negatives.parts()), negatives.name)
    artifact = judge_now(negatives, data, Encoding(), judging, human, sheet)
    figures = known(store.table(artifact).to_pylist())
    tables = [(provider, cells(figures, provider)) for provider in providers_of(figures)]
    return QualityTables(artifact, page_of(store, artifact), tables, list(store.manifest(artifact).notes))


def judge_frame(negatives: "pd.DataFrame", dataset: str | None, settings: Mapping[str, Any]) -> QualityTables:
    """Judge a data frame: the columns of the artifact `negatives`, or those of a file with one negative a row."""
    lacking = [name for name in ("qid", "level", "query", "negative") if name not in negatives.columns]
    if lacking:
        raise NegativesError(f"the data frame lacks {', '.join(lacking)}: give what build_negatives gives")
    columns = [name for name in OF_A_FILE if name in negatives.columns]
    with tempfile.TemporaryDirectory(prefix="penumbra-") as folder:
        file = Path(folder) / "negatives.parquet"
        negatives[columns].to_parquet(file, index=False)
        return judge_reference(str(file), dataset, settings)


def _judged_by(store: Store, negatives: ArtifactNegatives | FileNegatives, dataset: str | None) -> AnnotatedDataset:
    if isinstance(negatives, FileNegatives):
        return judged_by(store, negatives, dataset, Tagging())
    return dataset_named(store, dataset, Tagging()) if dataset else negatives.dataset()
