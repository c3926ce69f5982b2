"""Training and evaluation on real Prefect: metrics, predictions and figures as artifacts; what is missing and wrong."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prefect import flow

from penumbra.artifacts.locations import runs_folder
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.extract_features import extract_features
from penumbra.flows.local_run import run_flow
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.simulated import Simulation
from penumbra.tasks.features.video import Videos, features_table
from penumbra.tasks.grounding.batches.inputs import find_sources
from penumbra.tasks.grounding.configs import InputConfig, RunChoice, Training
from penumbra.tasks.grounding.evaluation.calibration import NEAR, OTHER_VIDEO
from penumbra.tasks.grounding.evaluation.figures import OTHER_QUERY, compare, predictions_of
from penumbra.tasks.grounding.evaluation.predictions import predict_model, runs_to_evaluate
from penumbra.tasks.grounding.families.detr import LossConfig, QDDETRConfig
from penumbra.tasks.grounding.metrics import EvaluationError
from penumbra.tasks.grounding.runs import CONSTANT, WITH_REJECTION, RunError, all_runs, found_run, run_folder
from penumbra.tasks.grounding.training.checkpoints import read_checkpoint
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_examples, name_of, newest_runs
from tests.cluster import free_port
from tests.grounding_data import model_of
from tests.rows import build, first_videos, negative
from tests.terminal import penumbra

CLIP = 2.0
SMALL = {"hidden": 32, "heads": 2, "feed_forward": 32, "queries": 4, "encoder_layers": 1, "input_dropout": 0.1}
TRAINING = {"epochs": 6, "learning_rate": 4e-3, "evaluate_every": 3, "validation": 0.2}
VIDEOS = 20


def put(stage: str, table: pa.Table | list[dict[str, Any]], name: str = "") -> Artifact:
    """Write a table as an artifact of the data set."""
    return build(Store(), stage, table, parameters={"encoder": name}, dataset="tiny")


def dataset(folder: Path) -> Dataset:
    return Dataset(name="tiny", folder=str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, the last of whose training videos is shorter than a clip, so that it has no features."""
    counts = dict.fromkeys(("train", "test_trivial", "novel_composition"), VIDEOS)
    folder = first_videos(tmp_path_factory.mktemp("tiny"), **counts)
    videos = json.loads((folder / "train.json").read_text())
    last = list(videos.values())[-1]
    last |= {"duration": 1.0, "timestamps": [[0, 1]] * len(last["sentences"])}
    (folder / "train.json").write_text(json.dumps(videos))
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for make in Annotations(dataset(folder)).parts() for row in make().rows.to_pylist()]


@pytest.fixture(scope="module")
def world(folder: Path, rows: list[dict[str, Any]], module_store: Store, prefect_server: None) -> Path:
    """A store with simulated features and negatives; one query has one negative only."""
    negatives = []
    for number, row in enumerate(row for row in rows if row["split"] == "train"):
        words = row["query"].strip(".").split()
        for level in (1, 2, 3) if number else (1,):
            text = " ".join(words[:-level] + [f"other{n}" for n in range(level)]) + "."
            negatives.append(negative(row["qid"], level, text, row["query"]))
    put("negatives", negatives)
    clips, easy = Videos(clip_length=CLIP), Simulation(difficulty="easy")
    extract_features(dataset(folder), Clip(encoder="tiny-clip"), videos=clips, simulation=easy)
    return folder


def train(folder: Path, shine: bool = True, inputs: dict[str, Any] | None = None, **training: Any) -> Artifact:
    model = QDDETRConfig(**model_of(**SMALL), losses=LossConfig(shine=shine))
    found: Artifact = train_grounding(
        dataset(folder), None, model, Training(**{**TRAINING, **training}), InputConfig(**inputs or {})
    )
    return found


@pytest.fixture(scope="module")
def trained(world: Path) -> Artifact:
    return train(world)


@pytest.fixture(scope="module")
def evaluated(world: Path, trained: Artifact) -> Artifact:
    return evaluate_grounding(dataset(world))


