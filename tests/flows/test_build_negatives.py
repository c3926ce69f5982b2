"""The whole way on real Prefect: dirty data in, Parquet out, seen in the UI's API."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterName

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import USE, Store
from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.import_negatives import import_negatives
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.stage import planning
from tests.markup import published
from tests.rows import first_videos, json_lines

BEFORE = {"annotations", "tags", "dictionary", "masks", "fills", "embeddings"}
STAGES = BEFORE | {"negatives", "in_video_negatives", "rejected", "measures", "quality"}
QUERIES = 60
LIGHT = QualityConfig(sample=10, resamples=20)
FILLING = Filling(providers=["corpus", "random"], candidates=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corner of the sample, with the faults that real files have."""
    folder = first_videos(tmp_path_factory.mktemp("dirty"), train=QUERIES, test_trivial=QUERIES)
    videos = json.loads((folder / "train.json").read_text())
    videos["../escape"] = {"sentences": ["a person runs."], "timestamps": [[0, 1]], "duration": 5}
    videos["B0"] = {
        "sentences": ["  a person opens the box.", "", "of the by.", "une 🙂", "the and."],
        "timestamps": [[0.0, 9.0], [0, 1], [0, 1], [3, 2], [0, 1]],
        "duration": 5.0,
    }
    (folder / "train.json").write_text(json.dumps(videos))
    return folder


@pytest.fixture(scope="module")
def built(folder: Path, module_store: Store, prefect_server: None) -> tuple[Store, Artifact]:
    made = build_negatives(Dataset(name="dirty", folder=str(folder)), filling=FILLING, judging=LIGHT)
    return module_store, made.negatives


def test_every_stage_leaves_a_whole_artifact(built: tuple[Store, Artifact]) -> None:
    store, negatives = built
    manifests = store.find("dirty")
    assert {m.stage for m in manifests} == STAGES
    assert sum(m.stage == "fills" for m in manifests) == 2
    for manifest in manifests:
        assert store.verify(store.reference(manifest)) == []
        assert manifest.taken == manifest.kept + sum(manifest.rejected.values())
    assert store.newest("dirty", "negatives") == negatives


def test_bad_rows_are_rejected_with_their_reasons(built: tuple[Store, Artifact]) -> None:
    store, _ = built
    rows = {row["qid"]: row for row in store.table(store.newest("dirty", "rejected")).to_pylist()}
    assert rows["../escape_train_0"]["reason"] == "video id is no safe file name"
    assert rows["B0_train_1"]["reason"] == "query is empty"
    assert rows["B0_train_3"]["reason"] == "window ends before it begins"
    assert rows["B0_train_4"]["reason"] == "query has no primitive to mask"
    notes = store.manifest(store.newest("dirty", "annotations")).notes
    assert notes == {"query: blanks around the text removed": 1, "window clipped to the video's end": 1}


def test_every_query_has_one_negative_a_level_or_a_reason(built: tuple[Store, Artifact]) -> None:
    store, negatives = built
    masked = {(row["qid"], row["level"]) for row in store.table(store.newest("dirty", "masks")).to_pylist()}
    rows = store.table(negatives).to_pylist()
    chosen = {(row["qid"], row["level"]) for row in rows}
    assert len(chosen) == len(rows)
    refused = store.manifest(negatives).rejected
    assert len(masked) == len(chosen) + sum(refused.values())
    assert len(chosen) > 0.95 * len(masked)
    tests = {q["query"] for q in store.table(store.newest("dirty", "annotations")).to_pylist() if q["split"] == "test"}
    assert not {row["negative"] for row in rows} & tests


def test_the_user_interface_has_tables_pages_and_a_report(built: tuple[Store, Artifact]) -> None:
    data = published("rows-dirty-negatives", "stage-dirty-negatives", "report-dirty-build-negatives")
    store, negatives = built
    rows = json.loads(data["rows-dirty-negatives"])
    assert len(rows) == 50, "the first"
    assert list(rows[0]) == ["query", "level", "negative", "cosine", "plausibility", "provider", "qid"]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert all("**" in row["negative"] and "**" not in row["query"] for row in rows), "what was changed is marked"
    assert negatives.path in data["stage-dirty-negatives"]
    report = data["report-dirty-build-negatives"]
    assert f"{store.manifest(negatives).rows:,} negatives" in report
    assert "query has no primitive to mask" in report


