"""The command as users type it, and Python programs in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.flows.commands import app


def penumbra(*words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(words))


def printed(*words: str) -> str:
    done = penumbra(*words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout


def refusal(*words: str) -> str:
    """Return the message of a command that is refused, which is one line."""
    error = penumbra(*words).exception
    assert isinstance(error, PenumbraError), (words, error)
    assert "\n" not in str(error)
    return str(error)


def started(program: str, *words: str) -> subprocess.Popen[str]:
    """Start a program, whose lines can be read while it runs."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)


def python(program: str | Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program, or a file, to its end, with these variables of the environment."""
    start = ["-c", program] if isinstance(program, str) else [program]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, *start, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
