"""The notebooks come without outputs; that on videos runs from top to bottom, the other in `tests/test_wheel.py`."""

import json
import os
import sys
from pathlib import Path

import pytest

from penumbra.artifacts.locations import PROJECT
from tests.notebooks import execute

pytestmark = [pytest.mark.slow, pytest.mark.long]

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
def test_from_videos_to_a_model(tmp_path: Path, environment: dict[str, str]) -> None:
    shown = execute(PROJECT / "examples" / "videos_to_model.ipynb", sys.executable, tmp_path, environment)
    assert "30 videos" in shown
    assert "test R1@0.5" in shown
    assert shown.count(" s, score ") == 3
