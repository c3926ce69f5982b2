"""Short forms of the campaigns of `make campaign`: kills, damage, damaged files, and payment."""

import os
import subprocess
import sys

import pytest

from bench.campaigns import corruption, fuzz
from penumbra.artifacts.locations import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_campaign(name: str, *options: str) -> list[list[str]]:
    """Run a campaign as users do; return the cells of its table without the header."""
    command = [sys.executable, "-m", f"bench.campaigns.{name}", *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # `penumbra` sets it
    ended = subprocess.run(
        command, check=False, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=880
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [line.strip("| ").split(" | ") for line in ended.stdout.splitlines()[2:]]


@pytest.mark.long
def test_killed_and_concurrent_runs_end_with_the_same_bytes() -> None:
    rows = run_campaign("kills", "--kills", "10", "--commands", "2", "--pairs", "1")
    assert [int(row[2]) > 0 for row in rows] == [True, True, True, False]


@pytest.mark.long
def test_damage_is_repaired_or_reported() -> None:
    outcomes = [row[-1] for row in run_campaign("corruption", "--every", "7")]
    assert len(outcomes) >= 10
    assert {corruption.SAME, corruption.STOPPED_WITH_MESSAGE} <= set(outcomes) <= set(corruption.GOOD)


@pytest.mark.long
def test_an_input_that_changes_never_gives_wrong_data() -> None:
    rows = run_campaign("inputs", "--cases", "3")
    assert [row[3:5] for row in rows] == [["0", "0"]] * 2


def test_nothing_is_paid_twice_and_no_limit_is_exceeded() -> None:
    rows = run_campaign("paying", "--pairs", "2", "--kills", "5", "--faults", "3")
    assert [int(row[1]) > 0 for row in rows] == [True] * 3


@pytest.mark.parametrize("suffix", ["npy", "npz", "h5"])
def test_damaged_feature_files(suffix: str) -> None:
    outcome = fuzz.import_batch(suffix, 0, 60)
    assert (outcome.cases, outcome.crashes, outcome.losses) == (60, 0, 0)
    assert len(outcome.reasons) > 2


def test_damaged_videos() -> None:
    outcome = fuzz.run_videos(20)
    assert (outcome.cases, outcome.crashes, outcome.losses) == (20, 0, 0)
    assert outcome.reasons["decoded"] < 20
