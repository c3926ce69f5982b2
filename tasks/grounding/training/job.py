"""Everything that a training needs, apart from where its data came from: it can travel to other processes."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.metrics.retrieval import retrieval_metrics, score_queries
from penumbra.tasks.grounding.metrics.windows import align
from penumbra.tasks.grounding.training.settings import Settings

CHECKPOINTS = ("last", "best")


@dataclass(frozen=True)
class Job:
    """Training and validation queries with their features (on the CPU), the settings, and the run's folder.

    `truth` gives the windows of the validation queries in seconds. `weights` are those to start from.
    """

    settings: Settings
    train: Examples
    validation: Examples
    truth: dict[str, list[list[float]]]
    videos: Features
    texts: Features
    folder: Path
    weights: dict[str, torch.Tensor] | None = None

    def described(self) -> str:
        """The settings and the features' widths as JSON, written beside the checkpoints."""
        widths = {"video": self.videos.channels, "text": self.texts.channels}
        return json.dumps({"settings": self.settings.model_dump(mode="json"), "features": widths}, indent=1)


def judge(predictions: list[Prediction], truth: dict[str, list[list[float]]], settings: Settings) -> dict[str, float]:
    """Retrieval metrics of the validation queries, and under "chosen_by" what the best epoch is chosen by."""
    known = {p.qid: p.windows.tolist() for p in predictions if truth.get(p.qid)}
    windows = align(known, {qid: truth[qid] for qid in known}).until(settings.ranking.truth_ends)
    figures = retrieval_metrics(score_queries(windows))
    chosen_by = settings.training.chosen_by
    total = figures["R1@0.5"] + figures["R1@0.7"] + figures["mIoU"]
    figures["chosen_by"] = total if chosen_by == "sum" else figures[chosen_by]
    return figures


def held_out_videos(videos: list[str], share: float, seed: int) -> set[str]:
    """Videos to validate on, drawn by seed: whole videos, so that no validation video is trained on."""
    distinct = sorted(set(videos))
    count = min(len(distinct) - 1, round(share * len(distinct)))
    if share and len(distinct) > 1:
        count = max(count, 1)
    chosen = np.random.default_rng(seed).permutation(len(distinct))[: max(count, 0)]
    return {distinct[i] for i in chosen}
