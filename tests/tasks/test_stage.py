"""A stage that leaves nothing of what it was given fails; how much time is left; its bars in a terminal."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import flow

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, WrittenPart, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store, Work
from penumbra.flows.console import SafeConsole, bars_on
from penumbra.tasks import progress
from penumbra.tasks import stage as stages
from penumbra.tasks.stage import Stage, build, run


@dataclass(frozen=True)
class Fills(Stage):
    """A stage that may be empty; it rejects two of its queries."""

    name = "masks"
    version = 1
    may_be_empty = True
    dataset = "toy"
    pieces = (0,)

    taken: int

    def parameters(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def determines(self) -> dict[str, Any]:
        return self.parameters()

    def part(self, piece: Any) -> Part:
        rejected = [rejection(str(number), "masks", "no word", "") for number in range(self.taken)]
        return Part(table_of("masks", []), self.taken, 0, rejected)


@dataclass(frozen=True)
class Chosen(Stage):
    """A stage that chooses from fills, of which there are none."""

    name = "rejected"
    version = 1

    fills: Artifact

    def part(self, piece: Any) -> Part:
        return Part(table_of("rejected", []), 0, 0)


@flow
def made(taken: int) -> Artifact:
    return run(Chosen(run(Fills(taken))))


def test_a_stage_without_rows_names_what_rejected_them(store: Store, prefect_server: None) -> None:
    for _ in range(2):  # the second run finds both artifacts made
        reason = r"rejected: nothing is left of 2 queries; most often \(2 ×\): no word; .*/masks/"
        with pytest.raises(PenumbraError, match=reason):
            made(2)
    assert store.manifest(made(0)).rows == 0, "a stage that was given nothing may leave nothing"


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


def part(rows: int) -> Part:
    return Part(table_of("rejected", [rejection("q", "masks", "no word")] * rows), rows, rows)


@pytest.mark.parametrize(
    ("by_workers", "rows", "left"),
    [(False, (0, 3, 1, 0), {2: 20, 3: 0}), (True, (1, 3, 0, 4), {1: 30, 2: 36, 3: 0})],  # an empty part tells nothing
)
def test_the_time_left_is_that_of_the_rows_that_are_left_of_a_parent_in_another_store(
    by_workers: bool,
    rows: tuple[int, ...],
    left: dict[int, int],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def made_by(pool: Any, stage: Stage, missing: list[int]) -> Iterator[WrittenPart]:
        assert missing == [0, 1, 2, 3]
        for index in (3, 0, 1, 2):
            yield store.write(stage.artifact, index, stage.part(index), stage.work.files)

    elsewhere, seconds = Store(str(tmp_path / "elsewhere")), count(step=30)
    fills = elsewhere.build(Work("toy", "rejected", 1), [partial(part, number) for number in rows])
    monkeypatch.setattr(stages, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(stages, "logger", lambda: logging.getLogger("stages"))
    monkeypatch.setattr(stages, "workers", lambda: SimpleNamespace(remote=True) if by_workers else None)
    monkeypatch.setattr(stages, "_made_by", made_by)
    monkeypatch.setattr(stages, "FEW_ROWS", 0)
    with caplog.at_level(logging.INFO, "stages"):
        build(Chosen(fills))
    assert caplog.messages == [f"rejected: part {done} of 4, about {it} s left" for done, it in left.items()]
