"""Where things are: the code, and four places for data, each named by an environment variable read when it is needed.

In a checkout data lie beside the code, in `datasets/` and `artifacts/data/`. An installed package keeps them in the
user's data folder (`~/.local/share/penumbra` on Linux), never among the installed packages.
"""

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

PROJECT = Path(__file__).resolve().parents[1]  # holds flows/, tasks/, …: a checkout, or what pip installed
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()
DEPLOYMENTS = PROJECT / "flows" / "prefect.yaml"  # a link, in a checkout, to the file at the top

VARIABLES = ("PENUMBRA_DATA", "PENUMBRA_ARTIFACTS", "PENUMBRA_ANSWERS", "PENUMBRA_RUNS")


def data_home() -> Path:
    """The folder that holds all data unless a variable says otherwise."""
    return PROJECT if IS_CHECKOUT else user_data_path("penumbra")


def data_folder() -> Path:
    """The folder that holds one folder of annotation files a data set (`PENUMBRA_DATA`, default `datasets/`)."""
    return Path(os.environ.get("PENUMBRA_DATA") or data_home() / "datasets").expanduser()


def artifacts_root() -> str:
    """The folder or URL that artifacts are written to (`PENUMBRA_ARTIFACTS`, default `artifacts/data/`)."""
    return os.environ.get("PENUMBRA_ARTIFACTS") or str(_own_artifacts())


def answers_folder() -> Path:
    """The folder of the paid answers' cache (`PENUMBRA_ANSWERS`, default `.answers` in the artifacts' folder)."""
    return Path(os.environ.get("PENUMBRA_ANSWERS") or _beside_artifacts() / ".answers").expanduser()


def digests_file() -> Path:
    """The file, in the user's cache folder, that remembers the digests of files."""
    return user_cache_path("penumbra") / "digests.sqlite"


def runs_folder() -> Path:
    """The folder of the checkpoints of training runs (`PENUMBRA_RUNS`, default `.runs` in the artifacts' folder)."""
    return Path(os.environ.get("PENUMBRA_RUNS") or _beside_artifacts() / ".runs").expanduser()


def server_folder(port: int) -> Path:
    """The folder of `penumbra serve` on a port: its database, and the credential of the last start.

    It is in the user's data folder from wherever one serves, for it holds secrets, and another shell must find it.
    """
    return user_data_path("penumbra") / "server" / str(port)


def _own_artifacts() -> Path:
    return data_home() / "artifacts" / "data" if IS_CHECKOUT else data_home() / "artifacts"


def _beside_artifacts() -> Path:
    """The artifacts' folder; where they lie on an object store the default one, for this must be on a disk."""
    root = artifacts_root()
    return _own_artifacts() if "://" in root else Path(root).expanduser()
