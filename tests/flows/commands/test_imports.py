"""What a quick command must not import."""

from pathlib import Path

import pytest

from tests.terminal import python

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
    done = python(PROGRAM, *words, PENUMBRA_ARTIFACTS=str(tmp_path))
    assert done.stderr == ""
    assert done.stdout
