"""How far the making of a stage is, inside its parts too, told to who watches: the live display of a terminal.

    for query in followed(queries, "queries", len(queries)):
        ...

News are records of a log of their own that nobody keeps: the Prefect UI does not show them, and where nobody watches
they cost a comparison. They carry what they tell as `record.progress_event`, so that a line of the usual log can, too.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic
from typing import Any, TypeVar

LOG = logging.getLogger("penumbra.progress")
EVERY = 0.2  # seconds between two news of one count

T = TypeVar("T")


class State(Enum):
    """What a stage does."""

    running = auto()
    part_done = auto()
    failed = auto()
    closed = auto()
    reused = auto()
    made = auto()


@dataclass(frozen=True)
class ProgressEvent:
    """`done` of `total`: parts, or where a `unit` is given such units of a `part`, or without one of the whole stage.

    What is counted `aside` is no measure of the part: it is some of the work, or is done several times.
    `counts` are units in and out, and seconds, of a stage that is there.
    """

    stage: str
    state: State = State.running
    done: int = 0
    total: int = 0
    unit: str = ""
    part: int | None = None
    aside: bool = False
    text: str = ""
    counts: tuple[int, int, float] = (0, 0, 0.0)

    def as_log_extra(self) -> dict[str, Any]:
        """What a line of a log that says the same takes as `extra`."""
        return {"progress_event": self}


_PLACE: ContextVar[tuple[str, int | None]] = ContextVar("place", default=("", None))
HERE = -1  # the part that this process makes, one after the other


@contextmanager
def progress_scope(stage: str, part: int | None = None) -> Iterator[None]:
    """Inside, what is counted is of this stage, or of one part of it that a worker makes."""
    token, state = _PLACE.set((stage, part)), State.failed if part is None else State.part_done
    LOG.info("%s", stage, extra=ProgressEvent(stage, part=part).as_log_extra())
    try:
        yield
        state = State.closed if part is None else State.part_done
    finally:
        LOG.info("%s: %s", stage, state.name, extra=ProgressEvent(stage, state, part=part).as_log_extra())
        _PLACE.reset(token)


def stage_log_extra(text: str) -> dict[str, Any]:
    """What a line of the usual log takes as `extra` that a display shows beside the stage, not among its lines."""
    stage, part = _PLACE.get()
    return ProgressEvent(stage, part=part, text=text).as_log_extra() if stage else {}


def uncounted(number: int) -> None:
    """Nobody counts."""


def counting(
    unit: str, total: int, *, before: int = 0, whole: bool = False, aside: bool = False
) -> Callable[[int], None]:
    """Return a function that takes the number of further units done, of a part or of the whole stage.

    A worker knows of its part alone, and counts for that.

    `before` were done when the count began. Told at most every `EVERY` seconds.
    """
    stage, part = _PLACE.get()
    if not stage or not LOG.isEnabledFor(logging.INFO):
        return uncounted
    place = part if part is not None else None if whole else HERE
    done, last = before, -EVERY

    def tick(number: int) -> None:
        nonlocal done, last
        done += number
        now = monotonic()
        if now - last >= EVERY or done >= total:
            last = now
            event = ProgressEvent(stage, done=done, total=total, unit=unit, part=place, aside=aside)
            LOG.info("%s: %d of %d %s", stage, done, total, unit, extra=event.as_log_extra())

    tick(0)
    return tick


def followed(items: Iterable[T], unit: str, total: int) -> Iterator[T]:
    """The same items; each is counted when the next one is asked for."""
    tick = counting(unit, total)
    for item in items:
        yield item
        tick(1)
