"""From videos to a trained run, its report, predictions for a new video, and the demo app in a browser."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prefect import flow

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.processes import ending_with_us
from penumbra.artifacts.store import Store
from penumbra.flows.demo_app import negatives_of
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.extract_features import extract_features
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features import clip
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding import runs
from penumbra.tasks.grounding.batches.inputs import find_sources
from penumbra.tasks.grounding.configs import InputConfig, RunChoice, Training
from penumbra.tasks.grounding.evaluation.calibration import read_calibrator
from penumbra.tasks.grounding.evaluation.predictions import predict_model
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.families.detr import LossConfig, QDDETRConfig
from penumbra.tasks.grounding.families.mmn import MMNConfig
from penumbra.tasks.grounding.prediction import Grounder, as_rows, draw
from penumbra.tasks.grounding.runs import RunError, run_folder
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import train_model
from penumbra.tasks.stage import build as make
from penumbra.tasks.text.dictionary import WordCounts
from penumbra.tasks.text.tags import Tagging, Tags
from tests.browser import browser, needs_chromium
from tests.corner import cut_out
from tests.grounding_data import TINY, TINY_MAP, model_of
from tests.markup import published
from tests.rows import build, negative
from tests.terminal import penumbra, printed, refusal

HOSTILE = "a person <script>alert(1)</script> [x](http://a)."


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of the sample's films with some of their queries; those to be judged are hostile."""
    folder = cut_out(tmp_path_factory.mktemp("few"), train=4, test_trivial=2)
    for path, start in ((folder / "train.json", ""), (folder / "test_trivial.json", f"{HOSTILE} ")):
        videos = json.loads(path.read_text())
        for video in videos.values():
            video["sentences"] = [start + text for text in video["sentences"][:4]]
            video["timestamps"] = video["timestamps"][:4]
        path.write_text(json.dumps(videos))
    return folder


@pytest.fixture(scope="module")
def world(films: Path, module_store: Store, prefect_server: None) -> Path:
    """The films' features, by CLIP, and negatives of the training queries."""
    rows = [
        negative(f"{vid}_train_{n}", level, f"a dog sleeps on {n} sofas {level}", text)
        for vid, video in json.loads((films / "train.json").read_text()).items()
        for n, text in enumerate(video["sentences"])
        for level in (1, 2, 3)
    ]
    build(module_store, "negatives", rows, dataset="few")
    videos = Videos(folder=str(films / "videos"), clip_length=0.5)
    extract_features(dataset(films), Clip(encoder="tiny-clip"), Texts(), videos)
    return films


def dataset(films: Path) -> Dataset:
    return Dataset(name="few", folder=str(films))


def parents_of(artifact: Artifact, stage: str) -> list[Artifact]:
    return [parent for parent in Store().manifest(artifact).parents if parent.stage == stage]


def train(films: Path, shine: bool) -> Artifact:
    model = QDDETRConfig(**model_of(**TINY), losses=LossConfig(shine=shine))
    training = Training(epochs=2, batch_size=8, evaluate_every=1, validation=0.3)
    return train_grounding(dataset(films), None, model, training)


@pytest.fixture(scope="module")
def base(world: Path) -> Artifact:
    return train(world, shine=False)


@pytest.fixture(scope="module")
def trained(world: Path, base: Artifact) -> Artifact:
    return train(world, shine=True)


@pytest.fixture(scope="module")
def evaluated(world: Path, trained: Artifact) -> Artifact:
    return evaluate_grounding(dataset(world), RunChoice(run=trained.key[:8]))


@pytest.fixture(scope="module")
def grounder(trained: Artifact) -> Grounder:
    return Grounder.of_run(trained.key[:6])


@pytest.fixture
def film(world: Path) -> Path:
    return next((world / "videos").glob("*.mp4"))


def test_an_evaluation_s_report_is_published_and_stays(world: Path, evaluated: Artifact, trained: Artifact) -> None:
    page = (run_folder(trained) / "report.html").read_text(encoding="utf-8")
    for title in ("Results", "saliency inside the moment", "Training", "Settings", "Origin"):
        assert title in page
    assert "<script" not in page, "of the sentences"
    [shown] = published("report-few-evaluate-grounding").values()
    assert shown.count("(data:image/svg+xml;base64,") == page.count("<svg")
    train(world, shine=True)
    assert (run_folder(trained) / "report.html").read_text(encoding="utf-8") == page, "training's holds less"


