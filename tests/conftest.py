"""What all tests share: Prefect kept to a temporary folder, an empty store, the shipped tagger, the real data."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from spacy.language import Language

from penumbra.artifacts.settings import PROJECT
from penumbra.artifacts.store import Store

HOME = tempfile.mkdtemp(prefix="penumbra-tests-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ.update(  # before anything imports prefect, which reads them once
    PREFECT_HOME=HOME,
    PREFECT_API_URL="",
    PREFECT_LOGGING_LEVEL="WARNING",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    HF_HUB_OFFLINE="1",
)


# Folders and files whose tests start processes, train, render or decode for seconds
SLOW = {
    "campaigns",
    "commands",
    "decoding",
    "docs",
    "examples",
    "families",
    "penumbra",
    "sample",
    "training",
    "test_asking",
    "test_background",
    "test_batch",
    "test_causal",
    "test_choosing",
    "test_diagnosis",
    "test_gemini",
    "test_limits",
    "test_llama",
    "test_llama_server",
    "test_protocol_server",
    "test_protocol_server_services",
    "test_processes",
    "test_provider_from_outside",
    "test_quality",
    "test_quality_measures",
    "test_report",
    "test_server",
    "test_serving",
    "test_store_s3",
    "test_wheel",
}


# Files whose tests take minutes together; single ones elsewhere say so themselves
LONG = {
    "examples",
    "test_ablation",
    "test_clusters",
    "test_language_models",
    "test_planning",
    "test_provider_from_outside",
    "test_scenes_rendered",
    "test_serving",
    "test_stage_ahead",
    "test_tiny_clip",
    "test_wheel",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Prefect server, or seconds, as slow, minutes as long, and the published figures as golden."""
    tests = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(tests)
        if "prefect_server" in getattr(item, "fixturenames", ()) or SLOW & {*place.parts, place.stem}:
            item.add_marker(pytest.mark.slow)
        if LONG & {*place.parts, place.stem}:
            item.add_marker(pytest.mark.long)
        if "golden" in item.path.parts:
            item.add_marker(pytest.mark.golden)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real annotations and golden numbers that lies beside the project."""
    folder = PROJECT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip(f"needs the real data: no {folder.name}/data beside the project")
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, which is also the one that `Store()` opens."""
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "artifacts"))
    return Store()


@pytest.fixture(scope="session")
def nlp() -> Language:
    """The shipped spaCy pipeline."""
    from penumbra.tasks.text.tags import load_pipeline  # only here: it imports prefect

    return load_pipeline("penumbra")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server with a database of its own, for the tests that run flows."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