def figures_of(evaluation: Artifact) -> dict[tuple[str, str, str], float]:
    """Return an evaluation's values by split, subset and metric."""
    rows = Store().table(evaluation).to_pylist()
    return {(row["split"], row["subset"], row["metric"]): row["value"] for row in rows}


def test_a_run_is_a_table_of_losses_and_figures_that_learns(trained: Artifact, rows: list[dict[str, Any]]) -> None:
    table = Store().table(trained).to_pylist()
    losses = [row["value"] for row in table if row["name"] == "total"]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    figures = {row["epoch"]: row["value"] for row in table if row["name"] == "mIoU"}
    assert set(figures) == {3, 6}
    assert {row["run"] for row in table} == {f"qd_detr+shine-{trained.key[:6]}"}
    manifest = Store().manifest(trained)
    assert "seconds" not in {row["name"] for row in table}, "the same training gives the same bytes"
    assert manifest.measured["seconds"] > 0
    vids = [row["vid"] for row in rows if row["split"] == "train"]
    assert manifest.rejected == {"no features of its video": vids.count(vids[-1])}
    assert manifest.notes == {"query with 1 of 3 hard negatives": 1}
    parents = {"annotations", "negatives", "text_features", "video_features"}
    assert {parent.stage for parent in manifest.parents} == parents
    assert (run_folder(trained) / "best.json").is_file()
    assert run_folder(trained).is_relative_to(runs_folder())


def test_predictions_are_of_every_query_with_features(evaluated: Artifact, rows: list[dict[str, Any]]) -> None:
    predictions = next(p for p in Store().manifest(evaluated).parents if p.stage == "predictions")
    found = Store().table(predictions).to_pylist()
    assert {row["qid"] for row in found} == {row["qid"] for row in rows if row["split"] != "train"}
    videos, by_qid = read_features(Store().newest("tiny", "video_features")), {row["qid"]: row for row in rows}
    for row in found:
        assert len(row["windows"]) == SMALL["queries"]
        assert len(row["saliency"]) == len(videos[by_qid[row["qid"]]["vid"]])
        scores = [window["score"] for window in row["windows"]]
        assert scores == sorted(scores, reverse=True)
        assert all(window["start"] % CLIP == 0 for window in row["windows"])


def test_figures_are_by_split_and_composition_type(evaluated: Artifact, rows: list[dict[str, Any]]) -> None:
    values = figures_of(evaluated)
    labels = [{label["type"] for label in row["novel"]} for row in rows if row["split"] == "composition"]
    types = set().union(*labels)
    others = {"all", CONSTANT, OTHER_QUERY, OTHER_VIDEO, NEAR}
    assert {subset for split, subset, _ in values if split == "composition"} == types | others
    counts = {kind: sum(kind in found for found in labels) for kind in types}
    assert {kind: values["composition", kind, "queries"] for kind in types} == counts
    assert 0 < values["test", "all", "mIoU"] <= 100
    assert values["test", "all", "R1@0.3"] >= values["test", "all", "R1@0.5"] >= values["test", "all", "R1@0.7"]
    assert values["test", "all", "R5@0.5"] >= values["test", "all", "R1@0.5"]
    assert 0 <= values["train", "held out", "ordering"] <= 100


def test_a_run_is_compared_with_baselines(evaluated: Artifact, rows: list[dict[str, Any]]) -> None:
    values = figures_of(evaluated)
    for split in ("test", "composition"):
        for subset in (CONSTANT, OTHER_QUERY):
            assert values[split, subset, "queries"] == sum(row["split"] == split for row in rows)
            assert values[split, "all", "mIoU"] != values[split, subset, "mIoU"] > 0
    [run] = all_runs("tiny")
    assert run.figures["test"]["mIoU"] == values["test", "all", "mIoU"]


