"""A tiny made-up data set in memory: random features of videos, texts and hard negatives."""

from pathlib import Path
from typing import Any

import torch

from penumbra.tasks.grounding.batches.examples import Examples, Features, Loaded
from penumbra.tasks.grounding.training.presets import DEFAULT, MODELS, Settings

CHANNELS = 12
TINY = {"hidden": 16, "heads": 2, "feed_forward": 24, "queries": 4, "encoder_layers": 1, "decoder_layers": 2}
TINY_MAP = {"clips": 8, "segments": 16, "counts": (3, 2), "proposal": 8, "kernel": 3, "layers": 2, "joint": 8}  # of MMN


def features(names: list[str], lengths: list[int], seed: int, clip_length: float = 0.0) -> Features:
    values = torch.randn(sum(lengths), CHANNELS, generator=torch.Generator().manual_seed(seed))
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    return Features(values, offsets, {name: row for row, name in enumerate(names)}, clip_length)


def rows(count: int) -> list[dict[str, Any]]:
    return [row_of(f"q{n}", f"v{n % 7}", f"text {n}", 2.0 * (6 + n % 5), 2.0 * (n % 3)) for n in range(count)]


def row_of(qid: str, vid: str, query: str, duration: float, start: float, **others: Any) -> dict[str, Any]:
    """Return a query whose window takes four seconds."""
    about = {"qid": qid, "vid": vid, "query": query, "duration": duration}
    return {**about, "windows": [[start, start + 4.0]], "saliency": None, **others}


def negatives(found: list[dict[str, Any]], levels: int = 3) -> dict[str, dict[int, str]]:
    return {row["qid"]: {level: f"{row['query']} {level}" for level in range(1, levels + 1)} for row in found}


def videos() -> Features:
    return features([f"v{n}" for n in range(7)], [6 + n % 5 for n in range(7)], seed=1, clip_length=2.0)


def texts(count: int) -> Features:
    names = [f"text {n}{level}" for n in range(count) for level in ("", " 1", " 2", " 3")]
    return features(names, [2 + n % 4 for n in range(len(names))], seed=2)


def make_examples(
    found: list[dict[str, Any]], negatives: dict[str, dict[int, str]], videos: Features, texts: Features, **others: Any
) -> Examples:
    return Loaded(videos, texts, found, negatives, **others).examples_of(found, "training")


def data(count: int = 24, levels: int = 3) -> Examples:
    found = rows(count)
    return make_examples(found, negatives(found, levels), videos(), texts(count))


def model_of(**values: Any) -> dict[str, Any]:
    """Return a model's parameters: settings that only ablations change go into `ablation`."""
    ablations = MODELS[values.get("name", DEFAULT)].ablations()
    chosen = {name: value for name, value in values.items() if name not in ablations}
    return {**chosen, "ablation": {name: value for name, value in values.items() if name in ablations}}


def settings(training: dict[str, Any] | None = None, **groups: dict[str, Any]) -> Settings:
    usual = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "evaluate_every": 1}
    model = model_of(**{**TINY, **groups.get("model", {})}, losses=groups.get("losses", {"shine": True}))
    trained, ranking = {**usual, **(training or {})}, groups.get("ranking", {})
    return Settings.model_validate({"model": model, "training": trained, "ranking": ranking})


def job(folder: Path, chosen: Settings | None = None, count: int = 24) -> tuple[Settings, Examples, Examples, Path]:
    return chosen or settings(), data(count), data(count), folder
