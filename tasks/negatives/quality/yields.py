"""What each provider gave of what it was asked for, and why the rest is missing."""

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.fills import provider_name
from penumbra.tasks.negatives.quality.artifact import FILLED, ArtifactNegatives
from penumbra.tasks.negatives.quality.figures import ALL

LEVEL = re.compile(r"level ([123])(?:[:,]|$)")  # how the value of a refusal begins that is one of a level


def yield_figures(negatives: ArtifactNegatives) -> list[dict[str, Any]]:
    """Rows `yield` and `refused: REASON`, by level: of each provider's fills, and of the negatives themselves (all)."""
    store = negatives.store
    asked = Counter[int]()
    for part in store.parts(negatives.masks, ["level"]) if negatives.masks else ():
        asked.update(_by_level(part))
    rows: list[dict[str, Any]] = []
    for fills in negatives.fills:
        rows += _of(store, fills, provider_name(store, fills), asked)
    if negatives.artifact.stage == "negatives":
        rows += _of(store, negatives.artifact, ALL, asked)
    return rows


def _by_level(rows: pa.Table) -> dict[int, int]:
    counts = rows.group_by("level").aggregate([([], "count_all")])
    return dict(zip(counts["level"].to_pylist(), counts["count_all"].to_pylist(), strict=True))


def _of(store: Store, artifact: Artifact, provider: str, asked: Counter[int]) -> list[dict[str, Any]]:
    got: Counter[int] = Counter()
    status = ["status"] if artifact.stage == "fills" else []
    for part in store.parts(artifact, ["qid", "level", *status]):
        filled = part.filter(pc.equal(part["status"], FILLED)) if status else part
        got.update(_by_level(filled.group_by(["qid", "level"]).aggregate([])))
    rows = [_row(level, provider, "yield", got[level] / count) for level, count in sorted(asked.items())]
    refused: Counter[tuple[int, str]] = Counter()
    for part in store.rejected(artifact):
        for row in part.to_pylist():
            at = LEVEL.match(row["value"])
            refused[int(at[1]) if at else 0, row["reason"]] += 1
    return rows + [_row(level, provider, f"refused: {why}", n) for (level, why), n in sorted(refused.items())]


def _row(level: int, provider: str, metric: str, value: float) -> dict[str, Any]:
    return {"level": level, "provider": provider, "metric": metric, "value": float(value)}