def test_predictions_are_those_of_the_run(grounder: Grounder, world: Path, evaluated: Artifact) -> None:
    store, [predictions] = Store(), parents_of(evaluated, "predictions")
    annotations = {row["qid"]: row for row in store.table(store.newest("few", "annotations")).to_pylist()}
    by_video: dict[str, list[dict[str, Any]]] = {}
    for row in store.table(predictions).to_pylist():
        by_video.setdefault(annotations[row["qid"]]["vid"], []).append(row)
    assert by_video
    for vid, rows in by_video.items():
        asked = [annotations[row["qid"]]["query"] for row in rows]
        found = grounder.ground(world / "videos" / f"{vid}.mp4", [f" {query}" for query in asked])
        assert [one.query for one in found] == asked
        for one, row in zip(found, rows, strict=True):
            windows = [w for w in row["windows"] if w["start"] < w["end"]]
            assert [(w.start, w.end) for w in one.windows] == [(w["start"], w["end"]) for w in windows]
            assert [w.score for w in one.windows] == pytest.approx([w["score"] for w in windows], abs=2e-3)
            assert one.saliency == pytest.approx(row["saliency"], abs=2e-2)
            assert one.duration == annotations[row["qid"]]["duration"]


def test_predictions_say_how_likely_a_moment_exists(evaluated: Artifact) -> None:
    [predictions] = parents_of(evaluated, "predictions")
    calibrator, words = read_calibrator(*parents_of(predictions, "calibration"))
    assert calibrator is not None
    assert "no existence head was trained" in words
    found = Store().table(predictions, ["existence"])["existence"].to_pylist()
    assert all(0 <= value <= 1 for value in found)
    assert len(set(found)) > 1


@pytest.mark.parametrize(
    ("weight", "lacks"), [(0.0, "no validation query"), (1.0, "no validation queries to calibrate")]
)
def test_a_run_without_validation_queries_is_not_calibrated(film: Path, weight: float, lacks: str) -> None:
    sources = find_sources(Store().newest("few", "annotations"), Settings())
    model = MMNConfig(hidden=8, ablation=TINY_MAP, losses=LossConfig(existence=weight))
    settings = Settings(model=model, training=Training(epochs=1, batch_size=8, validation=0.0))
    metrics = flow(train_model)(sources, settings)
    advice = f"penumbra run evaluate-grounding few --param choice.run={metrics.key}"
    assert advice in " ".join(Grounder.of_run(metrics.key).watch(film).notes)
    predictions = flow(predict_model)(metrics, sources, None, ("test",))
    assert lacks in read_calibrator(*parents_of(predictions, "calibration"))[1]
    grounder = Grounder.of_run(metrics.key)
    assert advice not in " ".join(grounder.watch(film).notes)
    assert grounder.ground(film, ["a person waves."])[0].windows
    nulls = Store().table(predictions, ["existence"])["existence"].null_count
    assert (nulls > 0) == (not weight), "a head needs no calibration"


