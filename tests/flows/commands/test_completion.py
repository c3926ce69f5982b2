"""Completion in a shell, and what a quick command must not import."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAVY = {"torch", "prefect", "pandas", "pyarrow", "numpy", "transformers", "spacy", "sklearn", "mlflow", "httpx"}
PROGRAM = f"""
import sys
sys.argv[0] = "penumbra"  # the shell asks the command by its name
from penumbra.flows.commands import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sorted({HEAVY!r} & set(sys.modules))))
"""


def run(folder: Path, *words: str, **variables: str) -> str:
    """Return the output of the command, which must import nothing heavy."""
    (folder / "data" / "mine").mkdir(parents=True, exist_ok=True)
    folders = {"PENUMBRA_DATA": str(folder / "data"), "PENUMBRA_ARTIFACTS": str(folder / "artifacts")}
    command = [sys.executable, "-c", PROGRAM, *words]
    environment = {**os.environ, **folders, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.parametrize(("line", "offered"), [("run ext", ["extract-features"]), ("export ", ["scenes", "mine"])])
def test_names_are_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    asked = {"_PENUMBRA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"penumbra {line}"}
    shown = run(tmp_path, **asked)
    assert re.findall(r'\(?"([^":]+)"(?::"[^"]*")?', shown) == offered


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["artifacts", "ls"]])
def test_a_quick_command_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    assert run(tmp_path, *words)
