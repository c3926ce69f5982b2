"""What the Prefect UI is given: flat first rows, harmless markdown, keys that Prefect takes."""

import re
from collections import Counter
from typing import Any

import pytest

from penumbra.artifacts import prefect_ui
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work, rejection
from penumbra.artifacts.markdown import bold, markdown_table
from penumbra.artifacts.prefect_ui import artifact_key, first_rows, publish_stage, stage_page
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from tests.markup import HOSTILE, kinds

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


@pytest.mark.parametrize("name", ["charades-cg", "my_data.v2", "x--y", "9"])
def test_keys_are_what_prefect_takes(name: str) -> None:
    key = artifact_key("rows", name, "in_video_negatives")
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
    assert key.startswith("rows-")
    assert key.endswith("-in-video-negatives")


def test_reports_come_before_rows_and_stages() -> None:
    keys = [artifact_key(kind, "scenes", name) for name in ("quality", "annotations") for kind in ("stage", "report")]
    assert sorted(keys)[:2] == ["report-scenes-annotations", "report-scenes-quality"]


def test_bars_and_line_breaks_do_not_break_a_table() -> None:
    text = markdown_table(("a", "b"), [("x|y", "1\n2"), (3, None)])
    lines = text.splitlines()
    assert lines[1] == "| --- | --- |"
    assert len(lines) == 4
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3, 3]


def test_first_rows_cross_parts_and_stop(store: Store) -> None:
    artifact, manifest = masks(store)
    rows = first_rows(store, artifact, manifest, count=5)
    assert [row["qid"] for row in rows] == ["q0", "q1", "q2", "q6", "q7"]
    assert len(first_rows(store, artifact, manifest)) == 9


def test_cells_are_flat_and_short(store: Store) -> None:
    rows = first_rows(store, *masks(store))
    assert all(isinstance(cell, str | int | float) for row in rows for cell in row.values())
    assert rows[0]["slots"] == "1 verb VBZ öffnet", "no JSON"
    assert rows[0]["ratio"] == 0.1235
    assert len(rows[1]["masked_query"]) == prefect_ui.LONGEST_CELL
    assert rows[1]["masked_query"].endswith("…")


def test_cells_are_markdown_and_hold_no_markup_that_is_not_ours(store: Store) -> None:
    row = {"run": BAD, "split": "test", "subset": "all", "metric": "R1@0.3", "value": 50.0}
    artifact = store.build(Work("scenes", "evaluation", 1), [lambda: Part(table_of("evaluation", [row]), 1, 1)])
    [shown] = first_rows(store, artifact, store.manifest(artifact))
    assert kinds(shown["run"]).keys() <= {"text"}
    assert shown["metric"] == r"R1\@0.3", "the UI would make it a mail link"
    assert shown["value"] == 50.0
    [ours] = first_rows(store, artifact, store.manifest(artifact), shown=lambda rows: [{"it": bold(rows[0]["run"])}])
    assert "strong_open" in kinds(ours["it"])


def test_windows_are_spans_and_no_lists_of_lists(store: Store) -> None:
    row = {
        "qid": "q",
        "vid": "v",
        "split": "test",
        "query": "a",
        "duration": 9,
        "windows": [[0, 2.5], [4, 9]],
        "novel": [{"type": "v-n", "words": ["put", "cup"]}],
    }
    artifact = store.build(Work("scenes", "annotations", 1), [lambda: Part(table_of("annotations", [row]), 1, 1)])
    [shown] = first_rows(store, artifact, store.manifest(artifact))
    assert (shown["windows"], shown["novel"]) == ("0 to 2.5, 4 to 9", "v-n put, cup")


def test_a_null_is_an_empty_cell(store: Store) -> None:
    row = {"qid": "q", "vid": "v", "split": "test", "query": "a", "duration": 3, "windows": [], "novel": []}
    work = Work("scenes", "annotations", 1)
    artifact = store.build(work, [lambda: Part(table_of("annotations", [row]), 1, 1)])
    assert first_rows(store, artifact, store.manifest(artifact))[0]["saliency"] == ""


def test_parameters_are_told_by_the_names_that_users_type(store: Store) -> None:
    def page(parameters: dict[str, Any]) -> str:
        artifact = store.build(Work("scenes", "masks", 1, parameters), [lambda: Part(table_of("masks", []), 0, 0)])
        return stage_page(artifact, store.manifest(artifact))

    shown = page({"settings": {"model": {"name": "mmn", "sizes": [1, 2]}, "none": {}}})
    for told in (
        '| settings.model.name | `"mmn"` |',
        "| settings.model.sizes | `[1, 2]` |",
        "| settings.none | `{}` |",
    ):
        assert told in shown
    assert "Made with" not in page({})


def test_the_page_of_a_stage_tells_counts_reasons_and_origin(store: Store) -> None:
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
        f"`{artifact.key}`",
    ):
        assert told in page


def test_a_cost_is_told_where_something_could_be_paid(store: Store) -> None:
    _, manifest = masks(store)
    assert "cost, USD" not in stage_page(*masks(store))
    for cost, told in ((0.0, "| cost, USD | 0.0000 |"), (1.25, "| cost, USD | 1.2500 |")):
        assert told in stage_page(masks(store)[0], manifest.model_copy(update={"cost_usd": cost}))


class Shown:
    """Stands in for Prefect's two functions and keeps what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables: dict[str, Any] = {}
        self.pages: dict[str, Any] = {}
        monkeypatch.setattr(prefect_ui, "create_table_artifact", self.table)
        monkeypatch.setattr(prefect_ui, "create_markdown_artifact", self.page)

    def table(self, rows: list[dict[str, Any]], *, key: str, description: str) -> None:
        self.tables[key] = (rows, description)

    def page(self, text: str, *, key: str, description: str) -> None:
        self.pages[key] = (text, description)


def test_a_stage_is_shown_as_rows_and_a_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    artifact, manifest = masks(store, rows=30)
    publish_stage(store, artifact, manifest)
    rows, description = shown.tables["rows-scenes-masks"]
    assert len(rows) == prefect_ui.FIRST_ROWS
    assert description == f"First 50 of 90 rows. All: `{artifact.path}`"
    assert shown.pages["stage-scenes-masks"] == (stage_page(artifact, manifest), "masks: 124 in, 120 out")


def test_an_empty_stage_has_a_page_and_no_table(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    publish_stage(store, *masks(store, rows=0))
    assert shown.tables == {}
    assert list(shown.pages) == ["stage-scenes-masks"]
