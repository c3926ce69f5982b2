"""Locations of the code and of data. Each folder of data can be set by an environment variable.

In a checkout data lie next to the code, in `datasets/` and `artifacts/data/`. An installed package keeps them in the
user's data folder (`~/.local/share/penumbra` on Linux), never among the installed packages.
"""

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

PROJECT = Path(__file__).resolve().parents[1]  # holds flows/, tasks/, …: a checkout, or what pip installed
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()
DEPLOYMENTS = PROJECT / "flows" / "prefect.yaml"  # in a checkout a link to the file at the top
VARIABLES = ("PENUMBRA_DATA", "PENUMBRA_ARTIFACTS", "PENUMBRA_ANSWERS", "PENUMBRA_RUNS")


def data_folder() -> Path:
    """Return the folder with one folder of annotation files for each data set (PENUMBRA_DATA, or `datasets/`)."""
    default = (PROJECT if IS_CHECKOUT else user_data_path("penumbra")) / "datasets"
    return Path(os.environ.get("PENUMBRA_DATA") or default).expanduser()


def _default_artifacts() -> Path:
    return PROJECT / "artifacts" / "data" if IS_CHECKOUT else user_data_path("penumbra") / "artifacts"


def artifacts_root() -> str:
    """Return the folder or URL of the artifacts (PENUMBRA_ARTIFACTS, or `artifacts/data/`)."""
    return os.environ.get("PENUMBRA_ARTIFACTS") or str(_default_artifacts())


def _beside_artifacts(variable: str, name: str) -> Path:
    """Return the folder that a variable names, or `name` in the artifacts' root (the default root if it is a URL)."""
    root = artifacts_root()
    default = (_default_artifacts() if "://" in root else Path(root)) / name
    return Path(os.environ.get(variable) or default).expanduser()


def answers_folder() -> Path:
    """Return the folder of the cache of paid answers (PENUMBRA_ANSWERS, or `.answers` in the artifacts' root)."""
    return _beside_artifacts("PENUMBRA_ANSWERS", ".answers")


def runs_folder() -> Path:
    """Return the folder of the checkpoints of training runs (PENUMBRA_RUNS, or `.runs` in the artifacts' root)."""
    return _beside_artifacts("PENUMBRA_RUNS", ".runs")


def digests_file() -> Path:
    """Return the file, in the user's cache folder, that remembers the digests of files."""
    return user_cache_path("penumbra") / "digests.sqlite"


def server_folder(port: int) -> Path:
    """Return the folder of `penumbra serve` on a port, which holds secrets and which another shell must find."""
    return user_data_path("penumbra") / "server" / str(port)