def test_a_run_is_asked_false_sentences(world: Path, evaluated: Artifact, rows: list[dict[str, Any]]) -> None:
    values = figures_of(evaluated)
    for split in ("test", "composition"):
        assert 0 < values[split, OTHER_VIDEO, "AUROC"] < 100
        assert values[split, OTHER_VIDEO, "sentences"] == sum(row["split"] == split for row in rows)
        assert 0 <= values[split, NEAR, "group score"] <= 100
        assert 0 <= values[split, "all", WITH_REJECTION] <= values[split, "all", "rejection accuracy"] <= 100
    text = Store().table(Store().newest("tiny", "negatives"))["negative"][0].as_py()
    false = [negative(row["qid"], 1, text, row["query"]) for row in rows if row["split"] == "test"]
    build(Store(), "judging_negatives", false, (Store().newest("tiny", "annotations"),), dataset="tiny")
    again = evaluate_grounding(dataset(world))
    levels = {metric: value for (_, subset, metric), value in figures_of(again).items() if "level 1" in subset}
    assert levels["sentences"] == len(false)
    assert {"AUROC", "rejected"} <= levels.keys()
    assert "level 1 by corpus" in penumbra("artifacts", "show", f"tiny/evaluation/{again.key}").output
    assert Store().newest("tiny", "negatives").stage == "negatives", "no training reads them"


def test_named_artifacts_are_read_and_a_training_is_never_done_twice(world: Path, trained: Artifact) -> None:
    """The newest artifacts are others; the key is that of the same artifacts found as the newest."""
    before = (run_folder(trained) / "last.json").stat().st_mtime_ns
    parents = {parent.stage: parent for parent in Store().manifest(trained).parents}
    stages = ("negatives", "text_features", "video_features")
    others = [put(stage, Store().table(parents[stage]), "a copy") for stage in stages]
    inputs: dict[str, Any] = {"negatives": parents["negatives"].key, "text_features": parents["text_features"].key[:8]}
    try:
        assert train(world, inputs=inputs | {"video_features": (parents["video_features"].key,)}) == trained
        assert (run_folder(trained) / "last.json").stat().st_mtime_ns == before
        with pytest.raises(ArtifactError, match="no tiny/negatives matches 'beef'; there are: tiny/negatives/"):
            train(world, inputs=inputs | {"negatives": "beef"})
    finally:
        for other in others:
            shutil.rmtree(other.path)


def test_runs_are_compared_and_what_is_missing_is_named(world: Path, trained: Artifact, evaluated: Artifact) -> None:
    other = train(world, shine=False, epochs=1)
    remedy = r"has no predictions: penumbra run evaluate-grounding tiny --param choice.run=qd_detr-"
    with pytest.raises(EvaluationError, match=remedy):
        compare("tiny", trained.key, other.key)
    third = train(world, shine=False, epochs=2)
    evaluate_grounding(dataset(world))
    assert all(predictions_of(run) for run in (other, third)), "every run without predictions is evaluated"
    assert newest_runs("tiny", 2) == [name_of(Store().manifest(run)) for run in (other, third)]
    differences = compare("tiny", other.key, trained.key)
    for of in ("test", "composition"):
        metrics = {metric for split, metric, _ in differences if split == of}
        assert {"R1@0.5", "R1@0.7", "mIoU", "mAP", WITH_REJECTION, "calibration error"} <= metrics
        assert {f"AUROC, {OTHER_VIDEO}", f"group score, {NEAR}"} <= metrics
    assert all(by.low <= by.mean <= by.high for _, _, by in differences)
    output = penumbra("compare", "tiny", other.key, trained.key).output
    assert "with fewer than 20 videos" not in output
    for run in (found_run(other.key), found_run(trained.key)):
        assert (f"note: {run.run}: mIoU on " in output) == bool(run.below)
    with pytest.raises(ArtifactError, match=r"no run is called 'nothing'; there are: \w+_detr"):
        evaluate_grounding(dataset(world), RunChoice(run="nothing"))
    with pytest.raises(EvaluationError, match="no split word; there is: train, test, composition"):
        evaluate_grounding(dataset(world), RunChoice(run=trained.key, splits=("word",)))
    shutil.rmtree(run_folder(other))
    with pytest.raises(RunError, match=r"checkpoints of .* are not in"):
        evaluate_grounding(dataset(world), RunChoice(run=other.key))