def test_no_empty_window_is_offered_and_scores_close_to_the_best_are_marked(
    grounder: Grounder, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [[[1, 1, 0.9], [1, 2, 0.486], [2, 3, 0.485], [0, 3, 0.1]], [[2, 2, 0.5]]]
    grounder = replace(grounder, calibrator=None)
    predictions = [Prediction(str(number), np.array(windows), np.zeros(0)) for number, windows in enumerate(found)]
    monkeypatch.setattr(grounder.system, "predict", lambda model, data: predictions)
    groundings = grounder.ground(film, ["a person waves.", "a person sits."])
    assert [len(one.windows) for one in groundings] == [3, 0]
    scores = [row[-1] for row in as_rows(groundings, 5)]
    assert scores == ["0.486", "0.485 ≈", "0.100", "–"]


def test_a_query_below_the_threshold_is_not_in_the_video(film: Path, trained: Artifact, evaluated: Artifact) -> None:
    of_run = Grounder.of_run(trained.key)
    calibrator = replace(of_run.calibrator, is_chance=False)
    said, rows = {}, {}
    for threshold in (0.0, 1.0):
        asked = replace(of_run, calibrator=replace(calibrator, threshold=threshold)).ground(film, ["a person waves."])
        said[threshold], [one] = asked, asked
        assert one.exists == (threshold == 0)
        assert 0 < one.existence < 1  # type: ignore[operator]
        assert one.windows, "in any case"
        rows[threshold] = list(as_rows(asked, 1))
    assert len(rows[0.0]) == len(rows[1.0]) == 1
    assert re.fullmatch(r"a person waves\.\nnot in this video \(existence 0\.\d\d\)", rows[1.0][0][0])
    assert rows[1.0][0][1] == "–"
    assert list(as_rows(said[1.0], 1, windows=True))[1][1:] == rows[0.0][0][1:]
    assert "not in this video" in draw("v.mp4", of_run.watch(film), said[1.0]).svg()
    by_chance = replace(of_run, calibrator=replace(calibrator, threshold=1.0, is_chance=True))
    [chance] = by_chance.ground(film, ["a person waves."])
    assert (chance.exists, chance.absence) == (None, ""), "an existence that may be chance rejects nothing"
    assert chance.existence == said[1.0][0].existence


def test_a_run_below_the_constant_window_says_so(
    trained: Artifact, evaluated: Artifact, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "below_constant", lambda rows: ("test",))
    watched = Grounder.of_run(trained.key).watch(film)
    assert any("mIoU on test is no higher than that of one constant window" in note for note in watched.notes)


def test_the_command_prints_rows_json_and_a_picture(film: Path, trained: Artifact, tmp_path: Path) -> None:
    picture = tmp_path / "found.svg"
    words = ["predict", str(film), HOSTILE, "a person waves.", "--run", trained.key, "--output", str(picture)]
    shown = printed(*words, "--top", "2", "--windows")
    assert len(re.findall(r"\d+\.\d\d .*\d+\.\d\d .*0\.\d{3}", shown)) == 4
    drawing = ElementTree.parse(picture).getroot()
    names = [node.tag.rpartition("}")[2] for node in drawing.iter()]
    assert names.count("image") == 8
    assert names.count("polyline") > 2, "axes, and saliency of both queries"
    assert "script" not in names
    found = json.loads(printed(*words, "--json"))
    assert [one["query"] for one in found] == [HOSTILE, "a person waves."]
    assert 0 < len(found[0]["windows"]) <= TINY["queries"]
    assert found[0]["clip_length"] == 0.5
    assert len(found[0]["saliency"]) == -(-found[0]["duration"] // 0.5)


@pytest.mark.parametrize(
    ("file", "query", "options", "message"),
    [
        ("good", " ", {}, "the query is empty"),
        ("good", "caf\udce9", {}, "is the terminal's encoding UTF-8"),
        ("good", "a cat.", {"run": "zzz"}, "no run is called 'zzz'; there are: .*qd_detr-"),
        ("good", "a cat.", {"output": "x.png"}, "name a .svg file"),
        ("good", "a cat.", {"output": "nowhere/x.svg"}, "can't be written"),
        ("train.json", "a cat.", {}, "train.json: file can't be opened as a video"),
    ],
)
def test_faults_are_reported(
    film: Path, trained: Artifact, file: str, query: str, options: dict[str, str], message: str
) -> None:
    path = film if file == "good" else film.parents[1] / file
    given = {"run": trained.key, **options}
    arguments = [part for name, value in given.items() for part in (f"--{name}", value)]
    assert re.search(message, refusal("predict", str(path), query, *arguments))


def test_one_text_in_place_of_queries_is_refused(grounder: Grounder) -> None:
    with pytest.raises(PenumbraError, match="give a list of queries: "):
        grounder.ground("video.mp4", "a person opens the door.")


def test_weights_of_another_run_are_refused_and_reported(base: Artifact, trained: Artifact, tmp_path: Path) -> None:
    folder = run_folder(trained)
    printed("artifacts", "verify", "few/metrics")
    shutil.copytree(folder, tmp_path / "own")
    try:
        shutil.rmtree(folder)
        shutil.copytree(run_folder(base), folder)
        with pytest.raises(RunError, match=f"are not those that run {trained.key} ended with .*restore the files"):
            Grounder.of_run(trained.key)
        verified = penumbra("artifacts", "verify", f"few/metrics/{trained.key}")
        assert verified.exit_code == 1
        assert f"are not those that run {trained.key} ended with" in verified.output
    finally:
        shutil.rmtree(folder)
        shutil.move(tmp_path / "own", folder)
    Grounder.of_run(trained.key)


def test_a_run_whose_encoder_is_missing_is_named(trained: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip, "encoder_inputs", lambda *_: {})
    missing = r"qd_detr\+shine-\w+ was trained on features of CLIP 'tiny-clip', which is miss"
    with pytest.raises(RunError, match=missing):
        Grounder.of_run(trained.key)


def test_a_run_on_features_that_none_here_computes_is_refused(world: Path, trained: Artifact) -> None:
    store = Store()
    table = store.table(store.newest("few", "video_features"))
    table = table.set_column(table.column_names.index("encoder"), "encoder", [["i3d"] * len(table)])
    parameters = {"imported": [{"name": "i3d"}], "clip_length": 0.5}
    build(store, "video_features", table, parameters=parameters, dataset="few")
    annotations = store.newest("few", "annotations")
    model, inputs = QDDETRConfig(**model_of(**TINY)), InputConfig(video_features=("i3d",))
    chosen = Settings(model=model, training=Training(epochs=1), inputs=inputs)
    imported = flow(train_model)(find_sources(annotations, chosen), chosen)
    with pytest.raises(RunError, match=r"trained on features \(i3d\) that can't be computed"):
        Grounder.of_run(imported.key)


@pytest.fixture(scope="module")
def counted(world: Path) -> Artifact:
    """The films' dictionary, and with it their tags."""
    annotations = Store().newest("few", "annotations")
    return make(WordCounts(annotations, make(Tags(annotations, Tagging()))))


@contextmanager
def demo_app(*arguments: str) -> Iterator[str]:
    """`penumbra demo-app` in a process of its own, and its address."""
    command = ending_with_us("penumbra", "demo-app", "--port", "0", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
        finally:
            process.terminate()
            process.wait(20)


def test_negatives_of_the_demo_app_change_only_words_of_the_sentence(counted: Artifact) -> None:
    sentence = "the person opens the red door."
    negatives = negatives_of("few", sentence)
    assert [(one["level"], one["provider"]) for one in negatives] == [(level, "corpus") for level in (1, 2, 3)]
    words = {row["word"] for row in Store().table(counted).to_pylist()}
    for one in negatives:
        changed = [new for new, own in zip(one["negative"].split(), sentence.split(), strict=True) if new != own]
        assert changed
        assert {word.strip(".") for word in changed} <= words
    assert negatives_of("few", "!!!") == []


@pytest.mark.long
@needs_chromium
@pytest.mark.usefixtures("counted")
def test_the_demo_app_finds_windows_in_a_browser(film: Path, trained: Artifact, tmp_path: Path) -> None:
    with demo_app("--run", trained.key) as address, browser(tmp_path / "profile") as tab:
        tab.call("Network.enable")
        tab.open(address)
        tab.wait_for("document.querySelectorAll('input[type=file], textarea').length >= 2")
        tab.choose_file("input[type=file]", film)
        tab.wait_for("document.querySelector('video') !== null")
        tab.evaluate("document.querySelector('textarea').focus()")
        tab.type("the person <b id=hacked>opens</b> the ${1+1} red door.")
        tab.evaluate("document.querySelector('button.primary').click()")
        tab.wait_for("document.querySelectorAll('.found .windows').length >= 4", 300)
        rows = tab.evaluate("[...document.querySelectorAll('.found tr')].map(row => row.textContent)")
        assert [row.split()[0] for row in rows[1:]] == ["query", "level", "level", "level"]
        assert "<b id=hacked>opens</b> the ${1+1} red door." in rows[1]
        assert all(re.search(r"\d+\.\d – \d+\.\d \(0\.\d\d\)", row) for row in rows[1:])
        assert tab.evaluate("document.querySelectorAll('.found mark').length") >= 3
        assert tab.evaluate("document.querySelectorAll('.found polyline').length") >= 4, "axes, and saliency of each"
        assert tab.evaluate("document.getElementById('hacked')") is None
        sent = [it["params"] for it in tab.events if it["method"] == "Network.requestWillBeSent"]
        urls = {it["request"]["url"] for it in sent}
        assert [url for url in urls if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.usefixtures("counted")
def test_the_demo_app_serves_no_other_file_and_fetches_none(film: Path, trained: Artifact, tmp_path: Path) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(film.read_bytes())
    with demo_app() as address:
        page = httpx.get(address, timeout=60)
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        for path in (str(secret), "/etc/passwd", "http://127.0.0.1:9/", "/proc/self/environ"):
            assert httpx.get(f"{address}/gradio_api/file={path}").status_code in (403, 404)
        assert httpx.get(address, headers={"Host": "evil.test"}).status_code == 400
        assert httpx.get(address, headers={"Origin": "http://evil.test"}).status_code == 403
        for path in (str(secret), "http://127.0.0.1:9/film.mp4"):
            answer = call(address, path, "a person waves.", trained.key)
            assert "event: error" in answer
            assert "<table>" not in answer


def call(address: str, path: str, *arguments: str) -> str:
    """What the app's function answers to a file named by a request."""
    body = {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}, *arguments]}
    event = httpx.post(f"{address}/gradio_api/call/ask", json=body, timeout=60).json()["event_id"]
    return httpx.get(f"{address}/gradio_api/call/ask/{event}", timeout=60).text
