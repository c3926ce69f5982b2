"""Rows and pages for the Prefect UI: flat cells and escaped markdown."""

from collections import Counter

import pytest

from penumbra.artifacts import prefect_ui
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work, rejection
from penumbra.artifacts.prefect_ui import first_rows, publish_stage, stage_page
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from tests.markup import HARMLESS, HOSTILE, columns, kinds
from tests.rows import build, negative

BAD = HOSTILE[:-1]  # no lone surrogate, which no table holds


def masks(store: Store, rows: int) -> tuple[Artifact, Manifest]:
    """A masks artifact with refusals, parameters and a parent."""
    row = {"level": 1, "ratio": 0.25, "masked_query": "a | b", "slots": []}
    tags = build(store, "tags", [])
    refused = [("r", "a bar | in it", ""), ("s", "a bar | in it", "")]
    every = [{"qid": f"q{index}", **row} for index in range(rows)]
    artifact = build(store, "masks", every, (tags,), refused, {"ratios": [0.25, 0.5]})
    return artifact, store.manifest(artifact)


def test_cells_are_escaped_unless_they_are_markdown(store: Store) -> None:
    row = {"run": BAD, "split": "test", "subset": "all", "metric": "R1@0.3", "value": 50.0}
    artifact = build(store, "evaluation", [row])
    [shown] = first_rows(store, artifact)
    assert kinds(shown["run"]).keys() <= {"text"}
    assert shown["metric"] == r"R1\@0.3", "the UI would make it a mail link"
    assert shown["value"] == 50.0
    [ours] = first_rows(store, build(store, "negatives", [negative("q", 1, f"a {BAD}")]))
    assert {"strong_open"} < kinds(ours["negative"]).keys() <= HARMLESS


def test_the_rows_and_the_page_of_a_stage_are_published(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, str] = {}
    for name in ("create_table_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(prefect_ui, name, lambda _, key, description: published.update({key: description}))
    artifact, manifest = masks(store, rows=90)
    publish_stage(store, artifact, manifest)
    shown = f"First 50 of 90 rows. All: `{artifact.path}`"
    assert published == {"rows-mine-masks": shown, "stage-mine-masks": "masks: 92 in, 90 out"}


def test_the_page_of_a_stage_escapes_reasons_names_and_parameters(store: Store) -> None:
    work = Work("scenes", "masks", 1, {"name": "`" + BAD}, inputs={BAD: "ab" * 32})
    part = Part(table_of("masks", []), 1, 0, [rejection("r", "masks", BAD)], Counter({BAD: 2}))
    artifact = store.build(work, [lambda: part])
    page = stage_page(artifact, store.manifest(artifact))
    assert kinds(page).keys() <= HARMLESS
    assert f"SHA-256 `{'ab' * 32}`" in page
    assert columns(page) == {(2,)}
    assert page.count("alert(1)") == 4


def test_the_page_of_a_stage_shows_counts_reasons_and_parents(store: Store) -> None:
    artifact, manifest = masks(store, rows=9)
    page = stage_page(artifact, manifest)
    assert page.startswith("# mine: masks\n")
    assert not [line for line in page.splitlines() if line.startswith((" ", "\t"))], "indented text is shown as code"
    for told in (
        "| query: in | 11 |",
        "| query: out | 9 |",
        "| query: rejected | 2 |",
        "| rows | 9 |",
        "| a bar \\| in it | 2 |",
        "| ratios | `[0.25, 0.5]` |",
        f"| `mine/tags` | `{manifest.parents[0].key}` |",
        f"`{artifact.path}`",
    ):
        assert told in page