def test_features_of_another_width_are_refused(world: Path, trained: Artifact) -> None:
    videos = Store().frame(Store().newest("tiny", "video_features"))
    narrow = [(row.vid, row.duration, row.features[:, :8]) for row in videos.itertuples()]
    other = put("video_features", features_table("narrow", CLIP, narrow, 8), "narrow")
    annotations = next(p for p in Store().manifest(trained).parents if p.stage == "annotations")
    sources = find_sources(annotations, Settings(inputs=InputConfig(video_features=("narrow",))))
    assert sources.video_features == (other,)
    with pytest.raises(
        FeatureError, match=r"trained on features with 256 \(video\) and 128 \(text\) channels, found 8"
    ):
        flow(predict_model)(trained, sources, None, ())
    with pytest.raises(FeatureError, match="of encoder 'unknown'"):
        find_sources(annotations, Settings(inputs=InputConfig(video_features=("unknown",))))


def test_a_damaged_run_is_not_passed_over(world: Path, trained: Artifact) -> None:
    manifest = Path(trained.path) / "_manifest.json"
    before = manifest.read_bytes()
    try:
        manifest.write_bytes(before[:-9])
        with pytest.raises(ArtifactError, match=trained.key):
            runs_to_evaluate("tiny", RunChoice())
    finally:
        manifest.write_bytes(before)


@pytest.mark.parametrize(("known", "refused"), [(0, True), (300, False)])
def test_negatives_newer_than_the_features_are_refused(
    world: Path, trained: Artifact, known: int, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    newest = Store().newest("tiny", "negatives")
    rows = [{**row, "words": []} for row in Store().rows(newest)]
    changed = [{**row, "negative": f"{row['negative']} anew"} if at >= known else row for at, row in enumerate(rows)]
    newer = put("negatives", changed, f"newer {known}")
    try:
        settings = Settings(model=QDDETRConfig(losses=LossConfig(shine=True)))
        annotations = next(p for p in Store().manifest(trained).parents if p.stage == "annotations")
        sources = find_sources(annotations, settings)
        assert sources.negatives == newer
        missing = rf"{len(rows) - known} of {len(rows)} negatives in {newer.path} have no text features: penumbra run"
        with pytest.raises(RunError, match=missing) if refused else nullcontext():
            flow(load_examples)(sources, settings)
        assert refused or re.search(missing, caplog.text)
    finally:
        shutil.rmtree(newer.path)


@pytest.mark.long
def test_two_processes_of_a_launcher_make_one_artifact(world: Path, tmp_path: Path) -> None:
    model = model_of(**{**SMALL, "name": "moment_detr", "dropout": 0.0, "input_dropout": 0.0, "pair_hinge": False})
    chosen = Settings.model_validate({"model": model}).model.model_dump(mode="json", exclude_unset=True)
    training = {"epochs": 1, "validation": 0.2, "seed": 31, "batch_size": 256}
    config = {"dataset": {"folder": str(world)}, "model": chosen, "training": training}
    (tmp_path / "run.json").write_text(json.dumps(config))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command = ["-m", "penumbra", "run", "train-grounding", "tiny", "--config", str(tmp_path / "run.json")]
    command = [sys.executable, *launch, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    [made] = [it for it in Store().find("tiny", "metrics") if it.parameters["settings"]["training"]["seed"] == 31]
    together = read_checkpoint(run_folder(Store().reference(made)), "last")
    assert together.state["processes"] == 2
    shutil.rmtree(Store().reference(made).path)
    with pytest.raises(RunError, match="begun with 2 processes"):
        run_flow("train-grounding", "tiny", config)
    shutil.rmtree(run_folder(Store().reference(made)))
    alone = Store().table(run_flow("train-grounding", "tiny", config)).to_pylist()
    every = [*together.state["history"], *alone]
    norms = [row["value"] for row in every if row["name"] == "gradient_norm"]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
