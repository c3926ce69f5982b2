"""`build-negatives` with the language models: real Prefect, real client libraries, a stand-in for the services."""

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.system import Secret
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_SERVER_DATABASE_CONNECTION_URL

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.build_negatives import build_negatives
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.fills import SUBSTITUTED
from penumbra.tasks.negatives.in_video_negatives import InVideoNegatives
from penumbra.tasks.negatives.providers import load_prompt
from penumbra.tasks.negatives.providers.answers import BudgetError
from penumbra.tasks.negatives.providers.hosted import ServiceError
from penumbra.tasks.negatives.providers.settings import Filling, Gemini, HostedSettings, OpenAI
from penumbra.tasks.negatives.report import Rejected
from penumbra.tasks.negatives.selection import ChosenNegatives
from penumbra.tasks.stage import Stage, run
from penumbra.tasks.text.embeddings import Embeddings
from tests.hosted import MODELS, asked_lines, quick, running, settings_of  # noqa: F401 (running is a fixture)
from tests.markup import published
from tests.protocol_server import ProtocolServer
from tests.rows import first_videos

pytestmark = pytest.mark.long

VIDEOS = 4
CANARIES = {"OPENAI_API_KEY": "sk-canary-openai-4711", "GEMINI_API_KEY": "AIza-canary-gemini-4711"}
RUN = """
import json, logging, sys
from penumbra.flows.build_negatives import build_negatives
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.providers.settings import Filling
logging.basicConfig(level=logging.DEBUG)
build_negatives(Dataset(name="corner", folder=sys.argv[1]), filling=Filling(**json.loads(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_videos(tmp_path_factory.mktemp("corner"), train=VIDEOS, test_trivial=2)


@pytest.fixture(scope="module")
def tagged(folder: Path, module_store: Store, prefect_server: None) -> str:
    """The root of a store with everything up to the masks, for each test to begin with a copy of."""
    build_negatives(Dataset(name="corner", folder=str(folder)))
    return module_store.root


@pytest.fixture
def server(running: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> ProtocolServer:  # noqa: F811
    return quick(running, monkeypatch, CANARIES)


@pytest.fixture
def store(tagged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    root = tmp_path / "artifacts"
    shutil.copytree(tagged, root)
    shutil.rmtree(root / ".answers", ignore_errors=True)
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(root))
    return Store()


class Corner:
    """Runs the flow on the corner with the stand-in as all services, and finds what it made."""

    def __init__(self, folder: Path, store: Store, server: ProtocolServer, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.store, self.server, self.patch = folder, store, server, patch
        self.made: list[Artifact] = []

    def cut_short(self) -> None:
        """Leave out the stages after the fills, which most tests are not about."""

        def run_until_fills(stage: Stage) -> Artifact | None:
            if isinstance(stage, ChosenNegatives):
                self.made = list(stage.fills)
                return self.made[0]
            return None if isinstance(stage, (Embeddings, InVideoNegatives, Rejected)) else run(stage)

        self.patch.setattr("penumbra.flows.build_negatives.run", run_until_fills)
        self.patch.setattr("penumbra.tasks.negatives.quality.report.report_quality", lambda *_: None)
        self.patch.setattr("penumbra.flows.build_negatives.report_negatives", lambda *_: "cut short")

    def filling(self, *providers: str, **settings: Any) -> Filling:
        hosted = {name: settings_of(name, self.server, **settings.pop(name, {})) for name in MODELS}
        return Filling(**{"providers": providers, "candidates": 1, "queries_a_request": 4, **hosted, **settings})

    def run(self, *providers: str, **settings: Any) -> Artifact:
        dataset = Dataset(name="corner", folder=str(self.folder))
        return build_negatives(dataset, filling=self.filling(*providers, **settings)).negatives

    def fills(self, made: Artifact) -> list[dict[str, Any]]:
        """The rows of all fills that a run made, or that these negatives were chosen from."""
        parents = self.made or [parent for parent in self.store.manifest(made).parents if parent.stage == "fills"]
        return [row for parent in parents for row in self.store.table(parent).to_pylist()]

    def levels(self) -> set[tuple[str, int]]:
        masks = self.store.table(self.store.newest("corner", "masks"))
        return set(zip(masks["qid"].to_pylist(), masks["level"].to_pylist(), strict=True))

    def lines(self, **where: Any) -> Counter[str]:
        return asked_lines(self.server, **where)


@pytest.fixture
def whole(folder: Path, store: Store, server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> Corner:
    return Corner(folder, store, server, monkeypatch)


@pytest.fixture
def corner_of(whole: Corner) -> Corner:
    whole.cut_short()
    return whole


def places(rows: list[dict[str, Any]], **where: Any) -> Counter[tuple[str, int]]:
    return Counter((row["qid"], row["level"]) for row in rows if where.items() <= row.items())


def test_every_level_is_filled_and_the_same_run_again_sends_nothing(whole: Corner) -> None:
    negatives = whole.run("openai")
    rows = whole.fills(negatives)
    assert places(rows, status="filled") == dict.fromkeys(whole.levels(), 1)
    prompt = load_prompt("fill-slots-1", "queries").label
    assert {(row["provider"], row["model"], row["prompt"]) for row in rows} == {("openai", "gpt-4o-mini", prompt)}
    assert not any(row["cached"] for row in rows)
    assert set(whole.lines().values()) == {1}
    answered = whole.server.requests()
    paid = whole.server.charged()
    assert (sum(row["prompt_tokens"] for row in rows), sum(row["completion_tokens"] for row in rows)) == paid
    assert math.fsum(row["cost_usd"] for row in rows) == pytest.approx((10 * paid[0] + 100 * paid[1]) / 1e6)
    assert whole.run("openai") == negatives
    assert len(whole.server.requests()) == len(answered)


def test_a_data_set_that_has_grown_asks_only_for_what_is_new(corner_of: Corner, tmp_path: Path) -> None:
    corner_of.run("openai")
    before, old = corner_of.lines(), {qid for qid, _ in corner_of.levels()}
    folder = first_videos(tmp_path / "grown", train=VIDEOS + 2, test_trivial=2)
    grown = Corner(folder, corner_of.store, corner_of.server, corner_of.patch)
    grown.cut_short()
    rows = grown.fills(grown.run("openai"))
    new = {qid for qid, _ in grown.levels()} - old
    assert new
    later = grown.lines() - before
    assert len(new) <= sum(later.values()) <= 2 * len(new), "a query has a question, or two where levels repeat"
    assert {row["qid"] for row in rows if not row["cached"]} == new
    corner_of.run("openai")
    assert grown.lines() - before == later, "and nothing when it has shrunk again"


def test_what_no_provider_fills_is_taken_from_corpus_and_marked(corner_of: Corner) -> None:
    corner_of.server.script({"do": "refusal", "when": {"after": 3}})
    rows = corner_of.fills(corner_of.run("openai"))
    filled = places(rows, provider="openai", status="filled")
    assert filled
    lacking = corner_of.levels() - set(filled)
    assert lacking
    assert set(places(rows, provider="corpus", status="filled")) == lacking
    assert {row["problem"] for row in rows if row["provider"] == "corpus"} == {SUBSTITUTED}
    refused = [row for row in rows if row["provider"] == "openai" and row["status"] == "failed"]
    assert {row["problem"] for row in refused} == {"model refused"}
    assert {row["attempts"] for row in refused} == {1, 2, 3}
    assert all(row["negative"] is None and row["words"] == [] for row in refused)


def test_a_dry_run_sends_nothing_and_tells_the_price(corner_of: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CANARIES:
        monkeypatch.delenv(name)
    asked = {"openai": {"base_url": None}, "gemini": {"base_url": None}}
    corner_of.run("openai", "gemini", dry_run=True, **asked)
    assert corner_of.server.requests() == []
    page = published("report-corner-dry-run")["report-corner-dry-run"]
    chains = len({qid for qid, _ in corner_of.levels()})
    for model in ("gpt-4o-mini", "gemini-2.5-flash"):
        cells = [cell.strip() for line in page.splitlines() if model in line for cell in line.split("|")]
        assert int(cells[cells.index(model) + 1].replace(",", "")) >= chains
        assert float(cells[cells.index(model) + 5]) > 0


def test_what_was_not_answered_is_marked_and_asked_for_by_the_next_run(corner_of: Corner) -> None:
    corner_of.server.script({"do": "quota", "when": {"after": 3}})
    first = corner_of.fills(corner_of.run("openai"))
    unanswered = places(first, status="failed", problem="not answered yet")
    assert unanswered
    assert set(places(first, provider="corpus")) == set(unanswered)
    corner_of.server.script()
    second = corner_of.fills(corner_of.run("openai"))
    assert places(second, status="filled") == dict.fromkeys(corner_of.levels(), 1)
    assert {row["provider"] for row in second} == {"openai"}
    assert set(corner_of.lines(status=200).values()) == {1}
    assert Counter(row["cached"] for row in second)[True] == len(places(first, provider="openai", status="filled"))


def test_where_nobody_answers_the_run_says_so_and_makes_nothing_up(corner_of: Corner) -> None:
    corner_of.server.script({"do": "status", "status": 401})
    before = len(corner_of.store.find("corner"))
    with pytest.raises(ServiceError, match=r"openai: status 401.*gemini: status 401"):
        corner_of.run("openai", "gemini")
    assert len(corner_of.store.find("corner")) == before


def test_a_key_may_come_from_a_secret_block(corner_of: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CANARIES:
        monkeypatch.delenv(name)
    Secret(value="sk-canary-block").save("my-block", overwrite=True)
    corner_of.run("openai", openai={"key_block": "my-block"})
    assert {request["key"] for request in corner_of.server.requests()} == {"sk-canary-block"}


def test_the_budget_ends_the_run_keeps_the_answers_and_says_how_to_go_on(corner_of: Corner) -> None:
    with pytest.raises(BudgetError, match=r"max_cost_usd.*run again"):
        corner_of.run("openai", max_cost_usd=0.07)
    prompt, completion = corner_of.server.charged()
    assert 0 < (10 * prompt + 100 * completion) / 1e6 <= 0.07
    rows = corner_of.fills(corner_of.run("openai", max_cost_usd=10.0))
    assert set(corner_of.lines().values()) == {1}
    assert places(rows, status="filled") == dict.fromkeys(corner_of.levels(), 1)


def test_a_budget_for_a_model_without_a_price_is_refused(corner_of: Corner) -> None:
    with pytest.raises(PenumbraError, match="price"):
        corner_of.run("openai", max_cost_usd=0.000001, openai={"price": None, "model": "someones-own"})
    assert corner_of.server.requests() == []


def holding(secret: bytes, roots: list[Path]) -> list[Path]:
    files = [path for root in roots for path in (root.rglob("*") if root.is_dir() else [root]) if path.is_file()]
    return [path for path in files if secret in path.read_bytes()]


def test_no_key_is_written_anywhere(corner_of: Corner, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Runs that go well, that go wrong and that fail, with errors that repeat the key."""
    caplog.set_level(logging.INFO)
    keys = " ".join(CANARIES.values())
    leaky = {"message": f"Incorrect API key provided: {keys}.", "code": f"no {keys}", "retry_after_ms": 10}
    leaky["headers"] = {"x-your-key": keys}
    corner_of.run("openai", "gemini")
    wrong = {500: 5, 400: 7, 429: 9}
    faults = [{"do": "status", "status": status, "when": {"every": n}, **leaky} for status, n in wrong.items()]
    corner_of.server.script(*faults, {"do": "status", "status": 401, "when": {"after": 30}, **leaky})
    filling, output = corner_of.filling("openai", "gemini", seed=5, queries_a_request=2), tmp_path / "output"
    loud = {"PREFECT_LOGGING_LEVEL": "DEBUG", "OPENAI_LOG": "debug", "PREFECT_LOGGING_EXTRA_LOGGERS": "openai,urllib3"}
    command = [sys.executable, "-c", RUN, str(corner_of.folder), filling.model_dump_json()]
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), **loud}
    with output.open("wb") as file:  # a process of its own, which says everything that it can
        ended = subprocess.run(command, env=environment, stdout=file, stderr=file, timeout=280, check=False)
    assert ended.returncode == 0, output.read_text()[-3_000:]
    corner_of.server.script({"do": "status", "status": 401, **leaky, "code": CANARIES["OPENAI_API_KEY"]})
    with pytest.raises(ServiceError):
        corner_of.run("openai", "gemini", seed=6)
    assert {*wrong, 401} <= {request["status"] for request in corner_of.server.requests()}
    database = Path(str(PREFECT_SERVER_DATABASE_CONNECTION_URL.value()).split("///")[1])
    written = [database.parent, Path(str(PREFECT_HOME.value())), output, tmp_path / "artifacts"]
    assert holding(b"openai: stopped: status 401", written[:1]), "the log is in the database"
    assert holding(b"gpt-4o-mini", [tmp_path / "artifacts" / ".answers"]), "the answers are in the artifacts' folder"
    assert b"DEBUG" in output.read_bytes()
    for key in CANARIES.values():
        assert holding(key.encode(), written) == []
        assert key not in caplog.text


@pytest.mark.parametrize("settings", [OpenAI, Gemini])
@pytest.mark.parametrize("address", ["http://user:canary-4711@host/v1", "http://host/v1?key=canary-4711"])
def test_a_secret_address_is_in_no_manifest(
    settings: type[HostedSettings], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked is among the parameters of `fills`, so in its manifest."""
    monkeypatch.setenv(settings.address_variable, address)
    try:
        asked = settings().cache_key("prompt")  # type: ignore[call-arg]
    except (PenumbraError, ValueError):
        return
    assert "canary-4711" not in json.dumps(asked)
