"""The `penumbra` command as users type it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from penumbra.artifacts.manifest import Part, Work, rejection
from penumbra.artifacts.markdown import CONTROLS
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.flows import server
from penumbra.flows.commands import main
from penumbra.flows.console import INTERRUPTED, resumable
from tests.rows import build, negative
from tests.terminal import penumbra, printed, python, refusal

pytestmark = pytest.mark.slow

HEAVY = {"torch", "prefect", "pandas", "pyarrow", "numpy", "transformers", "spacy", "sklearn", "mlflow", "httpx"}
PROGRAM = f"""
import sys
from penumbra.flows.commands import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sorted({HEAVY!r} & set(sys.modules))))
"""
doctor = import_module("penumbra.flows.commands.doctor")  # `commands.doctor` is the command


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path))
    build(Store(), "rejected", [{"qid": "q", "stage": "tags", "reason": "no", "value": ""}])
    return tmp_path


def test_rows_are_shown_and_a_data_set_is_removed(root: Path) -> None:
    assert re.search(r"│ q +│ tags +│ no ", printed("artifacts", "show", "mine/rejected"))
    line = {"qid": "q", "stage": "tags", "reason": "no", "value": ""}
    assert json.loads(printed("artifacts", "show", "mine/rejected", "--json")) == line
    assert printed("artifacts", "show", "mine/rejected", "--json", "--rows", "0") == ""
    assert "removed" in printed("artifacts", "rm", "mine")
    assert not list(root.rglob("part-*.parquet"))


@pytest.mark.parametrize(
    "arguments", [["show", "mine/rejected"], ["show", "mine/rejected", "--json"], ["ls"], ["verify"]]
)
def test_no_row_steers_the_terminal(store: Store, arguments: list[str]) -> None:
    hostile = {"qid": "q", "stage": "tags", "reason": "\x9b31m\u202ered \x1b]0;title\x07", "value": ""}
    rejected = [rejection("q", "\x9b31m", "\u202ered", "")]
    part = Part(table_of("rejected", [hostile]), 2, 1, rejected)
    store.build(Work("mine", "rejected", 1, {"name": "\x9b31m"}, unit="\x1b[31m"), [lambda: part])
    assert not CONTROLS.search(printed("artifacts", *arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["artifacts", "path", "mine/masks"], "no mine/masks below"),
        (["artifacts", "path", "../mine/masks"], "is no DATASET/STAGE"),
        (["export", "mine"], "no mine/negatives below"),
        (["fetch", "mine"], "nothing to fetch"),
        (["predict", "nowhere.mp4", "a cat."], "nowhere.mp4: no file"),
        (["run", "train", "scenes"], "no flow 'train'"),
        (["ablation", "loss", "scenes"], "no grid 'loss'; did you mean losses? there is: losses, "),
    ],
)
def test_a_fault_is_one_line_without_a_traceback(
    root: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penumbra", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    "arguments", [["artifacts", "ls", "mein"], ["export", "mein"], ["browse", "mein", "--provider", "corpus"]]
)
def test_an_unknown_data_set_is_answered_with_the_nearest(root: Path, arguments: list[str]) -> None:
    assert refusal(*arguments) == f"no data set 'mein' is known below {root}: did you mean mine? there is: mine"


def test_negatives_are_shown_as_in_the_ui(store: Store) -> None:
    """What they change is marked, figures have two digits, and nothing of a text is markup."""
    text, query = "a cow [bold]eats\x1b[31m a **box** \\*", "a person eats a box"
    rows = [negative("q", 1, text, query, similarity=0.81234, plausibility=None)]
    build(store, "negatives", rows)
    shown = printed("artifacts", "show", "mine/negatives")
    assert "a **cow [bold]eats\ufffd[31m** a ***" in shown.replace("\n", "")
    assert "0.81" in shown
    assert "0.8123" not in shown
    assert "\x1b" not in shown
    assert "checks" not in shown
    row = json.loads(printed("artifacts", "show", "mine/negatives", "--json"))
    assert (row["negative"], row["checks"]) == (text, ["template"])


def test_browse_writes_one_page_and_prints_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    build(Store(), "negatives", [], (build(Store(), "annotations", []),))
    assert printed("browse", "mine") == "mine.html\n"
    assert (root / "mine.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    message = "--output none/x.html can't be written (No such file or directory)"
    assert refusal("browse", "mine", "--output", "none/x.html") == message


@pytest.mark.parametrize("name", ["train[/x].jsonl", "train[link=http://a.example]x.jsonl"])
def test_the_name_of_an_input_file_is_no_markup(store: Store, name: str) -> None:
    work = Work("mine", "annotations", 1, inputs={name: "0" * 64})
    store.build(work, [lambda: Part(table_of("annotations", []), 0, 0)])
    assert name in penumbra("artifacts", "show", "mine/annotations").output


def test_a_server_that_does_not_answer_is_one_line_without_its_password(store: Store) -> None:
    with temporary_settings({PREFECT_API_URL: "http://me:geheim@127.0.0.1:9/api"}):
        message = refusal("run", "build-negatives", "scenes")
    assert message.startswith("no Prefect server answers at http://127.0.0.1:9/api (ConnectError)")
    assert store.find() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_says_that_it_can_go_on(
    number: int, code: int, prefect_server: None, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, usual))
    before = signal.getsignal(signal.SIGTERM)

    @flow
    def interrupted() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    with pytest.raises(SystemExit) as end, resumable():
        interrupted()
    assert end.value.code == code
    assert capsys.readouterr().err.endswith(INTERRUPTED)
    assert signal.getsignal(signal.SIGTERM) == before


IGNORING = """
import os, signal, time; from penumbra.flows import console
console.SECONDS_TO_END[signal.{0}] = 0.2
with console.resumable():
    signal.signal(signal.{0}, lambda *_: None)  # as Prefect has its own
    os.kill(os.getpid(), signal.{0}); time.sleep(60)
