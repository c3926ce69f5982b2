"""Hostile parameters end in one line, and text of unknown origin does not steer the terminal."""

import pytest

from bench.campaigns.parameters import escapes_shown, run_cases
from penumbra.artifacts.markdown import CONTROLS
from penumbra.artifacts.store import Store
from tests.terminal import python

pytestmark = pytest.mark.slow


def test_hostile_parameters_are_accepted_or_refused_with_one_line(store: Store) -> None:
    outcomes = run_cases(0, 100)
    assert outcomes.keys() <= {"accepted", "refused"}, outcomes


def test_no_escape_sequence_reaches_a_terminal() -> None:
    assert set(escapes_shown().values()) == {0}


def test_prefects_own_log_lines_are_cleaned() -> None:
    """Lines of a run that a worker of Prefect started, in whose process no command of ours runs."""
    program = (
        "import logging\nfrom penumbra.flows.import_negatives import import_negatives\n"
        "from prefect.logging.configuration import setup_logging\nsetup_logging()\n"
        "try:\n    import_negatives.fn(None)\nexcept Exception:\n    pass\n"
        "try:\n    raise ValueError('\\x1b]0;x\\x07')\n"
        "except ValueError:\n    logging.getLogger('penumbra').exception('model %s', '\\x9b31m')"
    )
    said = python(program, PREFECT_LOGGING_TO_API_ENABLED="false").stderr
    assert "model \N{REPLACEMENT CHARACTER}31m" in said
    assert "ValueError" in said
    assert not CONTROLS.search(said)
