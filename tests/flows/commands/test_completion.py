"""Completion in a shell, and what a quick command must not import."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penumbra.flows.commands import completion
from penumbra.tasks.grounding.training.presets import presets

pytestmark = pytest.mark.slow

HEAVY = {"torch", "prefect", "pandas", "pyarrow", "numpy", "transformers", "spacy", "sklearn", "mlflow", "httpx"}
PROGRAM = f"""
import sys
sys.argv[0] = "penumbra"  # the shell asks the command by its name
from penumbra.flows.commands import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sorted({HEAVY!r} & set(sys.modules))))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a data set, two artifacts and a training."""
    for folder in ("data/mine", "artifacts/mine/masks/00ff", "artifacts/scenes/tags/ab12", "artifacts/.answers"):
        (tmp_path / folder).mkdir(parents=True)
    run = tmp_path / "runs/mine/ab12cd34ef567890"
    run.mkdir(parents=True)
    settings = {"settings": {"model": {"name": "mmn", "losses": {"shine": True}}}}
    (run / "settings.json").write_text(json.dumps(settings))
    folders = {f"PENUMBRA_{name.upper()}": str(tmp_path / name) for name in ("data", "artifacts", "runs")}
    return {**os.environ, **folders}


def run(environment: dict[str, str], *words: str, light: bool = True) -> str:
    """Return the output of the command; unless it is a `light` one it may import anything."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not light or done.stderr == "", done.stderr
    return done.stdout


def completed(environment: dict[str, str], line: str, light: bool = True) -> list[str]:
    """Return what zsh is offered at the end of a line."""
    asked = {"_PENUMBRA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    return re.findall(r'\(?"([^":]+)"(?::"[^"]*")?', run({**environment, **asked}, light=light))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penumbra run ext", ["extract-features"]),
        ("penumbra run train-grounding charades-cg-mm", ["charades-cg-mmn"]),
        ("penumbra artifacts show m", ["mine/"]),
        ("penumbra artifacts path mine/masks/", ["mine/masks/00ff"]),
        ("penumbra predict v.mp4 cat --run ", ["mmn+shine-ab12cd"]),
        ("penumbra export ", ["mine", "scenes"]),
        ("penumbra run train-grounding scenes --param preset=scenes-mmn-", ["preset=scenes-mmn-shine"]),
    ],
)
def test_names_are_completed(environment: dict[str, str], line: str, offered: list[str]) -> None:
    assert completed(environment, line) == offered


def test_parameters_and_their_values_are_completed(environment: dict[str, str]) -> None:
    line = "penumbra run train-grounding scenes --param "
    assert "training.epochs=" in completed(environment, f"{line}training.", light=False)
    chosen = [f"training.chosen_by={value}" for value in ("mIoU", "mAP")]
    assert completed(environment, f"{line}training.chosen_by=m", light=False) == chosen


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(environment: dict[str, str], shell: str) -> None:
    assert f"complete_{shell}" in run({**environment, "_PENUMBRA_COMPLETE": f"source_{shell}"})


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["artifacts", "ls"]])
def test_a_quick_command_imports_nothing_heavy(environment: dict[str, str], words: list[str]) -> None:
    assert run(environment, *words)


def test_all_presets_are_completed() -> None:
    assert set(completion.presets()) == set(presets())
