"""A provider of another package, registered by an entry point: the one of docs/extending.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from penumbra.artifacts.store import Store
from tests.docs.test_extending import code_of
from tests.rows import first_videos

pytestmark = [pytest.mark.slow, pytest.mark.long]

VIDEOS = 12
RUN = """
import sys
from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.parameters import in_full
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.parameters import QualityConfig

plugins = {"fixed": {"place": 1}}
filling = Filling.model_validate({"providers": ["fixed", "corpus"], "candidates": 2, "plugins": plugins})
build_negatives(Dataset(name="corner", folder=sys.argv[1]), filling=filling, judging=QualityConfig(judge=False))
print(in_full("build-negatives", "all"))
"""


def python(code: str, *arguments: str, path: list[Path], **environment: str) -> str:
    """Return the output of a new interpreter with these folders on its path."""
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
    """Return a folder of packages with the provider of docs/extending.md, as pip installs it."""
    information = tmp_path / "site" / "my_package-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[penumbra.providers]\nfixed = my_package:Fixed\n")
    (information.parent / "my_package.py").write_text(code_of("A provider"))
    return information.parent


def test_an_installed_provider_fills_a_corner_of_the_sample(
    installed: Path, prefect_server: None, tmp_path: Path
) -> None:
    folder = first_videos(tmp_path / "corner", train=VIDEOS, test_trivial=VIDEOS)
    root = tmp_path / "artifacts"
    server = str(PREFECT_API_URL.value())
    shown = python(RUN, str(folder), path=[installed], PENUMBRA_ARTIFACTS=str(root), PREFECT_API_URL=server)
    assert "filling.plugins" in shown
    store = Store(str(root))
    fixed, _ = sorted(store.find("corner", "fills"), key=lambda manifest: manifest.parameters["provider"] != "fixed")
    assert fixed.parameters == {"provider": "fixed", "candidates": 1, "seed": 0, "place": 1}
    filled = {row["qid"] for row in store.table(store.reference(fixed)).to_pylist() if row["status"] == "filled"}
    assert len(filled) > VIDEOS
    chosen = store.table(store.newest("corner", "negatives")).to_pylist()
    assert {"fixed", "corpus"} == {row["provider"] for row in chosen}
    assert {row["model"] for row in chosen if row["provider"] == "fixed"} == {"fixed-1"}


def test_a_package_that_cannot_be_imported_is_named(installed: Path) -> None:
    (installed / "my_package-1.0.dist-info" / "entry_points.txt").write_text(
        "[penumbra.providers]\nfixed = no_such:Fixed\n"
    )
    code = """
from penumbra.artifacts.errors import PenumbraError
try:
    from penumbra.tasks.negatives.filling import Filling, provider_class
    Filling(providers=["fixed"])
    provider_class("fixed")
except PenumbraError as error:
    print(error)
"""
    assert "provider 'fixed' of my_package cannot be imported (ModuleNotFoundError" in python(code, path=[installed])
