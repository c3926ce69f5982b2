"""Negatives as a folder that `datasets.load_dataset` opens, and its way to the Hub.

FOLDER/README.md                 the card
FOLDER/negatives/train.parquet   a row a negative
FOLDER/queries/SPLIT.parquet     every query with its windows
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from httpx2 import HTTPError

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import SCHEMAS
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.export.card import NEGATIVES, QUERIES, write_card
from penumbra.tasks.negatives.export.rows import export_rows, sources_of
from penumbra.tasks.negatives.export.tables import write_parquet, write_tables

COLUMNS = ["qid", "vid", "query", "duration", "windows"]
CARD = "README.md"
UNKNOWN = "unknown"  # the Hub's word where no licence is told


class HubError(PenumbraError):
    """The Hub was not asked, or did not take what was sent."""


def write_folder(
    store: Store,
    dataset: str,
    folder: Path,
    name: str,
    licence: str = UNKNOWN,
    told: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Write the newest negatives of a data set, and return the names of the files.

    `name` is what the card has to be loaded by; `told` is as in `export_rows`. Raises what that raises.
    """
    notes: list[str] = []
    rows = export_rows(store, dataset, NEGATIVES, notes.append)
    negatives = store.newest(dataset, "negatives")
    files: dict[str, dict[str, str]] = {NEGATIVES: {"train": f"{NEGATIVES}/train.parquet"}, QUERIES: {}}
    try:
        for config in files:
            (folder / config).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenumbraError(f"--output {folder} can't be written ({error.strerror}): name a folder") from None
    write_parquet(rows, folder / files[NEGATIVES]["train"])
    annotations = sources_of(store, negatives)["annotations"]
    for split, named in _splits(store, annotations).items():
        files[QUERIES][named] = f"{QUERIES}/{named}.parquet"
        write_tables(_queries(store, annotations, split), _schema(), folder / files[QUERIES][named])
    card = write_card(store, negatives, name, licence, files, notes)
    (folder / CARD).write_text(card, encoding="utf-8")
    for note in notes:
        told(note)
    return [CARD, *(file for splits in files.values() for file in splits.values())]


def _schema() -> pa.Schema:
    return pa.schema([SCHEMAS["annotations"].field(name) for name in COLUMNS])


def _splits(store: Store, annotations: Artifact) -> dict[str, str]:
    """The splits in their order, and what `datasets` takes as their names: letters, digits and underscores."""
    found = dict.fromkeys(name for part in store.parts(annotations, ["split"]) for name in part["split"].to_pylist())
    return {name: re.sub(r"\W", "_", name) for name in found}


def _queries(store: Store, annotations: Artifact, split: str) -> Iterator[pa.Table]:
    for part in store.parts(annotations, ["split", *COLUMNS]):
        yield part.filter(pc.equal(part["split"], split)).select(COLUMNS).cast(_schema())


def push(folder: Path, repository: str, files: list[str]) -> str:
    """Put these files of a folder into a data set of the Hub, OWNER/NAME, and return its address.

    One that is not there is made, and is private. The token is that of `HF_TOKEN`, and no other. Raises `HubError`.
    """
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        raise HubError(f"--push {repository} needs HF_TOKEN, a token of the Hub that may write")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(token=token, library_name="penumbra")
    try:
        hub.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            repo_type="dataset",
            allow_patterns=files,
            commit_message="Negatives exported by Penumbra",
        )
    except (HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HubError(f"--push {repository}: {without_secrets(reason.replace(token, '…'))}") from None
    return f"{hub.endpoint}/datasets/{repository}"
