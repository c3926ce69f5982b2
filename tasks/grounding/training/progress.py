"""How far a training is, told after every evaluation to who watches it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Epochs that are done of those asked for, the rows of the `metrics` table so far, and the best figure so far.

    `best`, of the figure that `Training.chosen_by` names, is None where there is nothing to choose by. `seconds` are
    those of this process, which may have gone on where another was killed; at most `left` are to come.
    """

    epoch: int
    epochs: int
    history: list[Row]
    best: float | None
    seconds: float
    left: float
    chosen_by: str = "sum"

    def newest(self, split: str, name: str) -> float | None:
        """A figure of this epoch."""
        found = (row for row in reversed(self.history) if row["epoch"] == self.epoch)
        return next((row["value"] for row in found if (row["split"], row["name"]) == (split, name)), None)

    def line(self) -> str:
        """One line for a log."""
        chosen = self.newest("validation", "chosen_by")
        figure = "R1@0.5 + R1@0.7 + mIoU" if self.chosen_by == "sum" else self.chosen_by
        judged = f", chosen by {figure} {chosen:.2f} (best {self.best:.2f})" if None not in (chosen, self.best) else ""
        loss = self.newest("train", "total")
        shown = "" if loss is None else f": loss {loss:.4f}"
        return f"epoch {self.epoch} of {self.epochs}{shown}{judged}, {self.seconds:.0f} s, {self.left:.0f} s left"


Observer = Callable[[Progress], None]


def unobserved(progress: Progress) -> None:
    """Nobody watches."""


def together(*several: Observer) -> Observer:
    """All of them, one after the other."""

    def observe(progress: Progress) -> None:
        for one in several:
            one(progress)

    return observe
