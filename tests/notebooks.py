"""Run notebooks as users do, with a given Python and in a given folder."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

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
