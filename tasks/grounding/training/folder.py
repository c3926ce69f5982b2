"""Where a training keeps its checkpoints: `PENUMBRA_RUNS`/DATASET/KEY, by the key of its `metrics`. No torch here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penumbra.artifacts.locations import runs_folder
from penumbra.artifacts.manifest import Artifact

SETTINGS = "settings.json"  # what the run was asked to do, written before its first epoch


def run_folder(metrics: Artifact) -> Path:
    """Where a run's checkpoints lie."""
    return runs_folder() / metrics.dataset / metrics.key


def run_folders(dataset: str | None = None) -> Iterator[Path]:
    """The folders of all runs, finished or not, of one data set or of all."""
    return (path.parent for path in sorted(runs_folder().glob(f"{dataset or '*'}/*/{SETTINGS}")))


def settings_in(folder: Path) -> dict[str, Any]:
    """What a run was asked to do, by group; empty where a kill left the file unfinished."""
    return dict(_read(folder / SETTINGS).get("settings", {}))


def last_epoch(folder: Path) -> int:
    """How many epochs of a run are kept."""
    return int(_read(folder / "last.json").get("epoch", 0))


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
