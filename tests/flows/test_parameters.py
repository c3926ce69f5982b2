"""Parameters from deployments, files and the command line, their help and forms, and messages about wrong ones."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.campaigns.parameters import BOMB, escapes_shown, run_cases
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import DEPLOYMENTS
from penumbra.artifacts.markdown import CONTROLS
from penumbra.artifacts.store import Store
from penumbra.flows.deploy import (
    all_deployments,
    datasets_of,
    form_of,
    has_files,
    schedule_of,
    wanted_of,
    with_defaults,
)
from penumbra.flows.full_pipeline import full_pipeline
from penumbra.flows.local_run import prepare
from penumbra.flows.parameters import HOSTED, deployment_parameters, parameters_of, parse_parameters, with_changes
from penumbra.flows.registry import FLOWS, ParameterError, flow_of
from penumbra.tasks.grounding.training.presets import FEW, preset_for, with_preset
from penumbra.tasks.negatives.providers.settings import PROVIDERS, HostedSettings
from tests.rows import json_lines
from tests.terminal import printed, python, refusal

pytestmark = pytest.mark.slow

NEGATIVES, TRAINING = "build-negatives", "train-grounding"
DEEP = "epochs: 3\ntraining:\n  seed: 7\nmodel: {hidden: 8}\n"
WITH_FILE = ("run", NEGATIVES, "scenes", "--dry-run", "--config")
PLAN = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]


@pytest.mark.parametrize("deployment", PLAN, ids=lambda d: f"{d['tags'][0]}/{d['name']}")
def test_parameters_of_a_deployment_fit_its_flow(deployment: dict[str, Any]) -> None:
    path, _, function = deployment["entrypoint"].rpartition(".")
    deployed = getattr(import_module(path), function)
    assert deployed is flow_of(deployed.name)
    validated = deployed.validate_parameters(deployment["parameters"])
    assert deployment["tags"][:2] == [deployed.name, validated["dataset"].name], "found by flow and by data set"
    assert deployment_parameters(deployed.name, deployment["name"]) == deployment["parameters"]
    if {*HOSTED} & {*deployment["parameters"].get("filling", {}).get("providers", ())}:
        assert not any(schedule["active"] for schedule in deployment["schedules"]), "nobody is paid without being asked"


def test_every_flow_has_a_deployment_for_each_published_data_set_and_takes_a_user_s() -> None:
    there = {(deployment["tags"][0], deployment["name"]) for deployment in PLAN}
    for dataset in ("charades-cg", "activitynet-cg", "charades-sta", "qvhighlights", "tacos", "scenes"):
        assert {(flow_name, dataset) for flow_name in FLOWS.keys() - {"full-pipeline"}} <= there
    assert deployment_parameters("build-negatives", "mine") == {"dataset": {"name": "mine"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.1,1e-4, 3]", [0.1, 1e-4, 3]),
        ('{"seed": 3, far: [true, null, ~]}', {"seed": 3, "far": [True, None, None]}),
        *[(text, text) for text in ("2026-11-20", "1:30", "yes", "a: b: c", "!!int ''", "*a", "[" * 2000, "\x1b[31m")],
        ("'3'", "3"),
    ],
)
def test_values_are_those_of_json_without_quotes_or_else_text(text: str, expected: object) -> None:
    assert parse_parameters([f"filling.openai={text}"]) == {"filling.openai": expected}


@pytest.mark.parametrize(
    ("flow_name", "changes", "deployed", "resolved"),
    [
        (NEGATIVES, {"providers": ["a"], "filling": {"seed": 3}}, {}, {"filling": {"providers": ["a"], "seed": 3}}),
        (NEGATIVES, {"filling.seed": 3, "ceiling": 0.9}, {}, {"filling": {"seed": 3}, "choosing": {"ceiling": 0.9}}),
        (TRAINING, {"losses": {"shine": True}}, {}, {"model": {"losses": {"shine": True}}}),
        (TRAINING, {"hidden": 8, "model": {"name": "mmn"}}, {}, {"model": {"name": "mmn", "hidden": 8}}),
        (TRAINING, {"hidden": 8}, {"preset": "scenes-mmn"}, {"model": {"name": "mmn", "hidden": 8}}),
    ],
)
def test_a_short_name_becomes_the_whole_path_in_the_model_of_the_run(
    flow_name: str, changes: dict[str, Any], deployed: dict[str, Any], resolved: dict[str, Any]
) -> None:
    assert with_changes(flow_of(flow_name), deployed, changes) == deployed | resolved


def test_an_ambiguous_name_lists_paths_that_can_be_typed() -> None:
    with pytest.raises(ParameterError) as error:
        with_changes(full_pipeline, {}, {"encoder": "x"})
    typed = str(error.value).partition("type ")[2].replace("=…", "=x").replace("--param ", "").split(" or ")
    assert len(typed) > 1
    for pair in typed:
        with_changes(full_pipeline, {}, parse_parameters([pair]))


@pytest.mark.parametrize(
    ("flow_name", "pair", "message"),
    [
        (NEGATIVES, "filling.candidates", "is not NAME=VALUE"),
        (NEGATIVES, "=3", "is not NAME=VALUE"),
        (NEGATIVES, "masking.ratio=[0.1]", "ratio: Extra inputs are not permitted: did you mean masking.ratios?"),
        (NEGATIVES, "celing=0.9", "no parameter celing: did you mean choosing.ceiling?"),
        (TRAINING, "losses.shin=true", "did you mean model.losses.shine?"),
        (TRAINING, "clip_encoder=x", "it belongs to model.name=vdi"),
        (TRAINING, "clip.encoder=x", "no parameter clip: it belongs to extract-features and full-pipeline"),
        (TRAINING, "model={name: bm_detr, losses: {shine: 1}}", "it belongs to model.name=qd_detr or moment_detr"),
        (TRAINING, "model.name=bert", "model.name: no 'bert'; there is: qd_detr, moment_detr"),
        (TRAINING, "model=mmn", "type model.name=mmn"),
        ("full-pipeline", "features.texts.encode=x", "did you mean features.texts.encoder?"),
        (NEGATIVES, "masking.ratios=[0.5,0.2,0.9]", "masking: ratios (0.5, 0.2, 0.9) must rise"),
        (NEGATIVES, "masking.ratios=0.2", "it takes 3 numbers, as in masking.ratios=[0.25,0.5,0.75]"),
        (NEGATIVES, "masking.ratios=[0.2,0.3]", "it takes 3 numbers"),
        (NEGATIVES, "masking=0.2", "or instance of Masking; penumbra run build-negatives --help masking"),
        (NEGATIVES, "choosing.ceiling=2001-13-45", "choosing.ceiling: Input should be a valid number"),
        (NEGATIVES, "filling.seed=" + "9" * 5000, "filling.seed: "),
        (TRAINING, "preset=scenes-mnn", "no preset 'scenes-mnn': did you mean scenes-mmn"),
        (TRAINING, "training.log=[tensorbord]", "training.log.0: no 'tensorbord'; did you mean tensorboard?"),
    ],
)
def test_a_wrong_parameter_names_the_nearest(store: Store, flow_name: str, pair: str, message: str) -> None:
    with pytest.raises(PenumbraError, match=re.escape(message)):
        prepare(flow_name, "scenes", parse_parameters([pair]))


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        (DEEP, "training.epochs=5", {"training": {"seed": 7, "epochs": 5}, "model": {"hidden": 8}}),
        (DEEP, "epochs=5", {"training": {"seed": 7, "epochs": 5}, "model": {"hidden": 8}}),
        ("model: {name: vdi}\nclip_encoder: x\n", "clip_encoder=y", {"model": {"name": "vdi", "clip_encoder": "y"}}),
    ],
)
def test_typed_parameters_beat_those_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, typed: str, expected: dict[str, Any]
) -> None:
    layers = list[Any]()
    monkeypatch.setattr("penumbra.flows.local_run.plan_flow", lambda *given: layers.extend(given[2:]) or [])
    (tmp_path / "run.yaml").write_text(text)
    printed("run", TRAINING, "scenes", "--dry-run", "--config", str(tmp_path / "run.yaml"), "--param", typed)
    deployed, parameters = deployment_parameters(TRAINING, "scenes"), prepare(TRAINING, "scenes", *layers)[1]
    assert {key: value for key, value in parameters.items() if value != deployed.get(key)} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filling.candidates: many", "filling.candidates: Input should be a valid integer"),
        ("filling:\n  candidates: [1", "run.yaml can't be read (while parsing a flow sequence"),
        ("- 4", "run.yaml has no NAME: VALUE lines"),
        ("3: 4", "no parameter 3: "),
        ("filling.seed: 1\nfilling.seed: 2\n", "run.yaml can't be read (it has the name 'filling.seed' twice"),
        ("{{{a}}}: 1\n", "run.yaml can't be read (a name is a list or a group"),
        (BOMB, "run.yaml can't be read (tags, anchors and aliases are refused"),
        ("a: \x1b[31m", "special characters are not allowed"),
        ("a: " + "[" * 90_000, "more than 20 nested lists"),
    ],
)
def test_a_wrong_file_is_named(store: Store, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert message in refusal(*WITH_FILE, str(tmp_path / "run.yaml"))


def test_a_file_that_is_missing_or_has_no_end_is_named(tmp_path: Path) -> None:
    assert "run.yaml can't be read" in refusal(*WITH_FILE, str(tmp_path / "run.yaml"))
    assert "more than 100,000 characters" in refusal(*WITH_FILE, "/dev/zero")


def test_help_of_a_group_has_types_defaults_and_descriptions() -> None:
    text = printed("run", "train-grounding", "--help", "all")
    assert "  training.epochs: int = 200\n      Passes over the training queries" in text
    assert '  model.name: qd_detr = "qd_detr"\n' in text
    sources = printed("run", "extract-features", "--help", "imports")
    assert "  imports.sources[].path: str\n" in sources
    assert "videos.clip_length" not in sources
    assert "  negatives.filling.candidates: int = " in printed("run", "full-pipeline", "scenes", "--help", "filling")
    mistaken = refusal("run", "train-grounding", "--help", "trainig")
    assert mistaken.startswith("train-grounding has no group trainig: did you mean training?")


@pytest.mark.parametrize("flow_name", FLOWS)
def test_help_of_a_flow_names_its_parameters(flow_name: str) -> None:
    words = set(re.split(r"[\s,:]+", printed("run", flow_name, "--help")))
    shown = [it for it in parameters_of(flow_of(flow_name)) if it.path.count(".") < 2 and it.type]
    assert {it.path.rpartition(".")[2] for it in shown} <= words


@pytest.mark.parametrize(
    ("number", "typed", "expected"),
    [
        (FEW - 1, [], "mmn"),
        (FEW - 1, ["model.losses.shine=true"], "mmn+shine"),
        (FEW - 1, ["model.name=qd_detr"], "qd_detr"),
        (FEW - 1, ["model.hidden=32"], "qd_detr"),
        (FEW - 1, ["model.name=moment_detr"], "moment_detr"),
        (FEW - 1, ["preset=charades-cg-qd_detr"], "qd_detr"),
        (FEW, [], "qd_detr"),
        (FEW, ["model.losses.shine=true"], "qd_detr+shine"),
    ],
)
def test_few_training_queries_are_given_a_small_model_unless_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, typed: list[str], expected: str
) -> None:
    row = {"vid": "v", "query": "a person waves.", "duration": 9, "relevant_windows": [[0, 4]]}
    json_lines(tmp_path / "train.jsonl", ({**row, "qid": qid} for qid in range(number)))
    changes = {"dataset": {"folder": str(tmp_path)}}
    _, _, seen = prepare("train-grounding", "mine", changes, parse_parameters(typed))
    with caplog.at_level("INFO"):
        preset = preset_for(seen["dataset"], seen["preset"], seen["model"])
    settings = with_preset(preset, {name: seen[name] for name in ("model", "training")})
    assert settings.model.label == expected
    is_small = preset == "small"
    assert is_small == (f"{number} training queries are fewer than {FEW}" in caplog.text)
    assert settings.training.epochs == (60 if is_small else 200)


def test_a_single_value_is_a_list_of_one(store: Store) -> None:
    _, _, values = prepare(NEGATIVES, "scenes", parse_parameters(["filling.providers=random"]))
    assert list(values["filling"].providers) == ["random"]


def test_hostile_parameters_are_accepted_or_refused_with_one_line(store: Store) -> None:
    outcomes = run_cases(0, 100)
    assert outcomes.keys() <= {"accepted", "refused"}, outcomes


def test_no_escape_sequence_reaches_a_terminal() -> None:
    assert set(escapes_shown().values()) == {0}


def test_prefects_own_log_lines_are_cleaned() -> None:
    """Lines of a run that a worker of Prefect started, in whose process no command of ours runs."""
    program = (
        "import logging\nfrom penumbra.flows.import_negatives import import_negatives\n"
        "from prefect.logging.configuration import setup_logging\nsetup_logging()\n"
        "try:\n    import_negatives.fn(None)\nexcept Exception:\n    pass\n"
        "try:\n    raise ValueError('\\x1b]0;x\\x07')\n"
        "except ValueError:\n    logging.getLogger('penumbra').exception('model %s', '\\x9b31m')"
    )
    said = python(program, PREFECT_LOGGING_TO_API_ENABLED="false").stderr
    assert "model \N{REPLACEMENT CHARACTER}31m" in said
    assert "ValueError" in said
    assert not CONTROLS.search(said)


def test_providers_that_a_data_set_s_own_file_may_not_name_are_the_hosted_ones() -> None:
    assert {*HOSTED} == {name for name, settings in PROVIDERS.items() if issubclass(settings, HostedSettings)}


def test_deployments_are_of_the_data_sets_that_are_there(datasets: Path) -> None:
    (datasets / "mine").mkdir()
    (datasets / "mine" / "train.json").write_text("{}")
    (datasets / "mine" / "penumbra.yaml").write_text("build-negatives:\nfull-pipeline:\n")
    there = [deployment for deployment in all_deployments() if has_files(deployment)]
    assert datasets_of(wanted_of(there, "")) == ["mine", "scenes"]
    assert [it["tags"] for it in wanted_of(there, "mine")] == [["build-negatives", "mine"], ["full-pipeline", "mine"]]
    with pytest.raises(PenumbraError, match="did you mean mine"):
        wanted_of(there, "mime")


def test_a_form_shows_the_defaults_of_groups_but_for_those_that_a_preset_sets() -> None:
    filled = with_defaults("build-negatives", {"dataset": {"name": "mine"}, "masking": {"ratios": [0.1, 0.2, 0.3]}})
    assert filled["dataset"] == {"name": "mine", "folder": None, "files": {}}
    assert filled["masking"]["ratios"] == [0.1, 0.2, 0.3]
    assert filled["masking"]["primitives"] is None
    training = {"preset": "scenes-mmn", "training": {"epochs": 3}, "model": {"hidden": 32}}
    assert with_defaults("train-grounding", training) == training


@pytest.mark.parametrize(
    ("written", "is_possible", "active"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_schedule_is_on_if_the_data_exist(written: bool, is_possible: bool, active: bool) -> None:
    schedule = {"cron": "0 2 * * *", "timezone": "UTC", "slug": "nightly", "active": written}
    assert schedule_of(schedule, is_possible).active is active


def test_a_form_posts_only_what_a_user_enters_so_that_a_preset_sets_the_rest() -> None:
    schema = form_of("train-grounding")
    titles = {group["title"] for group in schema["definitions"].values()}
    assert {"QDDETR", "MMN", "Training"} <= titles
    for group in schema["definitions"].values():
        for item in group.get("properties", {}).values():
            assert "const" in item or "default" not in item, "a form posts the defaults that it shows"
            assert item.get("type") != "boolean", "a form posts a switch that nobody touched"
