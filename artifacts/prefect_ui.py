"""Artifacts in the Prefect UI: the first rows and a page of each stage, a report of each flow, and progress.

The UI takes a table's header from its first row, shows ten rows a page, and reads every cell as markdown, which must
not be indented. Nothing is published to the temporary server of a run, which has no pages.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

from penumbra.artifacts.display import Row, rows_for_display
from penumbra.artifacts.manifest import Artifact, Manifest, flat
from penumbra.artifacts.markdown import Markdown, cell_text, code, counted, markdown_table, plain
from penumbra.artifacts.store import Store

FIRST_ROWS = 50


def has_pages() -> bool:
    """Return whether the server has pages; a run's temporary server has none and an empty PREFECT_UI_URL."""
    return not PREFECT_API_URL.value() or bool(PREFECT_UI_URL.value())


def artifact_key(kind: str, dataset: str, name: str) -> str:
    """Return a Prefect artifact key: lower case, digits and dashes. The UI sorts by it, so the kind comes first."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{dataset}-{name}".lower()).strip("-")


def first_rows(store: Store, artifact: Artifact) -> list[Row]:
    """Return the first rows of an artifact with escaped cells."""
    return [{name: _cell(it) for name, it in row.items()} for row in rows_for_display(store, artifact, FIRST_ROWS)]


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return value if isinstance(value, Markdown | int) else plain(cell_text(value))


def stage_page(artifact: Artifact, manifest: Manifest) -> str:
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
    sections = [f"# {manifest.dataset}: {manifest.stage}", markdown_table(("figure", "value"), counts)]
    parameters = {name: code(json.dumps(value)) for name, value in flat(manifest.parameters)}
    for title, header, rows in (
        ("Rejected, by reason", ("reason", "count"), manifest.rejected),
        ("Counted, not rejected", ("what", "count"), manifest.notes),
        ("Made with", ("parameter", "value"), parameters),
    ):
        sections += [f"## {title}", markdown_table(header, rows.items())] if rows else []
    sources: list[tuple[str, str]] = [(code(f"{p.dataset}/{p.stage}"), code(p.key)) for p in manifest.parents]
    sources += [(name, Markdown(f"SHA-256 {code(digest)}")) for name, digest in manifest.inputs.items()]
    return "\n\n".join([*sections, "## Made from", markdown_table(("input", "key or digest"), sources)])


def publish_stage(store: Store, artifact: Artifact, manifest: Manifest) -> None:
    """Publish the first rows and the page of a stage, whether it was made now or before."""
    rows = first_rows(store, artifact)
    name = "-".join([artifact.stage, *filter(None, [manifest.parameters.get("provider")])])
    if rows:
        description = f"First {len(rows)} of {counted(manifest.rows, 'row')}. All: {code(artifact.path)}"
        create_table_artifact(rows, key=artifact_key("rows", artifact.dataset, name), description=description)
    create_markdown_artifact(
        stage_page(artifact, manifest),
        key=artifact_key("stage", artifact.dataset, name),
        description=f"{manifest.stage}: {manifest.taken:,} in, {manifest.kept:,} out",
    )


def publish_report(dataset: str, flow: str, text: str) -> None:
    """Publish a report as an artifact of the flow run, even if one of its tasks calls this."""
    if not has_pages():
        return
    report = ArtifactCreate(
        type="markdown",
        key=artifact_key("report", dataset, flow),
        description=f"Report of {flow} on {plain(dataset)}",
        data=text,
        flow_run_id=flow_run.get_id(),
    )
    with get_client(sync_client=True) as client:
        client.create_artifact(report)


@contextmanager
def live_page(dataset: str, name: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows or updates a page of the UI, if the server has pages; at the end, delete the page."""
    key, made = artifact_key("progress", dataset, name), list[UUID]()

    def call(request: Callable[[SyncPrefectClient], Any]) -> None:
        try:
            with get_client(sync_client=True) as client:
                request(client)
        except (HTTPError, PrefectException, RuntimeError) as error:  # Prefect raises any of them
            logging.getLogger("penumbra").warning("%s could not be shown (%s); the work continues", key, error)

    def show(data: str) -> None:
        if made:
            call(lambda client: client.update_artifact(made[0], ArtifactUpdate(data=data)))
        elif has_pages():
            runs = {"flow_run_id": flow_run.get_id(), "task_run_id": task_run.get_id()}
            new = ArtifactCreate(type="markdown", key=key, description=f"{name} is in progress", data=data, **runs)
            call(lambda client: made.append(client.create_artifact(new).id))

    try:
        yield show
    finally:
        if made:
            call(lambda client: client.delete_artifact(made[0]))