def test_a_run_ends_with_a_sentence_and_its_own_report(built: tuple[Store, Artifact]) -> None:
    store, negatives = built
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(like_="-dirty-")))
        [report] = [it for it in artifacts if it.key == "report-dirty-build-negatives"]
        run = client.read_flow_run(report.flow_run_id)
    assert run.name == "build-negatives dirty"
    assert re.fullmatch(rf"{store.manifest(negatives).rows:,} negatives .*\. In {negatives.path}", run.state.message)
    own = [artifact.key for artifact in artifacts if artifact.flow_run_id == run.id and not artifact.task_run_id]
    assert sorted(own) == ["report-dirty-build-negatives", "report-dirty-quality"]


def test_the_graph_in_the_ui_is_the_dag(built: tuple[Store, Artifact]) -> None:
    """Prefect draws an edge for each parent."""
    store, _ = built
    with get_client(sync_client=True) as client:
        own = FlowRunFilter(name=FlowRunFilterName(like_="dirty"))
        runs = {run.id: run for run in client.read_task_runs(flow_run_filter=own)}
    edges = {
        (runs[source.id].name, run.name)
        for run in runs.values()
        for sources in run.task_inputs.values()
        for source in sources
        if source.input_type == "task_run"
    }
    for manifest in store.find("dirty"):
        if manifest.stage not in ("fills", "rejected"):
            for parent in {parent.stage for parent in manifest.parents} - {"fills"}:
                assert (parent, manifest.stage) in edges
    assert {("fills: corpus", "negatives"), ("fills: random", "negatives"), ("measures", "quality")} <= edges


def test_a_second_run_does_nothing(built: tuple[Store, Artifact], folder: Path) -> None:
    store, negatives = built
    before = {m.key: m.ended for m in store.find()}
    again = build_negatives(Dataset(name="dirty", folder=str(folder)), filling=FILLING, judging=LIGHT)
    assert again.negatives == negatives
    assert {m.key: m.ended for m in store.find()} == before


def test_what_others_made_becomes_the_same_table(built: tuple[Store, Artifact], folder: Path, tmp_path: Path) -> None:
    """Here the others' are this run's own, so that what its checks said is known."""
    store, negatives = built
    own = {(row["qid"], row["level"]): row for row in store.table(negatives).to_pylist()}
    rows = [{name: row[name] for name in ("qid", "level", "query", "negative")} for row in own.values()]
    strange = [{"qid": "nobody", "level": level, "negative": "a person."} for level in (2, 200, 10**400)]
    file = json_lines(tmp_path / "others.jsonl", [*rows, *strange])
    made = import_negatives(Dataset(name="dirty", folder=str(folder)), str(file), judging=LIGHT)
    found = {(row["qid"], row["level"]): row for row in store.table(made.negatives).to_pylist()}
    assert {place: row["negative"] for place, row in found.items()} == {p: row["negative"] for p, row in own.items()}
    for place, row in found.items():
        assert row["provider"] == "imported"
        assert (row["checks"], row["words"]) == (own[place]["checks"], own[place]["words"])
        for figure in ("similarity", "plausibility"):
            assert row[figure] == pytest.approx(own[place][figure], abs=1e-3)
    assert "3 rows rejected, 3 of them: no query has its qid" in made.outcome


def test_a_run_keeps_its_data_set_from_removal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[list[str]] = []

    def read(dataset: Any) -> None:
        held.append(store.files.holders(f"{USE}scenes~"))
        raise InterruptedError

    monkeypatch.setattr("penumbra.flows.build_negatives.read_annotations", read)
    for in_plan in (False, True):
        with pytest.raises(InterruptedError), planning() if in_plan else nullcontext():
            build_negatives.fn(Dataset(name="scenes"))
    assert [len(holders) for holders in held] == [1, 0], "a run holds a lease, a plan none"
    assert store.files.holders(f"{USE}scenes~") == []
