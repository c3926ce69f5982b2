"""The public functions of `import penumbra`, and the examples in their docstrings."""

import asyncio
import doctest
import sys
from pathlib import Path

import pandas as pd
import pytest

import penumbra
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.flows.registry import ParameterError
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.negatives.files import NegativesError
from tests.terminal import python

pytestmark = pytest.mark.slow

ACTIONS = ("a person opens", "a man closes", "a woman takes")
SENTENCES = [f"{action} the {noun}." for action in ACTIONS for noun in ("door", "box", "bag")]
HEAVY = {"numpy", "pandas", "prefect", "pyarrow", "spacy", "torch", "transformers"}
COLUMNS = ["qid", "level", "query", "negative", "words", "provider", "model", "similarity", "plausibility", "checks"]


def test_importing_it_imports_nothing_heavy() -> None:
    assert python(f"import penumbra, sys; print(sorted({HEAVY} & set(sys.modules)))").stdout == "[]\n"
    assert penumbra.Grounder.__name__ == "Grounder"
    with pytest.raises(AttributeError, match="has no attribute 'Grinder'"):
        penumbra.Grinder  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.skipif(sys.platform != "linux", reason="torch's threads are libgomp's on Linux alone")
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
    ids=["default", "count", "policy"],
)
def test_threads_of_torch_do_not_wait_in_busy_loops(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    done = python("import penumbra, torch", OMP_DISPLAY_ENV="VERBOSE", **given)
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr


def test_the_examples_of_the_docstrings(prefect_server: None, store: Store) -> None:
    examples = {test.name: test for test in doctest.DocTestFinder().find(penumbra)}
    runner, names = doctest.DocTestRunner(), dict[str, object]()
    for name in ("penumbra", "penumbra.build_negatives", "penumbra.read", "penumbra.quality", "penumbra.runs"):
        examples[name].globs = names  # an example goes on from those before
        assert runner.run(examples[name], clear_globs=False).failed == 0
    assert runner.tries >= 12


def test_negatives_of_a_frame_in_a_running_loop_and_again_for_nothing(
    prefect_server: None,
    store: Store,
    datasets: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    frame = pd.DataFrame({"query": SENTENCES, "vid": [f"v{number // 3}" for number in range(9)]})
    how = {"filling": {"candidates": 8}, "ratios": [0.3, 0.6, 1]}  # a group, and a parameter by its own name

    async def cell() -> pd.DataFrame:
        return penumbra.build_negatives(frame, name="mine", **how)

    negatives = asyncio.run(cell())
    assert list(negatives.columns) == COLUMNS
    assert set(negatives["level"]) == {1, 2, 3}
    assert set(negatives["query"]) <= set(SENTENCES)
    assert (negatives["negative"] != negatives["query"]).all()
    assert isinstance(negatives["words"][0], list)
    assert store.manifest(store.newest("mine", "masks")).parameters["ratios"] == [0.3, 0.6, 1.0]
    assert store.find("mine", "quality") == [], "only where it is asked for"
    assert (datasets / "mine" / "train.jsonl").is_file()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")

    monkeypatch.setattr("penumbra.flows.local_run.run_flow", lambda *_: pytest.fail("it was there"))
    again = penumbra.build_negatives(frame, name="mine", **how)
    pd.testing.assert_frame_equal(again, negatives)


def test_a_few_sentences_need_no_server_and_rejections_are_returned(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penumbra.flows.server._temporary_server", lambda: pytest.fail("a server was started"))
    with pytest.warns(UserWarning, match=r"negatives for \d of \d training queries; .*attrs\['rejected'\] lists all"):
        negatives = penumbra.build_negatives([*SENTENCES, "123"])
    rejected = {(row["reason"], row["value"]) for row in negatives.attrs["rejected"]}
    assert ("query has no letter", "row 9: 123") in rejected
    figures = penumbra.quality(negatives, resamples=0)
    assert figures.loc[("corpus", "rows"), "level 1"] == sum(negatives["level"] == 1)


def test_an_unknown_parameter_is_reported_with_the_nearest(store: Store) -> None:
    with pytest.raises(ParameterError, match=r"no parameter provider: did you mean filling\.providers\?"):
        penumbra.build_negatives(SENTENCES, provider=["corpus"])


def test_existing_data_sets_are_not_overwritten(datasets: Path) -> None:
    (datasets / "mine").mkdir()
    (datasets / "mine" / "train.jsonl").write_text("precious")
    with pytest.raises(DatasetError, match="choose another name"):
        penumbra.build_negatives(SENTENCES, name="mine")
    assert (datasets / "mine" / "train.jsonl").read_text() == "precious"


def test_missing_artifacts_and_columns_are_reported(store: Store) -> None:
    with pytest.raises(ArtifactError, match="no mine/masks below"):
        penumbra.read("mine/masks")
    assert {"run", "dataset", "key", "model", "negatives", "finished"} <= set(penumbra.runs().columns)
    with pytest.raises(NegativesError, match="the data frame lacks negative"):
        penumbra.quality(pd.DataFrame({"qid": ["1"], "level": [1], "query": ["a"]}))
