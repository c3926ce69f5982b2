"""The short form of the campaign of kills: it runs as `make campaign` does, with fewer of everything."""

import subprocess
import sys

import pytest

from penumbra.artifacts.settings import PROJECT

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def test_killed_anywhere_and_twice_at_once_the_bytes_are_the_same() -> None:
    command = [sys.executable, "-m", "tests.campaigns.kills", "--kills", "5", "--commands", "0", "--pairs", "1"]
    ended = subprocess.run(command, check=False, cwd=PROJECT, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    kills = [int(line.split(" | ")[2]) for line in ended.stdout.splitlines()[2:]]
    assert [number > 0 for number in kills] == [True, True, False, False]
