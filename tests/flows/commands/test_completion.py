"""What a shell completes, asked as a shell asks, and what a quick command may not import."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penumbra.flows import completion
from penumbra.flows import parameter_help as parameters
from penumbra.flows.registry import FLOWS
from penumbra.tasks.grounding.training.presets import presets

pytestmark = pytest.mark.slow

HEAVY = {"torch", "prefect", "pandas", "pyarrow", "numpy", "transformers", "spacy", "sklearn", "mlflow", "httpx"}
ASKED = f"""
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
    """Of a user with a data set, two artifacts and a training, and a cache folder of their own."""
    for folder in ("data/mine", "artifacts/mine/masks/00ff", "artifacts/scenes/tags/ab12", "artifacts/.answers"):
        (tmp_path / folder).mkdir(parents=True)
    run = tmp_path / "runs/mine/ab12cd34ef567890"
    run.mkdir(parents=True)
    settings = {"settings": {"model": {"name": "mmn", "losses": {"shine": True}}}}
    (run / "settings.json").write_text(json.dumps(settings))
    places = {f"PENUMBRA_{name.upper()}": str(tmp_path / name) for name in ("data", "artifacts", "runs")}
    return {**os.environ, **places, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def answered(environment: dict[str, str], *words: str, asks: dict[str, str]) -> str:
    """What the command answers, with nothing heavy imported."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *words], env={**environment, **asks}, capture_output=True, text=True, check=False
    )
    assert done.stderr == "", done.stderr
    return done.stdout


def completed(environment: dict[str, str], line: str) -> list[str]:
    """What zsh is offered at the end of a line."""
    asks = {"_PENUMBRA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    return re.findall(r'\(?"([^":]+)"(?::"[^"]*")?', answered(environment, asks=asks))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penumbra run ext", ["extract-features"]),
        ("penumbra run build-negatives m", ["mine"]),
        ("penumbra run train-grounding charades-cg-mm", ["charades-cg-mmn"]),
        ("penumbra artifacts show m", ["mine/"]),
        ("penumbra artifacts show mine/", ["mine/masks"]),
        ("penumbra artifacts path mine/masks/", ["mine/masks/00ff"]),
        ("penumbra artifacts ls ", ["mine", "scenes"]),
        ("penumbra runs show mm", ["mmn+shine-ab12cd"]),
        ("penumbra predict v.mp4 cat --run ", ["mmn+shine-ab12cd"]),
        ("penumbra export ", ["mine", "scenes"]),
        ("penumbra run train-grounding scenes --log t", ["tensorboard"]),
    ],
)
def test_names_are_completed(environment: dict[str, str], line: str, offered: list[str]) -> None:
    assert completed(environment, line) == offered


def test_parameters_and_their_values_are_completed_once_a_flow_was_described(environment: dict[str, str]) -> None:
    line = "penumbra run train-grounding scenes --param training."
    assert completed(environment, line) == []  # and now it is described, in a process of its own
    kept = Path(environment["XDG_CACHE_HOME"]) / "penumbra" / "parameters-train-grounding.json"
    deadline = time.monotonic() + 400  # on a very busy machine
    while not kept.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "training.epochs=" in completed(environment, line)
    assert completed(environment, f"{line}chosen_by") == [
        f"training.chosen_by={value}" for value in ("sum", "mIoU", "mAP", "R1@0.7")
    ]
    assert completed(environment, f"{line}chosen_by=m") == ["training.chosen_by=mIoU", "training.chosen_by=mAP"]
    assert "preset=scenes-mmn" in completed(environment, "penumbra run train-grounding scenes --param preset=scenes-m")
    told = answered(environment, "run", "train-grounding", "--help", asks={})
    assert "training: How to train." in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(environment: dict[str, str], shell: str) -> None:
    script = answered(environment, asks={"_PENUMBRA_COMPLETE": f"source_{shell}"})
    assert f"complete_{shell}" in script


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["artifacts", "ls", "--help"]])
def test_a_help_text_imports_nothing_heavy(environment: dict[str, str], words: list[str]) -> None:
    assert answered(environment, *words, asks={})


def test_a_list_of_artifacts_imports_no_reader_of_tables(environment: dict[str, str]) -> None:
    assert answered(environment, "artifacts", "ls", asks={}).startswith("No artifact below")


def test_what_was_described_is_taken_for_the_same_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_file", lambda flow: tmp_path / "cache" / f"{flow}.json")
    monkeypatch.setattr(parameters, "describe", lambda flow: [parameters.Group(flow, "one", ())])
    assert parameters.kept_groups("ablation") is None
    assert parameters.groups_of("ablation") == parameters.kept_groups("ablation")
    monkeypatch.setattr(parameters, "_digest", lambda: "of other code")
    assert parameters.kept_groups("ablation") is None
    (tmp_path / "cache" / "ablation.json").write_text("rubbish")
    assert parameters.kept_groups("ablation") is None


def test_presets_are_those_that_there_are() -> None:
    assert set(completion.presets()) == set(presets())
    assert set(completion.flows("")) == set(FLOWS)
