"""What people see in the Prefect UI: for each stage a table of its first rows and a page about it, for a flow a report.

The UI takes a table's header from its first row and shows ten rows a page; its markdown must not be indented.
"""

import json
import re
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.markdown import Markdown, code, markdown_table
from penumbra.artifacts.schemas import shortened
from penumbra.artifacts.store import Store

FIRST_ROWS = 50
LONGEST_CELL = 160


def stage_key(dataset: str, stage: str, kind: str) -> str:
    """A Prefect artifact key: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{dataset}-{stage}-{kind}".lower()).strip("-")


def first_rows(store: Store, artifact: Artifact, manifest: Manifest, count: int = FIRST_ROWS) -> list[dict[str, Any]]:
    """The first rows of an artifact, nested values as compact JSON."""
    rows: list[dict[str, Any]] = []
    for index, record in enumerate(manifest.parts):
        if record.rows and len(rows) < count:
            rows += shortened(store.part(artifact, index).slice(0, count - len(rows))).to_pylist()
    return [{name: _cell(value) for name, value in row.items()} for row in rows]


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, str) and len(value) > LONGEST_CELL:
        return value[: LONGEST_CELL - 1] + "…"
    return "" if value is None else value


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


def publish_stage(store: Store, artifact: Artifact, manifest: Manifest) -> None:
    """Show a stage in the UI, whether it was made now or found done."""
    rows = first_rows(store, artifact, manifest)
    name = "-".join([artifact.stage, *filter(None, [manifest.parameters.get("provider")])])
    description = f"First {len(rows)} of {manifest.rows:,} rows. All: {code(artifact.path)}"
    if rows:
        create_table_artifact(rows, key=stage_key(artifact.dataset, name, "rows"), description=description)
    create_markdown_artifact(
        stage_page(artifact, manifest),
        key=stage_key(artifact.dataset, name, "stage"),
        description=f"{manifest.stage}: {manifest.taken:,} in, {manifest.kept:,} out",
    )


def publish_report(dataset: str, flow: str, text: str) -> None:
    """Show a flow's report in the UI."""
    create_markdown_artifact(text, key=stage_key(dataset, flow, "report"), description=f"What {flow} made of {dataset}")


class LiveReport:
    """A flow's report that changes in place while the flow runs."""

    def __init__(self, dataset: str, flow: str) -> None:
        self.dataset, self.flow = dataset, flow
        self._shown: UUID | None = None

    def show(self, text: str) -> None:
        """Show this from now on."""
        if self._shown is None:
            self._shown = create_markdown_artifact(
                text,
                key=stage_key(self.dataset, self.flow, "report"),
                description=f"{self.flow} {self.dataset} goes on",
            )  # type: ignore[assignment]
        else:
            get_client(sync_client=True).update_artifact(self._shown, ArtifactUpdate(data=text))
