"""A small data set in a store, of any texts: queries, negatives, fills, what was refused, and a run's predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store

Row = dict[str, Any]
DATASET = "mine"


def annotation(qid: str, query: str, split: str = "train", **others: Any) -> Row:
    usual = {"vid": qid[:2], "duration": 20.0, "windows": [[5.0, 10.0]], "novel": [], "saliency": None}
    return {"qid": qid, "query": query, "split": split, **usual, **others}


def negative(qid: str, level: int, text: str, query: str = "a query", **others: Any) -> Row:
    usual = {"words": [], "provider": "corpus", "model": "words", "similarity": 1 - level / 4, "plausibility": -0.5}
    return {"qid": qid, "level": level, "query": query, "negative": text, **usual, "checks": ["template"], **others}


def filled(qid: str, level: int, query: str | None, provider: str = "openai") -> Row:
    return {
        "qid": qid,
        "level": level,
        "provider": provider,
        "model": "words",
        "prompt": None,
        "words": [],
        "negative": query,
        "status": "filled" if query else "failed",
        "problem": None,
        "attempts": 1,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cost_usd": 0.0,
        "cached": False,
    }


def prediction(qid: str, windows: Sequence[tuple[float, float, float]], saliency: Sequence[float] = ()) -> Row:
    found = [dict(zip(("start", "end", "score"), window, strict=True)) for window in windows]
    return {"run": "r", "split": "test", "qid": qid, "windows": found, "saliency": list(saliency)}


def build(
    store: Store,
    stage: str,
    rows: Sequence[Row],
    parents: Sequence[Artifact] = (),
    refused: Sequence[tuple[str, str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact in two parts; `refused` are ids, reasons and values."""
    half = len(rows) // 2
    several = [rows[:half], rows[half:]]
    turned = [rejection(qid, stage, reason, value) for qid, reason, value in refused]
    parts = [
        Part(table_of(stage, part), len(part) + len(bad), len(part), bad)
        for part, bad in zip(several, ([], turned), strict=True)
    ]
    work = Work(DATASET, stage, 1, parents=tuple(parents), parameters=dict(parameters or {}))
    return store.build(work, [lambda part=part: part for part in parts])  # type: ignore[misc]


def run_of(store: Store, annotations: Artifact, predictions: Sequence[Row], seed: int = 0) -> str:
    """The key of a run that predicts this."""
    settings = {"settings": {"training": {"seed": seed}}}
    metrics = build(store, "metrics", [], (annotations,), parameters=settings)
    build(store, "predictions", predictions, (metrics, annotations), parameters={"ranking": {}})
    return metrics.key
