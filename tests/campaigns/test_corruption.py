"""The short form of the campaign of damage: one kind of so many, as `make campaign` does all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from penumbra.artifacts.settings import PROJECT
from tests.campaigns import corruption
from tests.campaigns.flows import CRASHED, OK, STOPPED, Place

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def test_damage_is_mended_or_told() -> None:
    command = [sys.executable, "-m", "tests.campaigns.corruption", "--every", "7"]
    ended = subprocess.run(command, check=False, cwd=PROJECT, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcomes = [line.split(" | ")[-1].removesuffix(" |") for line in ended.stdout.splitlines()[2:]]
    assert len(outcomes) >= 10
    assert {corruption.MENDED, corruption.TOLD} <= set(outcomes) <= set(corruption.GOOD)


def test_a_loss_and_a_crash_would_be_counted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.store / ".runs").mkdir(parents=True)
    (place.store / ".runs" / "best.safetensors").write_bytes(b"1")
    kind, expected = corruption.Kind("", lambda _: None), place.tree()

    def outcome(code: int, told: str = "") -> str:
        return corruption.outcome(place, expected, kind, code, told)

    assert outcome(OK) == corruption.MENDED
    (place.store / ".runs" / "best.safetensors").write_bytes(b"2")
    assert outcome(OK) == corruption.LOST
    assert outcome(CRASHED, "Traceback") == corruption.CRASH
    assert outcome(STOPPED, "penumbra: it names no file") == corruption.CRASH
    assert outcome(STOPPED, f"penumbra: {tmp_path}/store is damaged") == corruption.TOLD
    assert len(list(corruption.kinds())) >= 30