"""
WAITING = """
import os, signal, time; from penumbra.flows import commands
def wait(): os.kill(os.getpid(), signal.SIGINT); time.sleep(60)
signal.signal(signal.SIGINT, signal.default_int_handler); commands.app = wait; commands.main()
"""


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        (IGNORING.format("SIGTERM"), (143, INTERRUPTED)),
        (IGNORING.format("SIGINT"), (130, INTERRUPTED)),
        (WAITING, (130, "\n")),
    ],
    ids=["a run that ignores SIGTERM", "a run that ignores SIGINT", "a command"],
)
def test_a_signal_ends_a_process_without_a_traceback(program: str, ended: tuple[int, str]) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == ended


def test_a_foreign_file_is_refused_before_a_server_is_called(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penumbra.flows.server.start_early", lambda: None)
    monkeypatch.setattr("penumbra.flows.local_run.check_server", lambda: pytest.fail("a server was called"))
    (datasets / "mine").mkdir()
    (datasets / "mine" / "train.jsonl").write_text("query,start,end\n")
    assert "train.jsonl line 1 is no JSON object" in refusal("run", "build-negatives", "mine")


@pytest.mark.usefixtures("datasets")
def test_a_dry_run_lists_keys_and_makes_nothing(store: Store) -> None:
    lines = [line for line in printed("run", "full-pipeline", "scenes", "--dry-run").splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    keys = {stage: key for stage, state, key in cells if state == "would be made"}
    assert re.fullmatch("[0-9a-f]{16}", keys["negatives"])
    assert re.fullmatch("[0-9a-f]{16}", keys["text_features"])
    assert keys["evaluation"].startswith("after ")
    assert store.find() == []


@pytest.mark.parametrize(
    ("flow_name", "message"),
    [("train-grounding", "first: no scenes/text_features below"), ("evaluate-grounding", "run full-pipeline scenes")],
)
def test_a_dry_run_fails_where_the_run_would(store: Store, flow_name: str, message: str) -> None:
    done = penumbra("run", flow_name, "scenes", "--dry-run")
    assert done.exit_code == 1
    assert message in " ".join(done.stdout.replace("│", " ").split()), "also across lines"


@pytest.mark.parametrize("words", ["--help", "--version", "run --help", "artifacts ls", "check scenes"])
def test_a_quick_command_imports_nothing_heavy(tmp_path: Path, words: str) -> None:
    done = python(PROGRAM, *words.split(), PENUMBRA_ARTIFACTS=str(tmp_path), PENUMBRA_DATA=str(tmp_path))
    heavy = set(done.stderr.split())
    assert not heavy & {"prefect", "torch", "pandas"} if words.startswith("check") else not heavy
    assert done.stdout


def test_here_all_that_the_default_way_needs_works() -> None:
    shown = printed("doctor")
    assert "✗" not in shown
    for what in ("Python", "penumbra", "artifacts", "torch", "spaCy pipeline", "sentence encoder", "CLIP"):
        assert f" {what} " in shown


def test_each_fault_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENUMBRA_RUNS", str(tmp_path / "file" / "runs"))
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "s3://me:geheim@bucket/folder")
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 1 << 80)
    monkeypatch.setattr("penumbra.tasks.text.embeddings.PACKAGED", {})
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    with socket.socket() as listener, temporary_settings({PREFECT_API_URL: "http://me:geheim@127.0.0.1:9/api"}):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(server, "PORT", listener.getsockname()[1])
        found = {item: (mark, result, remedy) for mark, item, result, remedy in doctor.examine()}
        port = found[f"port {server.PORT}"]
    assert found["artifacts"] == (doctor.WORKS, "s3://bucket/folder (not checked)", "")
    assert port[0] == doctor.LACKS
    for item, mark, advice in (
        ("training runs", doctor.BROKEN, "name another folder with PENUMBRA_RUNS"),
        ("data sets", doctor.LACKS, "free some space, or name another folder with PENUMBRA_DATA"),
        ("sentence encoder", doctor.BROKEN, "pip install 'penumbra[offline]'"),
        ("PREFECT_API_URL", doctor.BROKEN, "unset PREFECT_API_URL to run without one"),
    ):
        assert (found[item][0], advice in found[item][2]) == (mark, True), item
    assert "geheim" not in str(found)
