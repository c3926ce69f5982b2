"""A small data set made of a few videos of `scenes`, and flows that run on it without Prefect."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prefect import Task

from penumbra.flows import build_negatives, evaluate_grounding, extract_features, full_pipeline, train_grounding
from penumbra.tasks import stage
from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.grounding.training import stage as training_stage
from tests.rows import first_videos

COUNTS = {"train": 3, "test_trivial": 1, "novel_composition": 1}  # videos of each file
REPORTS = {build_negatives: "negatives", extract_features: "features", train_grounding: "training"}
REPORTS |= {evaluate_grounding: "evaluation", full_pipeline: "evaluation"}


def cut_out(folder: Path) -> Path:
    """Write a data set of a few videos of `scenes` with their annotations to a folder."""
    first_videos(folder, **COUNTS)
    (folder / "videos").mkdir(exist_ok=True)
    for vid in {vid for name in COUNTS for vid in json.loads((folder / f"{name}.json").read_text())}:
        shutil.copy(SHIPPED / "videos" / f"{vid}.mp4", folder / "videos")
    return folder


@contextmanager
def without_prefect() -> Iterator[None]:
    """Run flows without Prefect, whose server does not affect any key."""

    def directly(task: Task[Any, Any], *arguments: Any, **options: Any) -> Any:
        return task.fn(*arguments, **options)

    with ExitStack() as stack:
        for thing, name, other in (
            (Task, "__call__", directly),
            (stage, "publish_stage", lambda *_: None),
            (training_stage, "progress_shown", lambda *_: nullcontext(lambda progress: None)),
            *((flow, f"report_{what}", lambda *_: "") for flow, what in REPORTS.items()),
        ):
            stack.enter_context(patch.object(thing, name, other))
        yield
