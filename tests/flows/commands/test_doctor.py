"""`penumbra doctor`: what it reports of faults, and how to correct them."""

import socket
from importlib import import_module
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from penumbra.flows import server
from tests.terminal import printed

pytestmark = pytest.mark.slow

doctor = import_module("penumbra.flows.commands.doctor")  # `commands.doctor` is the command


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
    remedy = "name another folder with PENUMBRA_RUNS"
    assert found["training runs"] == (doctor.BROKEN, f"{tmp_path}/file/runs can't be written to", remedy)
    assert found["artifacts"] == (doctor.WORKS, "s3://bucket/folder (not asked)", "")
    assert found["data sets"][::2] == (doctor.LACKS, "free some space, or name another folder with PENUMBRA_DATA")
    assert found["sentence encoder"][0] == doctor.BROKEN
    assert "pip install 'penumbra[offline]'" in found["sentence encoder"][2]
    assert port[0] == doctor.LACKS
    answer = "no Prefect server answers at http://127.0.0.1:9/api (ConnectError)"
    remedy = "start it, or unset PREFECT_API_URL to run without one"
    assert found["PREFECT_API_URL"] == (doctor.BROKEN, answer, remedy)
