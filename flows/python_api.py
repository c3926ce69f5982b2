"""`penumbra.build_negatives`: the flow `build-negatives` over queries that lie in no file, in this process."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import Artifact
from penumbra.flows.build_negatives import negatives_of
from penumbra.flows.local_run import prepare, run_flow, warnings_only
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.data.queries import write_queries
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.negatives.references import Negatives
from penumbra.tasks.stage import IS_THERE, Parameters, planning

if TYPE_CHECKING:
    import pandas as pd


UNNAMED = "sentences"
MARK = ".written-from-python"  # in a folder of the data folder that may be written anew


def negatives_for(
    queries: "Sequence[str] | pd.DataFrame",
    name: str | None,
    groups: Mapping[str, Mapping[str, Any] | Parameters],
    quiet: bool,
    english: bool = True,
) -> Artifact:
    """The artifact `negatives` of these queries; nothing is run where it is there.

    Raises `DatasetError` where the queries are none, or the name is that of a data set written by others, and whatever
    `penumbra run build-negatives` raises.
    """
    with tempfile.TemporaryDirectory(prefix="penumbra-") as temporary:
        folder = _named(name) if name else Path(temporary)
        files = write_queries(queries, folder)
        dataset = {"name": name or UNNAMED, "folder": str(folder), "files": files, "english": english}
        changes = {"dataset": dataset, **{group: _plain(value) for group, value in groups.items()}}
        _, _, known = prepare("build-negatives", name or UNNAMED, changes)
        how = NegativesParameters(**{group: known[group] for group in NegativesParameters.model_fields})
        with planning() as plan:
            planned = negatives_of(known["dataset"], how)
        if all(state == IS_THERE for _, state, _ in plan.rows):
            return planned.negatives
        with warnings_only() if quiet else nullcontext():
            made: Negatives = run_flow("build-negatives", name or UNNAMED, changes)
        return made.negatives


def _named(name: str) -> Path:
    folder = data_folder() / name
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise DatasetError(f"{folder} holds a data set that was not written from Python: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    return folder


def _plain(group: Mapping[str, Any] | Parameters) -> dict[str, Any]:
    return group.model_dump(mode="json", exclude_unset=True) if isinstance(group, Parameters) else dict(group)
