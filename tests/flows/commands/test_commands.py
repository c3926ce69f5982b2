"""The `penumbra` command as users type it, in processes of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from prefect import flow
from typer.testing import CliRunner

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.flows.commands import app
from penumbra.flows.commands.terminal import goes_on, parse_parameters, write_text
from penumbra.flows.local_run import NoServerError, plan_flow, prepare
from penumbra.flows.parameter_help import groups_of
from penumbra.flows.parameters import deployment_parameters
from penumbra.flows.registry import FLOWS, ParameterError
from penumbra.tasks.stage import IS_THERE, merge

pytestmark = pytest.mark.slow


def penumbra(*arguments: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penumbra.flows.commands", *arguments]
    variables = {**os.environ, "PENUMBRA_ARTIFACTS": str(root), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = table_of("rejected", [{"qid": "q", "stage": "tags", "reason": "no", "value": ""}])
    Store(str(tmp_path)).build(Work("mine", "rejected", 1, unit="refusal"), [lambda: Part(rows, 1, 1)])
    return tmp_path


def test_path_prints_the_folder_and_nothing_else(root: Path) -> None:
    done = penumbra("artifacts", "path", "mine/rejected", root=root)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (Path(done.stdout.removesuffix("\n")) / "_manifest.json").is_file()


def test_show_ls_and_verify(root: Path) -> None:
    assert '"reason": "no"' in penumbra("artifacts", "show", "mine/rejected", root=root).stdout
    assert "mine" in penumbra("artifacts", "ls", root=root).stdout
    assert penumbra("artifacts", "verify", root=root).returncode == 0
    next(root.rglob("part-*.parquet")).write_bytes(b"rubbish")
    broken = penumbra("artifacts", "verify", "mine/rejected", root=root)
    assert broken.returncode == 1
    assert "was changed" in broken.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["artifacts", "path", "mine/masks"], "no mine/masks below"),
        (["artifacts", "path", "mine"], "is no DATASET/STAGE"),
        (["artifacts", "path", "../mine/masks"], "is no DATASET/STAGE"),
        (["export", "mine"], "no mine/negatives below"),
        (["fetch", "mine"], "nothing to fetch"),
        (["run", "train", "scenes"], "no flow 'train'"),
        (["run", "build-negatives", "nowhere"], "no folder"),
        (
            ["run", "build-negatives", "scenes", "--param", "filling.candidate=3"],
            "no parameter filling.candidate: did you mean filling.candidates?",
        ),
        (
            ["run", "build-negatives", "scenes", "--param", "fill.candidates=3"],
            "no parameter fill.candidates: did you mean filling.candidates?",
        ),
        (["run", "build-negatives", "scenes", "--param", "masking.ratios=[0.5,0.2,0.9]"], "must rise"),
        (["ablation", "loss", "scenes"], "no grid 'loss'; there is: losses, llms"),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(root: Path, arguments: list[str], message: str) -> None:
    done = penumbra(*arguments, root=root)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["artifacts", "ls", "mein"],
        ["artifacts", "path", "mein/rejected"],
        ["artifacts", "path", "mein/rejected/ab"],
        ["artifacts", "verify", "mein/rejected"],
        ["export", "mein"],
        ["browse", "mein"],
        ["browse", "mein", "--run", "ab12"],
        ["browse", "mein", "--provider", "corpus"],
        ["quality", "mein/negatives"],
        ["compare", "mein", "a", "b"],
        ["predict", "v.mp4", "a cat.", "--run", "a", "--dataset", "mein"],
    ],
)
def test_a_data_set_that_nobody_knows_is_told_with_the_nearest(
    root: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(root))
    told = str(CliRunner().invoke(app, arguments).exception)
    assert told == f"no data set 'mein' is known below {root}: did you mean mine? there is: mine"


def test_browse_writes_one_page_and_says_where(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(root))
    monkeypatch.chdir(tmp_path)
    store = Store()
    annotations = store.build(Work("mine", "annotations", 1), [lambda: Part(table_of("annotations", []), 0, 0)])
    negatives = Work("mine", "negatives", 1, parents=(annotations,))
    store.build(negatives, [lambda: Part(table_of("negatives", []), 0, 0)])
    assert CliRunner().invoke(app, ["browse", "mine"]).stdout == "mine.html\n"
    page = (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["browse", "mine", "--output", "other.html"]).stdout == "other.html\n"
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == page
    told = str(CliRunner().invoke(app, ["browse", "mine", "--output", "none/x.html"]).exception)
    assert told == "--output none/x.html can't be written (No such file or directory)"


def test_fetch_is_only_the_remedy_where_there_is_something_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path))
    (tmp_path / "mine").mkdir()
    told = str(CliRunner().invoke(app, ["run", "build-negatives", "charades-gc"]).exception)
    assert told.endswith("did you mean charades-cg? there is: activitynet-cg, charades-cg, mine, scenes")
    assert "penumbra fetch" not in told
    told = str(CliRunner().invoke(app, ["run", "build-negatives", "charades-cg"]).exception)
    assert told.endswith("set PENUMBRA_DATA, or run `penumbra fetch charades-cg`")


def test_a_server_that_does_not_answer_is_one_line_without_its_password(store: Store) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://me:geheim@127.0.0.1:9/api"}):
        told = CliRunner().invoke(app, ["run", "build-negatives", "scenes"]).exception
    assert isinstance(told, NoServerError)
    assert str(told).startswith("no Prefect server answers at http://127.0.0.1:9/api (ConnectError)")
    assert store.find() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_says_that_it_goes_on(
    number: int, code: int, prefect_server: None, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, usual))
    before = signal.getsignal(signal.SIGTERM)

    @flow
    def ended() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    with pytest.raises(SystemExit) as end, goes_on():
        ended()
    assert end.value.code == code
    assert capsys.readouterr().err.endswith("penumbra: ended; the same command goes on from here\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_does_not_end_is_ended() -> None:
    program = (
        "import os, signal, time; from penumbra.flows.commands import terminal as it; it.PATIENCE = 0.2\n"
        "with it.goes_on():\n"
        "    signal.signal(signal.SIGTERM, lambda *_: None)  # as Prefect has its own\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (143, "penumbra: ended; the same command goes on from here\n")


def test_parameters_nest_and_are_json_where_they_can_be() -> None:
    pairs = ["masking.ratios=[0.1,0.2,0.3]", "filling.candidates=4", "tagging.spacy_model=en_core_web_sm"]
    assert parse_parameters(pairs) == {
        "masking": {"ratios": [0.1, 0.2, 0.3]},
        "filling": {"candidates": 4},
        "tagging": {"spacy_model": "en_core_web_sm"},
    }
    with pytest.raises(typer.BadParameter):
        parse_parameters(["filling.candidates"])


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, object]:
    """The parameters that a flow is run with when these are typed."""
    heard: list[dict[str, object]] = []
    monkeypatch.setattr("penumbra.flows.local_run.plan_flow", lambda flow, dataset, said: heard.append(said) or [])
    monkeypatch.setattr("penumbra.flows.local_run.log_price", lambda *_: None)
    done = CliRunner().invoke(app, ["run", *arguments, "--dry-run"])
    if done.exception:
        raise done.exception
    return heard[0]


def test_parameters_come_from_a_file_and_what_is_typed_beats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 3\ntraining:\n  seed: 7\nmodel.losses.shine: true\nmodel: {hidden: 8}\n")
    typed = ("train-grounding", "scenes", "--config", str(file), "--param")
    assert asked(monkeypatch, *typed, "training.epochs=5") == asked(monkeypatch, *typed, "epochs=5")
    assert asked(monkeypatch, *typed, "training.epochs=5") == {
        "training": {"seed": 7, "epochs": 5},
        "model": {"hidden": 8, "losses": {"shine": True}},
    }
    file.write_text("model: {name: mmn}\nclips: 8\n")
    assert asked(monkeypatch, *typed, "clips=16") == {"model": {"name": "mmn", "clips": 16}}
    file.write_text("")
    assert asked(monkeypatch, *typed, "epochs=5") == {"training": {"epochs": 5}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("filling: {candidate: 3}", "no parameter filling.candidate: did you mean filling.candidates?"),
        ("celing: 0.9", "no parameter celing: did you mean choosing.ceiling?"),
        ("filling.candidates: many", "filling.candidates: Input should be a valid integer"),
        ("a: [1", r"run.yaml line 1 is no YAML"),
        ("- a", "run.yaml holds no NAME: VALUE lines"),
        ("3: 4", "run.yaml holds no NAME: VALUE lines"),
        (None, "run.yaml can't be read"),
    ],
)
def test_a_mistake_in_a_file_is_told_as_one_that_is_typed(
    store: Store, tmp_path: Path, text: str | None, told: str
) -> None:
    file = tmp_path / "run.yaml"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(app, ["run", "build-negatives", "scenes", "--config", str(file), "--dry-run"])
    assert isinstance(done.exception, PenumbraError)
    assert told in str(done.exception)


def test_where_scalars_go_is_said_in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    said = asked(
        monkeypatch, "train-grounding", "scenes", "--param", "epochs=3", "--log", "tensorboard", "--log", "wandb"
    )
    assert said == {"training": {"epochs": 3, "log": ["tensorboard", "wandb"]}}
    with pytest.raises(ParameterError, match=r"training\.log\.0: Input should be 'tensorboard' or 'wandb'"):
        prepare("train-grounding", "scenes", {"training": {"log": ["tensorbord"]}})


def test_help_of_a_flow_lists_its_parameters_in_80_columns() -> None:
    told = CliRunner().invoke(app, ["run", "train-grounding", "--help", "all"])
    assert told.exit_code == 0
    _, _, parameters = told.stdout.partition("Parameters of train-grounding")
    assert "  training.epochs: int = 200\n      Passes over the training queries" in parameters
    assert '  model.name: qd_detr | moment_detr | bm_detr | mmn | vdi = "qd_detr"\n' in parameters
    _, _, of_two = parameters.partition("\nmodel, of qd_detr, moment_detr:\n")
    assert '  model.losses.variant: paper | released = "paper"\n' in of_two.partition("\nmodel, of ")[0]
    assert parameters.count("  model.losses.saliency: float = ") == 2  # BM-DETR's is another's weight
    assert "  preset: str | null = null\n      Settings of a paper" in parameters
    assert max(map(len, parameters.splitlines())) <= 80
    sources = CliRunner().invoke(app, ["run", "extract-features", "--help", "imports"]).stdout
    assert "videos.decoder" not in sources
    assert "  imports.sources: [Source] = []\n" in sources
    assert "  imports.sources[].path: str\n" in sources


@pytest.mark.parametrize("flow", FLOWS)
def test_help_of_a_flow_is_two_screens_of_groups_that_name_every_parameter(flow: str) -> None:
    lines = CliRunner().invoke(app, ["run", flow, "--help"]).stdout.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 90
    told = " ".join(lines)
    for group in groups_of(flow):
        for name in (it.name.rpartition(".")[2] for it in group.parameters if it.name.count(".") < 2):
            assert re.search(rf"\b{name}\b", told), name


def test_help_of_a_group_is_found_by_its_last_name() -> None:
    filling = CliRunner().invoke(app, ["run", "full-pipeline", "scenes", "--help", "filling"]).stdout
    assert "  negatives.filling.candidates: int = 16\n" in filling
    assert "  negatives.filling.openai.price.input: float\n" in filling
    assert "training.epochs" not in filling
    mistaken = CliRunner().invoke(app, ["run", "train-grounding", "--help", "trainig"]).exception
    assert isinstance(mistaken, ParameterError)
    assert str(mistaken).startswith("train-grounding has no group trainig: did you mean training?")
    unknown = CliRunner().invoke(app, ["run", "train", "--help"]).exception
    assert str(unknown).startswith("no flow 'train'; there is: build-negatives")


def test_prefects_own_lines_are_no_place_for_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, "train-grounding", "scenes", "--log", "prefect") == {}
    assert asked(monkeypatch, "train-grounding", "scenes", "--log", "prefect", "--log", "wandb") == {
        "training": {"log": ["wandb"]}
    }


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"penumbra {version('penumbra')}\n"


def test_no_epoch_is_only_for_the_weights_of_others() -> None:
    with pytest.raises(ParameterError, match="epochs=0 takes the weights of start_from as they are"):
        prepare("train-grounding", "scenes", {"training": {"epochs": 0}})
    _, _, known = prepare("train-grounding", "scenes", {"training": {"epochs": 0, "start_from": "weights.ckpt"}})
    assert known["training"].epochs == 0


def test_a_run_starts_from_its_deployment() -> None:
    parameters = deployment_parameters("build-negatives", "activitynet-cg")
    assert parameters["masking"]["ratios"] == [0.1, 0.3, 0.5]
    changed = merge(parameters, {"masking": {"ratios": [0.2, 0.3, 0.4]}, "filling": {"seed": 1}})
    assert changed["masking"] == {"ratios": [0.2, 0.3, 0.4]}
    assert changed["filling"] == {"seed": 1}
    assert changed["dataset"] == parameters["dataset"]
    assert deployment_parameters("build-negatives", "mine") == {"dataset": {"name": "mine"}}


@pytest.mark.parametrize(
    ("flow", "said", "told"),
    [
        ("build-negatives", "masking.ratio=[0.1]", "no parameter masking.ratio: did you mean masking.ratios?"),
        ("build-negatives", "celing=0.9", "no parameter celing: did you mean choosing.ceiling?"),
        ("build-negatives", "maskin.ratios=[0.1]", "no parameter maskin.ratios: did you mean masking.ratios?"),
        ("train-grounding", "epoch=3", "no parameter epoch: did you mean training.epochs?"),
        (
            "train-grounding",
            "model.losses.shin=true",
            "no parameter model.losses.shin: did you mean model.losses.shine?",
        ),
        ("full-pipeline", "features.texts.encode=x", "did you mean features.texts.encoder?"),
    ],
)
def test_a_parameter_s_typo_names_the_nearest(store: Store, flow: str, said: str, told: str) -> None:
    done = CliRunner().invoke(app, ["run", flow, "scenes", "--param", said, "--dry-run"])
    assert told in str(done.exception)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"train.csv": "query,start,end\n"}, "holds train.csv, but no train.json and no"),
        (
            {"train.jsonl": '{"qid": 1, "sentence": "a", "vid": "v"}\n'},
            'line 1: row lacks qid, query or vid; it has {"qid"',
        ),
        ({"train.json": "[]"}, "train.json"),
        (
            {"train.jsonl": "query,start,end\n"},
            "line 1: line is not JSON; it has query,start,end: this is no grounding",
        ),
    ],
)
def test_a_foreign_file_is_told_before_a_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], told: str
) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path))
    monkeypatch.setattr("penumbra.flows.local_run.ask_server", lambda: pytest.fail("a server was asked"))
    (tmp_path / "mine").mkdir()
    for name, text in files.items():
        (tmp_path / "mine" / name).write_text(text)
    done = CliRunner().invoke(app, ["run", "build-negatives", "mine"])
    assert told in str(done.exception)


def test_a_name_of_a_data_set_is_ruled_in_words(store: Store) -> None:
    done = CliRunner().invoke(app, ["run", "build-negatives", "My Data"])
    assert "'My Data' is no name of a data set: small letters, digits" in str(done.exception)


def test_a_bad_output_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PenumbraError, match=r"--output .*/none/x can't be written \(No such file or directory\)"):
        write_text(["x"], tmp_path / "none" / "x")


def test_a_dry_run_says_what_comes_first_and_makes_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "no data"))
    done = CliRunner().invoke(app, ["run", "full-pipeline", "scenes", "--dry-run"])
    assert done.exit_code == 0, done.output
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    keys = {stage: key for stage, state, key in lines if state == "would be made"}
    assert re.fullmatch("[0-9a-f]{16}", keys["negatives"])
    assert re.fullmatch("[0-9a-f]{16}", keys["text_features"])
    assert keys["video_features"] == "after annotations"
    assert keys["metrics"] == "after video_features"
    assert keys["evaluation"].startswith("after metrics, predictions")
    assert store.find() == []


@pytest.mark.parametrize(
    ("flow", "said"),
    [("train-grounding", "first: no scenes/text_features below"), ("evaluate-grounding", "run train-grounding scenes")],
)
def test_a_dry_run_says_which_flow_comes_first(store: Store, flow: str, said: str) -> None:
    done = CliRunner().invoke(app, ["run", flow, "scenes", "--dry-run"])
    assert done.exit_code == 0
    assert said in done.stdout


@pytest.mark.long
def test_export_and_run_agree(prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` in this test's server, a data set of one's own, then `export` in both formats."""
    from prefect.settings import PREFECT_API_URL

    data = tmp_path / "data" / "mine"
    data.mkdir(parents=True)
    rows = [
        {
            "qid": i,
            "query": f"a person {verb} the {noun}.",
            "vid": f"v{i}",
            "duration": 9.5,
            "relevant_windows": [[0, 4]],
        }
        for i, (verb, noun) in enumerate((v, n) for v in ("opens", "closes", "takes") for n in ("door", "box", "bag"))
    ]
    (data / "my_train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    root = tmp_path / "artifacts"
    done = penumbra(
        "run",
        "build-negatives",
        "mine",
        "--param",
        "filling.candidates=8",
        root=root,
        PENUMBRA_DATA=str(data.parent),
        PREFECT_API_URL=str(PREFECT_API_URL.value()),
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]) == Path(Store(str(root)).newest("mine", "negatives").path)
    monkeypatch.setenv("PENUMBRA_DATA", str(data.parent))
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(root))
    assert {state for _, state, _ in plan_flow("build-negatives", "mine", {"filling": {"candidates": 8}})} == {IS_THERE}
    shine = [json.loads(line) for line in penumbra("export", "mine", root=root).stdout.splitlines()]
    assert shine
    keys = ["qid", "query", "duration", "vid", "relevant_windows", "masked_queries", "recomposed_queries"]
    assert all(list(row) == keys for row in shine)
    file = tmp_path / "out.jsonl"
    assert penumbra("export", "mine", "--format", "jsonl", "--output", str(file), root=root).returncode == 0
    flat = [json.loads(line) for line in file.read_text().splitlines()]
    negatives = {(row["qid"], row["level"]): row["negative"] for row in flat}
    assert all(row["recomposed_queries"] == [negatives[row["qid"], i] for i in (1, 2, 3)] for row in shine)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("providers=[openai, gemini]", {"providers": ["openai", "gemini"]}),
        ('filling.openai.extra={"seed": 3}', {"filling": {"openai": {"extra": {"seed": 3}}}}),
        ("dataset.name=2026-11-20", {"dataset": {"name": "2026-11-20"}}),
        ("tagging.spacy_model=a: b: c", {"tagging": {"spacy_model": "a: b: c"}}),
        ("max_cost_usd=0.5", {"max_cost_usd": 0.5}),
    ],
)
def test_values_are_yaml_and_else_text(pair: str, expected: dict[str, object]) -> None:
    assert parse_parameters([pair]) == expected


