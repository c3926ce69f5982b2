"""The control of nearest queries, on real sentences: real ones, apart from the query's own, further at each level."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.checks import normal_form
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.sentence_negatives import TOO_FEW, Candidates, NearestNegatives
from penumbra.tasks.stage import build
from tests.tasks.negatives.sentence_negatives.corner import corner, described

RANKS = (1, 5, 20)
COSINES = np.array([0.95, 0.9, 0.8, 0.8, 0.7, 0.6], np.float32)
AMONG = Candidates(list("abcdef"), ["own", "video", "c", "d", "e", "c"], np.zeros((6, 1), np.float32))


@pytest.mark.parametrize(
    ("ranks", "forbidden", "taken"),
    [
        ((1, 2, 3), {"video"}, ["c", "e"]),  # d is no further than c, f says what c says, and nothing is left
        ((1, 2, 4), set(), ["b", "c", "e"]),
        ((2, 3, 4), {"video"}, ["d", "e"]),
        ((9, 10, 11), set(), []),
    ],
)
def test_paraphrases_what_is_forbidden_and_what_says_the_same_have_no_rank(
    ranks: tuple[int, int, int], forbidden: set[str], taken: list[str]
) -> None:
    assert AMONG.ranked(COSINES, forbidden, 0.9, ranks) == taken


def test_ranks_rise() -> None:
    with pytest.raises(ValueError, match="must rise"):
        NegativeSource(ranks=(1, 1, 3))


def test_every_real_query_has_three_other_real_ones(shared: Path, store: Store, tmp_path: Path) -> None:
    make = described(corner(shared / "data/charades-cg", tmp_path))
    stage = make(NearestNegatives, NegativeSource(source="nearest", ranks=RANKS))
    made = build(stage)
    assert len(store.manifest(made).parts) == len(store.manifest(stage.annotations).parts) > 2
    queries = {row["qid"]: row for row in store.table(stage.annotations).to_pylist()}
    training = {row["query"] for row in queries.values() if row["split"] == "train"}
    tests = {normal_form(row["query"]) for row in queries.values() if row["split"] != "train"}
    tests -= {normal_form(text) for text in training}
    said: defaultdict[str, set[str]] = defaultdict(set)
    for row in queries.values():
        said[row["vid"]].add(stage.chooser.leakage.lemmatised(row["query"]))
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in store.table(made).to_pylist():
        found[row["qid"]].append(row)
    assert found.keys() == {qid for qid, row in queries.items() if row["split"] == "train"}
    for qid, rows in found.items():
        assert [row["level"] for row in rows] == [1, 2, 3]
        assert {row["negative"] for row in rows} <= training
        assert not {normal_form(row["negative"]) for row in rows} & tests
        assert not {stage.chooser.leakage.lemmatised(row["negative"]) for row in rows} & said[queries[qid]["vid"]]
        nearness = [row["similarity"] for row in rows]
        assert 0.9 >= nearness[0] > nearness[1] > nearness[2]
        assert all({"same_video", "test_split", "ceiling", "falling"} <= set(row["checks"]) for row in rows)
    assert {row["provider"] for row in store.table(made).to_pylist()} == {"nearest"}


def test_a_level_that_nobody_is_far_enough_for_is_rejected(shared: Path, store: Store, tmp_path: Path) -> None:
    stage = described(corner(shared / "data/charades-cg", tmp_path))(
        NearestNegatives, NegativeSource(source="nearest", ranks=(1, 2, 9_999))
    )
    manifest = store.manifest(build(stage))
    assert manifest.rejected == {TOO_FEW: manifest.taken // 3}
    assert set(store.table(store.reference(manifest))["level"].to_pylist()) == {1, 2}
