"""A small data set made of a few videos of `scenes`, and flows that are called on it as plain functions."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from penumbra.artifacts import prefect_ui
from penumbra.tasks.data.dataset import SHIPPED
from tests.rows import first_videos

COUNTS = {"train": 3, "test_trivial": 1, "novel_composition": 1}  # videos of each file


def cut_out(folder: Path, **counts: int) -> Path:
    """Write a data set of a few videos of `scenes` (of each file so many, or `COUNTS`) with annotations to a folder."""
    counts = counts or COUNTS
    first_videos(folder, **counts)
    (folder / "videos").mkdir(exist_ok=True)
    for vid in {vid for name in counts for vid in json.loads((folder / f"{name}.json").read_text())}:
        shutil.copy(SHIPPED / "videos" / f"{vid}.mp4", folder / "videos")
    return folder


@contextmanager
def without_prefect() -> Iterator[None]:
    """Call flows without Prefect, whose server does not affect any key: trainings show no live page."""
    with patch.object(prefect_ui, "has_pages", lambda: False):
        yield