def test_a_parameter_finds_its_group() -> None:
    from penumbra.flows.build_negatives import build_negatives
    from penumbra.flows.parameters import resolve_parameter_paths

    placed = resolve_parameter_paths(build_negatives, {"providers": ["openai"], "filling": {"seed": 3}, "ceiling": 0.9})
    assert placed == {"filling": {"providers": ["openai"], "seed": 3}, "choosing": {"ceiling": 0.9}}
    assert resolve_parameter_paths(build_negatives, {"nonsense": 1}) == {"nonsense": 1}


def test_a_parameter_of_two_groups_needs_its_group() -> None:
    from prefect import flow

    from penumbra.flows.parameters import resolve_parameter_paths
    from penumbra.flows.registry import ParameterError
    from penumbra.tasks.negatives.filling import Filling

    @flow
    def twice(first: Filling, second: Filling) -> None:
        del first, second

    with pytest.raises(ParameterError, match=r"first\.seed or second\.seed"):
        resolve_parameter_paths(twice, {"seed": 1})


def test_a_parameter_finds_its_group_in_the_model_that_is_named() -> None:
    from penumbra.flows.parameters import resolve_parameter_paths
    from penumbra.flows.registry import ParameterError
    from penumbra.flows.train_grounding import train_grounding

    assert resolve_parameter_paths(train_grounding, {"shine": True, "epochs": 2}) == {
        "model": {"losses": {"shine": True}},
        "training": {"epochs": 2},
    }
    assert resolve_parameter_paths(train_grounding, {"losses": {"shine": True}}) == {
        "model": {"losses": {"shine": True}}
    }
    named = {"clips": 8, "model": {"name": "mmn"}}
    assert resolve_parameter_paths(train_grounding, named) == {"model": {"name": "mmn", "clips": 8}}
    usual = {"preset": "scenes-mmn"}
    assert resolve_parameter_paths(train_grounding, {"clips": 8}, usual) == {"model": {"name": "mmn", "clips": 8}}
    assert resolve_parameter_paths(train_grounding, {"hidden": 8, "preset": "scenes-qd_detr"}, usual) == {
        "preset": "scenes-qd_detr",
        "model": {"hidden": 8},
    }
    with pytest.raises(ParameterError, match=r"'clips' is for model mmn, vdi, and this is qd_detr: say model\.name"):
        resolve_parameter_paths(train_grounding, {"clips": 8})
    with pytest.raises(ParameterError, match=r"model\.losses\.negatives or inputs\.negatives"):
        resolve_parameter_paths(train_grounding, {"negatives": "both", "model": {"name": "bm_detr"}})


def test_what_a_model_has_not_is_refused_by_name() -> None:
    said = {"model": {"name": "bm_detr", "losses": {"shine": True}}}
    with pytest.raises(ParameterError, match=r"model\.bm_detr\.losses\.shine: Extra inputs are not permitted"):
        prepare("train-grounding", "scenes", said)
    with pytest.raises(ParameterError, match="'bert' found using 'name' does not match any of the expected tags"):
        prepare("train-grounding", "scenes", {"model": {"name": "bert"}})
