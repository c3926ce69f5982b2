"""Rows and pages for the Prefect UI: flat cells and escaped markdown."""

from collections import Counter

from penumbra.artifacts.manifest import Part, Work, rejection
from penumbra.artifacts.prefect_ui import first_rows, stage_page
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from tests.markup import HARMLESS, HOSTILE, columns, kinds
from tests.rows import build, negative

BAD = HOSTILE[:-1]  # no lone surrogate, which no table holds


def test_cells_are_escaped_unless_they_are_markdown(store: Store) -> None:
    row = {"run": BAD, "split": "test", "subset": "all", "metric": "R1@0.3", "value": 50.0}
    artifact = build(store, "evaluation", [row])
    [shown] = first_rows(store, artifact)
    assert kinds(shown["run"]).keys() <= {"text"}
    assert shown["metric"] == r"R1\@0.3", "the UI would make it a mail link"
    assert shown["value"] == 50.0
    [ours] = first_rows(store, build(store, "negatives", [negative("q", 1, f"a {BAD}")]))
    assert {"strong_open"} < kinds(ours["negative"]).keys() <= HARMLESS


def test_the_page_of_a_stage_shows_counts_reasons_parameters_and_parents(store: Store) -> None:
    tags = build(store, "tags", [])
    refused = [("r", "a bar | in it", ""), ("s", "a bar | in it", "")]
    artifact = build(store, "masks", [], (tags,), refused, {"ratios": [0.25, 0.5]})
    page = stage_page(artifact, store.manifest(artifact))
    rows = ("query: in | 2", "query: rejected | 2", r"a bar \| in it | 2", "ratios | `[0.25, 0.5]`")
    for told in (*rows, f"`mine/tags` | `{tags.key}`"):
        assert f"| {told} |" in page
    assert f"`{artifact.path}`" in page


def test_the_page_of_a_stage_escapes_reasons_names_and_parameters(store: Store) -> None:
    work = Work("scenes", "masks", 1, {"name": "`" + BAD}, inputs={BAD: "ab" * 32})
    part = Part(table_of("masks", []), 1, 0, [rejection("r", "masks", BAD)], Counter({BAD: 2}))
    artifact = store.build(work, [lambda: part])
    page = stage_page(artifact, store.manifest(artifact))
    assert kinds(page).keys() <= HARMLESS
    assert f"SHA-256 `{'ab' * 32}`" in page
    assert columns(page) == {(2,)}
    assert page.count("alert(1)") == 4
