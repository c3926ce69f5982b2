"""The notebooks run from top to bottom, and come without the outputs of whoever wrote them."""

import json
import os
import sys
from pathlib import Path

import pytest
from penumbra.artifacts.settings import PROJECT
from penumbra.artifacts.store import Store

from tests.notebooks import execute

EXAMPLES = sorted((PROJECT / "examples").glob("*.ipynb"))
COMMAND = "#!{python}\nfrom penumbra.flows.commands import main\nmain()\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Folders of one's own, and this code's command first on the path."""
    command = tmp_path / "bin" / "penumbra"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    folders = {"PENUMBRA_ARTIFACTS": str(tmp_path / "artifacts"), "PENUMBRA_DATA": str(tmp_path / "datasets")}
    return {**os.environ, **folders, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("notebook", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_sentences_to_negatives(tmp_path: Path, environment: dict[str, str]) -> None:
    shown = execute(PROJECT / "examples" / "sentences_to_negatives.ipynb", sys.executable, tmp_path, environment)
    assert "similarity" in shown
    assert "<mask>" in shown
    store = Store(environment["PENUMBRA_ARTIFACTS"])
    assert len(store.find("kitchen", "negatives")) == 1, "the second call finds what the first built"
    assert len(store.find("sentences", "negatives")) == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_videos_to_a_model(tmp_path: Path, environment: dict[str, str]) -> None:
    shown = execute(PROJECT / "examples" / "videos_to_model.ipynb", sys.executable, tmp_path, environment)
    assert "30 videos rendered, 0 there already, 0 failed" in shown
    assert "test R1@0.5" in shown
    assert shown.count(" s, score ") == 3
