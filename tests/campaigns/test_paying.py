"""The short form of the campaign about money: it runs as `make campaign` does, with fewer of everything."""

import subprocess
import sys

import pytest

from penumbra.artifacts.settings import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_in_bad_weather_nothing_is_paid_twice_and_no_limit_exceeded() -> None:
    command = [sys.executable, "-m", "tests.campaigns.paying", "--pairs", "2", "--kills", "5", "--storms", "3"]
    ended = subprocess.run(command, check=False, cwd=PROJECT, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cases = [line.split(" | ")[1] for line in ended.stdout.splitlines()[2:]]
    assert [int(number) > 0 for number in cases] == [True] * 4
