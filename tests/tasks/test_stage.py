"""A stage that leaves nothing of what it was given fails; how much time is left; its bars in a terminal."""

import logging
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store, Work
from penumbra.flows.console import SafeConsole, bars_on
from penumbra.tasks import progress
from penumbra.tasks import stage as stages
from penumbra.tasks.stage import Stage, build
from tests import rows


@dataclass(frozen=True)
class Chosen(Stage):
    """A stage that chooses from fills, of which there are none."""

    name = "rejected"
    version = 1

    fills: Artifact

    def part(self, piece: Any) -> Part:
        return Part(table_of("rejected", []), 0, 0)


def test_a_stage_without_rows_names_what_rejected_them(store: Store) -> None:
    fills = rows.build(store, "masks", [], rejected=[("q1", "no word", ""), ("q2", "no word", "")])
    for _ in range(2):  # the second time it is there
        reason = r"rejected: nothing is left of 2 queries; main reason \(2 ×\): no word; .*/masks/"
        with pytest.raises(PenumbraError, match=reason):
            stages.make.fn(Chosen(fills))
    nothing = rows.build(store, "masks", [], parameters={"given": "nothing"})
    assert store.manifest(stages.make.fn(Chosen(nothing))).rows == 0, "a stage that was given nothing may leave nothing"


def test_without_bars_the_log_tells_how_much_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = count(step=20)
    monkeypatch.setattr(progress, "monotonic", lambda: next(seconds))
    with caplog.at_level(logging.INFO, "penumbra"), progress.progress_scope("fills"):
        tick = progress.counting("queries", 5000, before=1000)
        for _ in range(4):
            tick(1000)
    assert caplog.messages == ["fills: 3,000 of 5,000 queries", "fills: 5,000 of 5,000 queries"]


def test_a_terminal_shows_what_is_counted_by_stage_and_unit() -> None:
    screen, bars = StringIO(), bars_on(SafeConsole(width=100, force_terminal=True, color_system=None))
    bars.live.console.file = screen
    with progress.bars_shown(bars), progress.progress_scope("tags\x1b[31m"):
        tick = progress.counting("texts", 20)
        for _ in range(20):
            bars.refresh()
            tick(1)
        assert [task.completed for task in bars.tasks] == [20]
    assert bars.tasks == [], "a stage's bars go with it"
    assert "1/20 texts" in screen.getvalue()
    assert "tags\N{REPLACEMENT CHARACTER}[31m" in screen.getvalue()


def part(size: int) -> Part:
    return Part(table_of("rejected", [rejection("q", "masks", "no word")] * size), size, size)


def test_the_time_left_is_that_of_the_rows_that_are_left_of_a_parent_in_another_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere, seconds = Store(str(tmp_path / "elsewhere")), count(step=30)
    counts = (0, 3, 1, 0)  # an empty part tells nothing
    fills = elsewhere.build(Work("toy", "rejected", 1), [partial(part, number) for number in counts])
    monkeypatch.setattr(stages, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(stages, "logger", lambda: logging.getLogger("stages"))
    monkeypatch.setattr(stages, "FEW_ROWS", 0)
    with caplog.at_level(logging.INFO, "stages"):
        build(Chosen(fills))
    assert caplog.messages == [f"rejected: part {done} of 4, about {left} s left" for done, left in ((2, 20), (3, 0))]
