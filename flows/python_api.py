"""`penumbra.build_negatives`: the flow `build-negatives` in this process, on queries of a list or a data frame."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.settings import PREFECT_API_URL

from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.store import Store
from penumbra.flows.console import SafeConsole, bars_on
from penumbra.flows.local_run import prepare, run_flow
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.data.queries import write_queries
from penumbra.tasks.negatives.parameters import Negatives
from penumbra.tasks.negatives.report import outcome_line
from penumbra.tasks.progress import bars_shown, warnings_only
from penumbra.tasks.stage import FEW_ROWS, IS_THERE, Parameters, planning

if TYPE_CHECKING:
    import pandas as pd


UNNAMED = "sentences"
MARK = ".written-from-python"  # a file in the folders of data sets that may be replaced


def negatives_for(
    queries: "Sequence[str] | pd.DataFrame", name: str | None, parameters: Mapping[str, Any], quiet: bool
) -> Negatives:
    """Return the artifacts of the queries' negatives, built if they do not exist.

    Raises `DatasetError` if there are no queries, or the name is that of a data set that was not written from Python,
    and the exceptions of `local_run.prepare`.
    """
    with tempfile.TemporaryDirectory(prefix="penumbra-") as temporary:
        folder, named = Path(temporary), name or UNNAMED
        if name:
            folder = data_folder() / name
            if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
                raise DatasetError(f"{folder} holds a data set that was not written from Python: choose another name")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MARK).touch()
        files = write_queries(queries, folder)
        changes: dict[str, Any] = {}
        for key, value in parameters.items():
            given = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Parameters) else value
            changes[key] = dict(given) if isinstance(given, Mapping) else given
        changes["dataset"] = {"name": named, "folder": str(folder), "files": files}
        flow, _, values = prepare("build-negatives", named, changes)
        with planning() as plan:
            made: Negatives = flow.fn(**values).data
        if all(state == IS_THERE for _, state, _ in plan.rows) and Store().manifest(made.negatives).kept:
            return made
        console = SafeConsole(stderr=True, markup=False, highlight=False)
        shown = bars_shown(bars_on(console)) if console.is_terminal or console.is_jupyter else nullcontext()
        with warnings_only() if quiet else nullcontext():
            if PREFECT_API_URL.value() or values["filling"].hosted or len(queries) > FEW_ROWS:
                made = run_flow("build-negatives", named, changes)
            else:
                with shown:
                    made = flow.fn(**values).data
        return made


def with_rejected(made: Negatives) -> "pd.DataFrame":
    """Return a data frame of negatives; its `attrs["rejected"]` lists what was refused, which a warning counts."""
    store = Store()
    frame = store.frame(made.negatives)
    frame.attrs["rejected"] = refused = list(store.rows(made.rejected))
    if refused:
        outcome = outcome_line(store, made).replace(" (the table `rejected` has each)", "")
        warnings.warn(f"{outcome}; attrs['rejected'] has each", stacklevel=3)
    return frame
