"""What people see in the Prefect UI: for each stage a table of its first rows and a page about it, for a flow a report.

The UI takes a table's header from its first row, shows ten rows a page, and reads every cell as markdown, which must
not be indented.
"""

import json
import logging
import re
from collections.abc import Callable
from typing import Any, Self
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run, task_run

from penumbra.artifacts.document import Markdown, code, markdown_table, plain
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.schemas import for_display
from penumbra.artifacts.store import Store

FIRST_ROWS = 50
LONGEST_CELL = 160


def artifact_key(kind: str, dataset: str, name: str) -> str:
    """A Prefect artifact key: lower case, digits and dashes. The kind is first: reports come before rows and stages."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{dataset}-{name}".lower()).strip("-")


Rows = list[dict[str, Any]]


def as_they_are(rows: Rows) -> Rows:
    """Rows that need no other form for people."""
    return rows


def first_rows(
    store: Store,
    artifact: Artifact,
    manifest: Manifest,
    count: int = FIRST_ROWS,
    shown: Callable[[Rows], Rows] = as_they_are,
) -> Rows:
    """The first rows of an artifact as people read them: `shown` puts them in their stage's own form."""
    rows: Rows = []
    for index, record in enumerate(manifest.parts):
        if record.rows and len(rows) < count:
            rows += for_display(store.part(artifact, index).slice(0, count - len(rows))).to_pylist()
    return [{name: _cell(value) for name, value in row.items()} for row in shown(rows)]


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Markdown | int):
        return value
    text = in_words(value)
    return plain(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


def in_words(value: Any) -> str:
    """A value, nested or not, without the signs of programs: a list of pairs of numbers is told as spans."""
    if isinstance(value, dict):
        return " ".join(filter(None, map(in_words, value.values())))
    if isinstance(value, list):
        if len(value) == 2 and all(isinstance(one, float) for one in value):
            return f"{value[0]:g} to {value[1]:g}"
        return ", ".join(map(in_words, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def stage_page(artifact: Artifact, manifest: Manifest) -> str:
    """The page of a stage: counts, refusals by reason, time, where it lies and what it came from."""
    counts = [
        (f"{manifest.unit}: in", f"{manifest.taken:,}"),
        (f"{manifest.unit}: out", f"{manifest.kept:,}"),
        (f"{manifest.unit}: rejected", f"{manifest.taken - manifest.kept:,}"),
        ("rows", f"{manifest.rows:,}"),
        ("seconds", f"{manifest.seconds:,.1f}"),
        *([] if manifest.cost_usd is None else [("cost, USD", f"{manifest.cost_usd:.4f}")]),
        ("finished", f"{manifest.ended:%Y-%m-%d %H:%M:%S} UTC"),
        ("Parquet", code(artifact.path)),
        ("key", code(artifact.key)),
    ]
    sections = [f"# {manifest.dataset}: {manifest.stage}", markdown_table(("what", "how much"), counts)]
    if manifest.rejected:
        sections += ["## Rejected, by reason", markdown_table(("reason", "count"), manifest.rejected.items())]
    if manifest.notes:
        sections += ["## Changed, not rejected", markdown_table(("change", "count"), manifest.notes.items())]
    if manifest.parameters:
        sections += ["## Made with", markdown_table(("parameter", "value"), _flat(manifest.parameters))]
    sources: list[tuple[str, str]] = [(code(f"{p.dataset}/{p.stage}"), code(p.key)) for p in manifest.parents]
    sources += [(name, Markdown(f"SHA-256 {code(digest)}")) for name, digest in manifest.inputs.items()]
    return "\n\n".join([*sections, "## Made from", markdown_table(("what", "which"), sources)])


def _flat(parameters: dict[str, Any], group: str = "") -> list[tuple[str, str]]:
    """Names of parameters as users write them, group.name, and their values."""
    rows: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{group}{name}.")
        else:
            rows.append((f"{group}{name}", code(json.dumps(value))))
    return rows


def publish_stage(
    store: Store, artifact: Artifact, manifest: Manifest, shown: Callable[[Rows], Rows] = as_they_are
) -> None:
    """Show a stage in the UI, whether it was made now or found done; its first rows as `shown` puts them."""
    rows = first_rows(store, artifact, manifest, shown=shown)
    name = "-".join([artifact.stage, *filter(None, [manifest.parameters.get("provider")])])
    description = f"First {len(rows)} of {manifest.rows:,} rows. All: {code(artifact.path)}"
    if rows:
        create_table_artifact(rows, key=artifact_key("rows", artifact.dataset, name), description=description)
    create_markdown_artifact(
        stage_page(artifact, manifest),
        key=artifact_key("stage", artifact.dataset, name),
        description=f"{manifest.stage}: {manifest.taken:,} in, {manifest.kept:,} out",
    )


def publish_report(dataset: str, flow: str, text: str) -> None:
    """Show a report in the UI as an artifact of the flow run itself, also where a task of it writes it."""
    report = ArtifactCreate(
        type="markdown",
        key=artifact_key("report", dataset, flow),
        description=f"What {flow} made of {plain(dataset)}",
        data=text,
        flow_run_id=flow_run.get_id(),
    )
    with get_client(sync_client=True) as client:
        client.create_artifact(report)


class LiveArtifact:
    """An artifact of the UI that changes in place while work goes on, and is gone when that is over, however it ends.

    A server that can't be reached costs what it shows, not the work.
    """

    def __init__(self, kind: str, dataset: str, name: str) -> None:
        self.kind, self.key, self.name = kind, artifact_key("progress", dataset, name), name
        self._shown: UUID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._tell(lambda client: client.delete_artifact(self._shown))

    @property
    def is_shown(self) -> bool:
        """Whether anything was shown."""
        return self._shown is not None

    def show(self, data: str | float) -> None:
        """Show this from now on: the text of a page, or per cent."""
        self._tell(lambda client: self._show(client, data))

    def _show(self, client: Any, data: str | float) -> None:
        if self._shown is None:
            description, run, task = f"{self.name} goes on", flow_run.get_id(), task_run.get_id()
            self._shown = client.create_artifact(
                ArtifactCreate(
                    type=self.kind, key=self.key, description=description, data=data, flow_run_id=run, task_run_id=task
                )
            ).id
        else:
            client.update_artifact(self._shown, ArtifactUpdate(data=data))

    def _tell(self, ask: Callable[[Any], Any]) -> None:
        try:
            with get_client(sync_client=True) as client:
                ask(client)
        except (HTTPError, PrefectException, RuntimeError) as error:  # Prefect raises any of them
            logging.getLogger("penumbra").warning("%s could not be shown (%s); the work goes on", self.key, error)
