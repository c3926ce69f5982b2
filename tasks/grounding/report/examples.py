"""The queries that a report shows, chosen without chance: the best, the middle and the worst of those that can be.

For Figure 6 of SHINE they are ordered by how clearly mean saliency inside the moment falls from the positive over the
three hard negatives to a random text; for Figure 7, in each split, by the overlap of the first window with the truth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.examples import LEVELS, clip_range
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.evaluation.figures import aligned
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.metrics.ordering import NAMES
from penumbra.tasks.grounding.metrics.retrieval import score_queries
from penumbra.tasks.grounding.training.run import load_run, run_name, split_rows
from penumbra.tasks.grounding.training.settings import Settings

STAGE = "report"
CANDIDATES = 200  # held-out queries that are looked at for Figure 6
PLACES = (("best", 0.0), ("middle", 0.5), ("worst", 1.0))
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A query of the `annotations` table with the texts that its video is seen under, by their name."""

    row: Row
    texts: dict[str, str]


class RunOnData:
    """A run's model with the features that it was trained on, and all queries of the data set."""

    def __init__(self, metrics: Artifact, sources: Sources) -> None:
        self.model, self.settings = load_run(metrics)
        self.name = run_name(self.settings, metrics.key)
        self.loaded = load(sources, self.settings.inputs)
        self.system = system_of(self.settings)

    def saliency(self, examples: Sequence[Example]) -> list[dict[str, np.ndarray]]:
        """Saliency [clips] of each example's video under each of its texts that has features; none for some models."""
        rows = [
            {**example.row, "qid": f"{number} {name}", "query": text}
            for number, example in enumerate(examples)
            for name, text in example.texts.items()
        ]
        found: list[dict[str, np.ndarray]] = [{} for _ in examples]
        prepared = self.loaded.prepare(rows, STAGE)
        if not len(prepared):
            return found
        device = device_of(self.settings.training.device)
        data = self.system.data(prepared, self.loaded.videos, self.loaded.texts, device)
        for prediction in self.system.predict(self.model.to(device), data):
            number, _, name = prediction.qid.partition(" ")
            if len(prediction.saliency):
                found[int(number)][name] = prediction.saliency
        return found

    @property
    def clip_length(self) -> float:
        """Seconds of a clip."""
        return self.loaded.videos.clip_length


def ordering_candidates(loaded: Loaded, settings: Settings) -> tuple[str, list[Example]]:
    """Queries with all hard negatives that were "held-out" of training, or "training" ones where none were.

    The random text is the query of the next one of them that has another video.
    """
    train, validation = split_rows(loaded, settings)
    held_out = _with_negatives(validation, loaded)
    several = held_out or _with_negatives(train, loaded)
    several = several[:: max(1, len(several) // CANDIDATES)][:CANDIDATES]
    found = []
    for number, row in enumerate(several):
        others = (other for other in several[number + 1 :] + several[:number] if other["vid"] != row["vid"])
        other = next(others, None)
        levels = loaded.negatives[row["qid"]]
        texts = {NAMES[0]: row["query"], **{NAMES[level]: levels[level] for level in range(1, LEVELS + 1)}}
        found.append(Example(row, texts | ({NAMES[-1]: other["query"]} if other else {})))
    return "held-out" if held_out else "training", found


def _with_negatives(rows: Sequence[dict[str, Any]], loaded: Loaded) -> list[dict[str, Any]]:
    return [row for row in rows if len(loaded.negatives.get(row["qid"], {})) == LEVELS and row["windows"]]


def steepness(example: Example, saliency: Mapping[str, np.ndarray], clip_length: float) -> float:
    """The smallest of the falls of mean saliency inside the moment from each text to the next; NaN without any.

    It is above 0 where the order is right as a whole.
    """
    if any(name not in saliency for name in example.texts):
        return float("nan")
    clips = len(saliency[NAMES[0]])
    inside = np.zeros(clips, bool)
    for start, end in example.row["windows"]:
        first, last = clip_range(start, end, clips, clip_length)
        inside[first : last + 1] = True
    means = [float(saliency[name][inside].mean()) for name in NAMES if name in saliency]
    return float(np.min(-np.diff(means))) if len(means) > 1 else float("nan")


def pick(values: Sequence[float]) -> Iterator[tuple[str, int]]:
    """The place (best, middle, worst) and the number of those with the highest, the middle and the lowest value.

    NaN is left out, and so is who was named before; equals come in their order.
    """
    numbers = [number for number, value in enumerate(values) if np.isfinite(value)]
    order = sorted(numbers, key=lambda number: -values[number])
    seen = set[int]()
    for name, share in PLACES:
        if order:
            number = order[round(share * (len(order) - 1))]
            if number not in seen:
                seen.add(number)
                yield name, number


def overlap_examples(
    predictions: Mapping[str, Row], annotations: Mapping[str, Row], end: float | None
) -> Iterator[tuple[str, str, str, float]]:
    """(split, place, qid, IoU of the first window) for each split of the rows of `predictions`, by qid.

    `end`: see `Ranking.truth_ends`.
    """
    for split in dict.fromkeys(row["split"] for row in predictions.values()):
        judged = [row for row in predictions.values() if row["split"] == split and annotations[row["qid"]]["windows"]]
        windows = aligned(judged, annotations, end)
        if not windows.qids:
            continue
        overlaps = score_queries(windows).iou.tolist()
        for place, number in pick(overlaps):
            yield split, place, windows.qids[number], overlaps[number]
