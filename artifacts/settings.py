"""Where things are: four environment variables, read when they are needed."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    """The folder that holds one folder of annotation files a data set (`PENUMBRA_DATA`, default `datasets/`)."""
    return Path(os.environ.get("PENUMBRA_DATA") or PROJECT / "datasets").expanduser()


def artifacts_root() -> str:
    """The folder or URL that artifacts are written to (`PENUMBRA_ARTIFACTS`, default `artifacts/data/`)."""
    return os.environ.get("PENUMBRA_ARTIFACTS") or str(PROJECT / "artifacts" / "data")


def answers_folder() -> Path:
    """The folder of the paid answers' cache (`PENUMBRA_ANSWERS`, default `.answers` in the artifacts' folder).

    It is always on a disk: where the artifacts lie on an object store it stays in the project's own folder.
    """
    root = artifacts_root()
    beside = PROJECT / "artifacts" / "data" if "://" in root else Path(root).expanduser()
    return Path(os.environ.get("PENUMBRA_ANSWERS") or beside / ".answers").expanduser()


def runs_folder() -> Path:
    """The folder of the checkpoints of training runs (`PENUMBRA_RUNS`, default `.runs` in the artifacts' folder).

    It is always on a disk: where the artifacts lie on an object store it stays in the project's own folder.
    """
    root = artifacts_root()
    beside = PROJECT / "artifacts" / "data" if "://" in root else Path(root).expanduser()
    return Path(os.environ.get("PENUMBRA_RUNS") or beside / ".runs").expanduser()
