"""Rows and pages for the Prefect UI: flat cells and escaped markdown."""

from collections import Counter
from typing import Any

import pytest

from penumbra.artifacts import prefect_ui
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work, rejection
from penumbra.artifacts.markdown import bold
from penumbra.artifacts.prefect_ui import first_rows, publish_stage, stage_page
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from tests.markup import HARMLESS, HOSTILE, columns, kinds

BAD = HOSTILE[:-1]  # no lone surrogate, which no table holds


def mask_row(index: int) -> dict[str, Any]:
    slots = [{"token": 1, "primitive": "verb", "tag": "VBZ", "word": "öffnet"}]
    query = "long " * 80 if index == 1 else "a | b"
    return {"qid": f"q{index}", "level": 1, "ratio": 0.123456789, "masked_query": query, "slots": slots}


def masks(store: Store, rows: int = 3, parts: int = 4) -> tuple[Artifact, Manifest]:
    """A masks artifact, its second part empty, with refusals, notes and a parent."""
    parent = Artifact(root=store.root, dataset="scenes", stage="tags", key="f" * 16)
    work = Work("scenes", "masks", 1, {"ratios": [0.25, 0.5]}, (parent,), {"train.json": "ab" * 32})
    made = [
        Part(
            table_of("masks", [mask_row(index * rows + i) for i in range(0 if index == 1 else rows)]),
            rows + 1,
            rows,
            [rejection("r", "masks", "a bar | in it")],
            Counter({"changed": 2}),
        )
        for index in range(parts)
    ]
    artifact = store.build(work, [lambda part=part: part for part in made])  # type: ignore[misc]
    return artifact, store.manifest(artifact)


def test_cells_are_escaped_unless_they_are_markdown(store: Store) -> None:
    row = {"run": BAD, "split": "test", "subset": "all", "metric": "R1@0.3", "value": 50.0}
    artifact = store.build(Work("scenes", "evaluation", 1), [lambda: Part(table_of("evaluation", [row]), 1, 1)])
    [shown] = first_rows(store, artifact)
    assert kinds(shown["run"]).keys() <= {"text"}
    assert shown["metric"] == r"R1\@0.3", "the UI would make it a mail link"
    assert shown["value"] == 50.0
    [ours] = first_rows(store, artifact, shown=lambda rows: [{"it": bold(rows[0]["run"])}])
    assert "strong_open" in kinds(ours["it"])


def test_the_rows_and_the_page_of_a_stage_are_published(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, str] = {}
    for name in ("create_table_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(prefect_ui, name, lambda _, key, description: published.update({key: description}))
    artifact, manifest = masks(store, rows=30)
    publish_stage(store, artifact, manifest)
    assert published == {
        "rows-scenes-masks": f"First 50 of 90 rows. All: `{artifact.path}`",
        "stage-scenes-masks": "masks: 124 in, 120 out",
    }


def test_the_page_of_a_stage_escapes_reasons_names_and_parameters(store: Store) -> None:
    work = Work("scenes", "masks", 1, {"name": "`" + BAD}, inputs={BAD: "ab" * 32})
    part = Part(table_of("masks", []), 1, 0, [rejection("r", "masks", BAD)], Counter({BAD: 2}))
    artifact = store.build(work, [lambda: part])
    page = stage_page(artifact, store.manifest(artifact))
    assert kinds(page).keys() <= HARMLESS
    assert columns(page) == {(2,)}
    assert page.count("alert(1)") == 4


def test_the_page_of_a_stage_shows_counts_reasons_and_parents(store: Store) -> None:
    artifact, manifest = masks(store)
    page = stage_page(artifact, manifest)
    assert page.startswith("# scenes: masks\n")
    assert not [line for line in page.splitlines() if line.startswith((" ", "\t"))], "indented text is shown as code"
    for told in (
        "| query: in | 16 |",
        "| query: out | 12 |",
        "| query: rejected | 4 |",
        "| rows | 9 |",
        "| a bar \\| in it | 4 |",
        "| changed | 8 |",
        "| ratios | `[0.25, 0.5]` |",
        "| `scenes/tags` | `ffffffffffffffff` |",
        f"| train.json | SHA-256 `{'ab' * 32}` |",
        f"`{artifact.path}`",
    ):
        assert told in page
