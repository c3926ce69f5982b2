"""What a quick command must not import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAVY = {"torch", "prefect", "pandas", "pyarrow", "numpy", "transformers", "spacy", "sklearn", "mlflow", "httpx"}
PROGRAM = f"""
import sys
from penumbra.flows.commands import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sorted({HEAVY!r} & set(sys.modules))))
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["artifacts", "ls"]])
def test_a_quick_command_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    environment = {**os.environ, "PENUMBRA_ARTIFACTS": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout
