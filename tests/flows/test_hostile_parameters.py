"""Hostile parameters end in one line, and text of unknown origin does not steer the terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaigns.parameters import BOMB, escapes_shown, run_cases
from penumbra.artifacts.markdown import CONTROLS
from penumbra.artifacts.store import Store
from penumbra.flows.commands import main

pytestmark = pytest.mark.slow


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which a command ends."""
    monkeypatch.setattr(sys, "argv", ["penumbra", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert not CONTROLS.search(line)
    return line


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
    alone = {**os.environ, "PREFECT_LOGGING_TO_API_ENABLED": "false"}
    done = subprocess.run([sys.executable, "-c", program], env=alone, capture_output=True, text=True, check=True)
    assert "model \N{REPLACEMENT CHARACTER}31m" in done.stderr
    assert "ValueError" in done.stderr
    assert not CONTROLS.search(done.stderr)


@pytest.mark.parametrize(
    ("flow", "pairs", "message"),
    [
        ("train-grounding", ["model=mmn"], "model is a group of parameters: did you mean model.name=mmn?"),
        ("train-grounding", ["training=1"], "did you mean training.NAME=1?"),
        ("train-grounding", ["training=1", "training.epochs=2"], "has both training and training.epochs"),
        ("build-negatives", ["choosing.ceiling=!!int ''"], "is refused: it has a tag, an anchor or an alias"),
        ("build-negatives", ["choosing.ceiling=*a"], "is refused: it has a tag, an anchor or an alias"),
        ("build-negatives", ["choosing.ceiling=" + "[" * 2000], "is refused: it has more than 20 levels"),
        ("build-negatives", ["choosing.ceiling=2001-13-45"], "choosing.ceiling: Input should be a valid number"),
        ("build-negatives", ["filling.seed=" + "9" * 5000], "filling.seed: "),
        ("build-negatives", ["spacy_model=\x1b]0;x\x07"], "is refused: it has the control character U+001B"),
        ("build-negatives", ["spacy_model=\u202eabc"], "is refused: it has the control character U+202E"),
    ],
)
def test_a_refusal_names_the_cause(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flow: str,
    pairs: list[str],
    message: str,
) -> None:
    words = [f"--param={pair}" for pair in pairs]
    assert message in refusal(monkeypatch, capsys, "run", flow, "scenes", "--dry-run", *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "line 1 is no YAML of parameters (it has a tag, an anchor or an alias"),
        ("seed: 1\nseed: 2\n", "line 2 is no YAML of parameters (it has a name twice"),
        ("a: \x1b[31m", "it has the control character U+001B"),
        ("x" * 200_000, "it has more than 100,000 characters"),
    ],
)
def test_a_hostile_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "x.yaml").write_text(text)
    words = ("run", "build-negatives", "scenes", "--dry-run", "--config", str(tmp_path / "x.yaml"))
    assert message in refusal(monkeypatch, capsys, *words)
