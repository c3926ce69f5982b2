"""A provider of another package, found by its entry point, fills a corner of the sample and is chosen from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from penumbra.artifacts.store import Store
from penumbra.tasks.data.dataset import SHIPPED

pytestmark = [pytest.mark.slow, pytest.mark.long]

OUTSIDE = Path(__file__).parents[1] / "outside"
VIDEOS = 12
RUN = """
import sys
from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.parameters import in_full
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.parameters import QualityConfig

filling = Filling.model_validate({"providers": ["echo", "corpus"], "candidates": 2, "plugins": {"echo": {"place": 1}}})
build_negatives(Dataset(name="corner", folder=sys.argv[1]), filling=filling, judging=QualityConfig(judge=False))
print(in_full("build-negatives", "all"))
"""


def python(code: str, *arguments: str, path: list[Path], **environment: str) -> str:
    """What a fresh interpreter prints, with these folders on its path."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search = os.pathsep.join([*map(str, path), *filter(None, known)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment, "PYTHONPATH": search},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What pip leaves of a package that names a provider."""
    information = tmp_path / "site" / "echo-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[penumbra.providers]\necho = echo_provider:Echo\n")
    return information.parent


def test_an_installed_provider_fills_a_corner_of_the_sample(
    installed: Path, prefect_server: None, tmp_path: Path
) -> None:
    folder = tmp_path / "corner"
    folder.mkdir()
    for name in ("train", "test_trivial"):
        videos = json.loads((SHIPPED / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps(dict(list(videos.items())[:VIDEOS])))
    root = tmp_path / "artifacts"
    server = str(PREFECT_API_URL.value())
    shown = python(RUN, str(folder), path=[installed, OUTSIDE], PENUMBRA_ARTIFACTS=str(root), PREFECT_API_URL=server)
    assert "filling.plugins" in shown
    store = Store(str(root))
    echo, _ = sorted(store.find("corner", "fills"), key=lambda manifest: manifest.parameters["provider"] != "echo")
    assert echo.parameters == {"provider": "echo", "candidates": 1, "seed": 0, "place": 1}
    filled = {row["qid"] for row in store.table(store.reference(echo)).to_pylist() if row["status"] == "filled"}
    assert len(filled) > VIDEOS
    chosen = store.table(store.newest("corner", "negatives")).to_pylist()
    assert {"echo", "corpus"} == {row["provider"] for row in chosen}
    assert {row["model"] for row in chosen if row["provider"] == "echo"} == {"echo-1"}


def test_a_package_that_cannot_be_imported_is_named(installed: Path) -> None:
    (installed / "echo-1.0.dist-info" / "entry_points.txt").write_text("[penumbra.providers]\necho = no_such:Echo\n")
    code = """
from penumbra.artifacts.errors import PenumbraError
try:
    from penumbra.tasks.negatives.filling import Filling, provider_class
    Filling(providers=["echo"])
    provider_class("echo")
except PenumbraError as error:
    print(error)
"""
    assert "provider 'echo' of echo cannot be imported (ModuleNotFoundError" in python(code, path=[installed])
