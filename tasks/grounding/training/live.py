"""A training as people see it while it goes on: a line in the log an evaluation, and curves in the Prefect UI."""

from time import monotonic

from httpx import HTTPError
from prefect import get_run_logger

from penumbra.artifacts.document import Document
from penumbra.artifacts.interface import LiveReport
from penumbra.tasks.grounding.training.curves import curves_section
from penumbra.tasks.grounding.training.progress import Progress
from penumbra.tasks.progress import beside

FLOW = "train-grounding"
PUBLISH_EVERY = 5.0  # seconds between two updates of the page: each is a call to the API


class Watcher:
    """An `Observer`. A server that can't be reached costs the page, not the training."""

    def __init__(self, dataset: str, run: str) -> None:
        self.run, self.logger = run, get_run_logger()
        self._report = LiveReport(dataset, FLOW)
        self._last: float | None = None

    def __call__(self, progress: Progress) -> None:
        """Log and show how far a training is."""
        self.logger.info("%s: %s", self.run, progress.line(), extra=beside(progress.line()))
        if self._last is None or monotonic() - self._last >= PUBLISH_EVERY:
            page = Document(f"{self.run} is being trained", progress.line(), [curves_section(progress.history)])
            try:
                self._report.show(page.markdown())
            except (HTTPError, RuntimeError) as error:  # Prefect raises either
                self.logger.warning("the page of %s could not be shown (%s); training goes on", self.run, error)
            self._last = monotonic()
