"""The notebooks have no outputs, and the one on videos runs; `tests/test_wheel.py` runs the other."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from penumbra.artifacts.locations import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLES = sorted((PROJECT / "examples").glob("*.ipynb"))
COMMAND = "#!{python}\nfrom penumbra.flows.commands import main\nmain()\n"
PROGRAM = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=600, resources={"metadata": {"path": "."}}).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", ()):
        print(output.get("text") or output["data"]["text/plain"])
"""


def execute(notebook: Path, python: Path | str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run all cells; return what they print and show. A cell that fails is an error that names it."""
    command = [str(python), "-c", PROGRAM, str(notebook)]
    done = subprocess.run(
        command, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables with empty folders, and a path that begins with this checkout's command."""
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


@pytest.mark.timeout(1200)
def test_from_videos_to_a_model(tmp_path: Path, environment: dict[str, str]) -> None:
    shown = execute(PROJECT / "examples" / "videos_to_model.ipynb", sys.executable, tmp_path, environment)
    assert "30 videos" in shown
    assert "test R1@0.5" in shown
    assert shown.count(" s, score ") == 3
