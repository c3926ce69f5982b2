"""Nothing but warnings, in a notebook: no lines of Prefect's log, no bars of weights that are loaded."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence() -> Iterator[None]:
    """Show warnings only, on the terminal; the Prefect UI keeps its lines."""
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler
    from transformers.utils import logging as progress

    setup_logging()  # as a flow would: now its handlers are there
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {one for logger in loggers for one in logger.handlers if isinstance(one, PrefectConsoleHandler)}
    before = {handler: handler.level for handler in handlers}
    bars = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    for handler in handlers:
        handler.setLevel(max(handler.level, logging.WARNING))
    try:
        yield
    finally:
        for handler, level in before.items():
            handler.setLevel(level)
        if bars:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
