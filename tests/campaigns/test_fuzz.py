"""The short form of the campaign: `python -m tests.campaigns.fuzz` is the long one."""

import numpy as np
import pytest

from tests.campaigns import fuzz

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("suffix", ["npy", "npz", "h5"])
def test_damaged_feature_files(suffix: str) -> None:
    outcome = fuzz.import_batch(suffix, 0, 60)
    assert (outcome.cases, outcome.crashes, outcome.losses) == (60, 0, 0)
    assert len(outcome.reasons) > 2


def test_damaged_videos() -> None:
    outcome = fuzz.run_videos(20)
    assert (outcome.cases, outcome.crashes, outcome.losses) == (20, 0, 0)
    assert outcome.reasons["decoded"] < 20


def test_a_crash_and_a_loss_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "import_part", lambda *_: 1 / 0)
    assert fuzz.import_batch("npy", 0, 3).crashes == 3
    monkeypatch.undo()
    monkeypatch.setattr(fuzz, "MATRIX", np.zeros((10, 6), np.float32))
    monkeypatch.setattr(fuzz, "_matrices", lambda rows: [np.ones((10, 6))] * len(rows))
    assert fuzz.import_batch("npz", 0, 3).losses >= 3
