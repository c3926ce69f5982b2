"""Small data sets, rows of tables with usual values, artifacts that hold them, and the files of a folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.dataset import SHIPPED

Row = dict[str, Any]
DATASET = "mine"


def first_videos(folder: Path, source: Path = SHIPPED, **counts: int) -> Path:
    """Write the first videos of each file of a data set to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        videos = json.loads((source / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps(dict(list(videos.items())[:count])))
    return folder


def files_in(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by their paths in it."""
    files = [path for path in folder.rglob(pattern) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def json_lines(file: Path, rows: Iterable[Any]) -> Path:
    """Write each row as a line of JSON; return the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def annotation(qid: str, query: str, split: str = "train", **others: Any) -> Row:
    usual = {"vid": qid[:2], "duration": 20.0, "windows": [[5.0, 10.0]], "novel": [], "saliency": None}
    return {"qid": qid, "query": query, "split": split, **usual, **others}


def negative(qid: str, level: int, text: str, query: str = "a query", **others: Any) -> Row:
    usual = {"words": [], "provider": "corpus", "model": "words", "similarity": 1 - level / 4, "plausibility": -0.5}
    return {"qid": qid, "level": level, "query": query, "negative": text, **usual, "checks": ["template"], **others}


def filled(qid: str, level: int, text: str | None, provider: str = "openai") -> Row:
    usual = {"model": "words", "prompt": None, "words": [], "problem": None, "attempts": 1, "cached": False}
    cost = {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}
    status = "filled" if text else "failed"
    return {"qid": qid, "level": level, "provider": provider, "negative": text, "status": status, **usual, **cost}


def token(word: str, primitive: str | None = None, *, subject: bool = False, **others: Any) -> Row:
    """Return a token of the table `tags`."""
    usual = {"space_after": True, "lemma": word, "pos": "X", "tag": "XX", "dep": "dep", "head": 0}
    return {"text": word, **usual, "primitive": primitive, "is_subject": subject, **others}


def prediction(qid: str, windows: Sequence[tuple[float, float, float]], saliency: Sequence[float] = ()) -> Row:
    rows = [dict(zip(("start", "end", "score"), window, strict=True)) for window in windows]
    return {"run": "r", "split": "test", "qid": qid, "windows": rows, "saliency": list(saliency)}


def build(
    store: Store,
    stage: str,
    rows: Sequence[Row] | pa.Table,
    parents: Sequence[Artifact] = (),
    rejected: Sequence[tuple[str, str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
    dataset: str = DATASET,
    cut: int | None = None,
) -> Artifact:
    """Store rows as an artifact of two parts, the second from row `cut` on; `rejected` are ids, reasons and values."""
    table = rows if isinstance(rows, pa.Table) else table_of(stage, rows)
    bad = [rejection(qid, stage, reason, value) for qid, reason, value in rejected]
    cut = len(table) // 2 if cut is None else cut
    first, second = table[:cut], table[cut:]
    parts = [Part(first, len(first), len(first)), Part(second, len(second) + len(bad), len(second), bad)]
    work = Work(dataset, stage, 1, parents=tuple(parents), parameters=dict(parameters or {}))
    return store.build(work, [lambda part=part: part for part in parts])  # type: ignore[misc]


def run_of(
    store: Store,
    annotations: Artifact,
    predictions: Sequence[Row],
    seed: int = 0,
    asked: Sequence[tuple[str, str, str, float]] = (),
) -> str:
    """Return the key of a run with these predictions; `asked` are qid, kind, false sentence and existence."""
    settings = {"settings": {"training": {"seed": seed}}}
    metrics = build(store, "metrics", [], (annotations,), parameters=settings)
    numbers = [{"run": "r", "name": name, "value": value} for name, value in (("threshold", 0.4), ("bias", 0.0))]
    calibration = build(store, "calibration", numbers, (metrics,), parameters={"evidence": []})
    parents = (metrics, calibration, annotations)
    made = build(store, "predictions", predictions, parents, parameters={"ranking": {}})
    usual = {"run": "r", "split": "test", "windows": [], "other_qid": None, "exchanged": None}
    names = ("qid", "kind", "sentence", "existence")
    build(store, "existence", [usual | dict(zip(names, it, strict=True)) for it in asked], (metrics, made))
    return metrics.key
