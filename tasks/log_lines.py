"""Which lines of Prefect's log people see on a terminal; the Prefect UI keeps all of them."""

import logging

from penumbra.artifacts.errors import PenumbraError


class _OneLine(logging.Filter):
    """Takes the traceback from log records of faults that are not the code's: their message says what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], PenumbraError):
            record.exc_info, record.told_at_the_end = None, True
        return True


class _Once(logging.Filter):
    """Keeps back what the command says at its end, and how each task ended, of which a line of its own tells more."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (hasattr(record, "told_at_the_end") or record.getMessage().startswith("Finished in state "))


def quieten() -> None:
    """Show this process's lines on the terminal once, and what is wrong outside the code without a traceback."""
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler

    setup_logging()  # as the flow would: now its handlers are there
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_OneLine())
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(_Once())
