"""The pages that flows publish, over data of enemies: no query, id, reason, model or error of theirs is markup."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.features.extraction import write_report as features_page
from penumbra.tasks.features.video import features_table
from penumbra.tasks.grounding.ablation import Results, grids
from penumbra.tasks.negatives.parameters import Negatives
from penumbra.tasks.negatives.quality.page import write_page as quality_page
from penumbra.tasks.negatives.report import advice_for_few, outcome_line
from penumbra.tasks.negatives.report import write_report as run_page
from tests import rows
from tests.markup import HARMLESS, HOSTILE, columns, kinds
from tests.rows import annotation, filled, negative

BAD = HOSTILE[:-1]  # no lone surrogate, which no table holds
ALLOWED = HARMLESS | {"image"}  # the charts
build = partial(rows.build, rejected=[(BAD, BAD, BAD)], dataset="scenes", cut=0)


def safe(page: str) -> bool:
    assert "alert" in page
    assert kinds(page).keys() <= ALLOWED
    assert all(len(table) == 1 for table in columns(page))
    fetched = [line for line in page.splitlines() if line.startswith("![") and "](data:image/" not in line]
    return not fetched


def test_features(store: Store) -> None:
    annotations = build(store, "annotations", [annotation(BAD, BAD, vid=BAD)])
    texts = build(store, "text_features", [])
    vectors = [("v", 4.0, np.zeros((4, 2), np.float16))]
    videos = build(store, "video_features", features_table("clip", 1.0, vectors, 2), parameters={"clip_length": 1.0})
    assert safe(features_page(store, annotations, texts, videos)[1])


@pytest.fixture
def made(store: Store) -> Negatives:
    levels = [{"qid": BAD, "level": level} for level in (1, 2, 3)]
    texts = {"words": [BAD], "provider": BAD, "model": BAD}
    chosen = [negative(BAD, level, BAD, BAD, **texts) for level in (1, 2, 3)]
    failed = filled(BAD, 1, None, BAD) | {"model": BAD, "problem": BAD}
    masks = [{**row, "ratio": 0.25, "masked_query": f"{BAD} <mask>", "slots": []} for row in levels]
    return Negatives(
        build(store, "annotations", [annotation(BAD, BAD, vid=BAD)]),
        build(store, "tags", [{"qid": BAD, "tokens": []}]),
        build(store, "dictionary", []),
        build(store, "masks", masks),
        (build(store, "fills", [failed], parameters={"provider": BAD}),),
        build(store, "tags", [], parameters={"other": 1}),
        build(store, "negatives", chosen),
        build(store, "in_video_negatives", []),
        build(store, "rejected", []),
        None,
    )


def test_negatives(store: Store, made: Negatives) -> None:
    page = run_page(Store(), made, outcome_line(store, made))
    assert safe(page)
    assert page.count("alert") > 5
    assert safe(run_page(Store(), replace(made, masks=None, fills=()), BAD))


@pytest.mark.parametrize(("order", "other"), [(None, "[noun,adjective"), (["noun", "verb"], "[verb,noun")])
def test_parameters_that_fill_more_are_named_where_llama_fills_few(
    store: Store, made: Negatives, order: list[str] | None, other: str
) -> None:
    masks = [{"qid": qid, "level": 1, "ratio": 0.25, "masked_query": "", "slots": []} for qid in "abc"]
    few = replace(
        made,
        masks=build(store, "masks", masks, parameters={"primitives": order}),
        fills=(build(store, "fills", [], parameters={"provider": "llama"}),),
    )
    advice = advice_for_few(store, few)
    assert advice.startswith("2 of 3 queries have no negative")
    assert f"masking.primitives={other}" in advice
    assert not advice_for_few(store, made), "it has another provider"
    enough = [negative(qid, 1, "a negative") for qid in "ab"]
    assert not advice_for_few(store, replace(few, negatives=build(store, "negatives", enough, parameters={"of": 2})))


def test_quality(store: Store) -> None:
    figures = [
        {"level": level, "provider": BAD, "metric": metric, "value": 0.5}
        for level in (0, 1)
        for metric in ("rows", "blind_auc", f"refused: {BAD}", f"held_out.{BAD}", "yield")
    ]
    part = Part(table_of("quality", figures), len(figures), len(figures), notes=Counter([BAD]))
    assert safe(quality_page(store, store.build(Work("scenes", "quality", 1), [lambda: part])))


def test_an_ablation_s_failures() -> None:
    results = Results(grids()["losses"], seeds=1, failures={BAD: BAD})
    assert safe(results.table())
