"""A training as people see it while it goes on: a line in the log an evaluation, and curves in the Prefect UI."""

from time import monotonic
from typing import Self

from prefect import get_run_logger

from penumbra.artifacts.document import Document
from penumbra.artifacts.prefect_ui import LiveArtifact
from penumbra.tasks.grounding.training.curves import curves_section
from penumbra.tasks.grounding.training.progress import Progress
from penumbra.tasks.progress import stage_log_extra

FLOW = "train-grounding"
PUBLISH_EVERY = 5.0  # seconds between two updates of the page: each is a call to the API


class Watcher:
    """An `Observer`; its page is gone when the training is over, and a report is in its place."""

    def __init__(self, dataset: str, run: str) -> None:
        self.run, self.logger = run, get_run_logger()
        self._page = LiveArtifact("markdown", dataset, FLOW)
        self._last: float | None = None

    def __enter__(self) -> Self:
        self._page.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self._page.__exit__(*reason)

    def __call__(self, progress: Progress) -> None:
        """Log and show how far a training is."""
        self.logger.info("%s: %s", self.run, progress.line(), extra=stage_log_extra(progress.line()))
        if self._last is None or monotonic() - self._last >= PUBLISH_EVERY:
            page = Document(f"{self.run} is being trained", progress.line(), [curves_section(progress.history)])
            self._page.show(page.markdown())
            self._last = monotonic()
