"""What the page shows of a data set: its queries, their negatives, what was refused, what runs predict."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from penumbra.artifacts.errors import what_there_is
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.browsing.columns import Column, Row, by_query, coded, whole
from penumbra.tasks.data.dataset import videos_of
from penumbra.tasks.features.files import VideoFolder

if TYPE_CHECKING:
    from penumbra.tasks.browsing.predicted import PredictedRun

CHOSEN = ["qid", "level", "negative", "provider", "model", "similarity", "plausibility", "checks"]
FILLED = ["qid", "level", "negative", "provider", "model", "status"]
REFUSING = ("annotations", "tags", "masks", "fills", "negatives", "predictions")  # queries, and not videos or files
NOTHING: Row = {"vid": "", "split": "", "query": "", "duration": 0.0, "windows": [], "novel": []}  # refused at the door
AT_A_LEVEL = re.compile(r"level (\d+)(?:: )?")  # how stages that refuse a query at a level begin its value


def gather(store: Store, dataset: str, providers: Sequence[str], runs: Sequence[str], folder: Path | None) -> Column:
    """Return all data of a data set that the page shows.

    Args:
        store: where the artifacts are
        dataset: its name
        providers: whose negatives are shown side by side; none: the newest negatives as they were chosen
        runs: runs, by key or name, whose newest predictions are shown side by side
        folder: where the page will lie, from which its links to videos lead

    Raises `ArtifactError` where the data set has neither negatives nor a run that was asked for.

    """
    negatives = _negatives(store, dataset, providers, optional=bool(runs))
    predicted = _predicted(store, dataset, runs)
    made = [*negatives.values(), *(run.predictions for run in predicted)]
    annotations, involved = _origin(store, made)
    rows = _rows(store.parts(annotations))
    queries = {row["qid"]: row for row in rows}
    refused = _rows(part for it in involved if it.stage in REFUSING for part in store.rejected(it))
    strangers = dict.fromkeys(row["qid"] for row in refused if row["qid"] not in queries)
    rows += [{**NOTHING, "qid": qid} for qid in strangers]
    places = {row["qid"]: place for place, row in enumerate(rows)}
    return {
        "dataset": dataset,
        "queries": query_columns(rows),
        "videos": video_links(dataset, list(dict.fromkeys(row["vid"] for row in rows)), folder),
        "negatives": [negative_columns(store, it, places, name) for name, it in negatives.items()],
        "refused": refused_columns(refused, rows, places),
        "runs": [run.columns(store, queries, places) for run in predicted],
    }


def _negatives(store: Store, dataset: str, providers: Sequence[str], optional: bool) -> dict[str, Artifact]:
    """Return the negatives by the names that the page gives them; none if there are none and they are `optional`."""
    if providers:
        several = {provider: of_provider(store, dataset, provider) for provider in providers}
        return {f"{name}, first fills" if it.stage == "fills" else name: it for name, it in several.items()}
    if optional and store.newest_if_any(dataset, "negatives") is None:
        return {}
    return {"Negatives": store.newest(dataset, "negatives")}


def _predicted(store: Store, dataset: str, runs: Sequence[str]) -> "list[PredictedRun]":
    if not runs:
        return []
    from penumbra.tasks.browsing.predicted import PredictedRun  # only here: it imports torch

    return [PredictedRun.named(store, dataset, run) for run in dict.fromkeys(runs)]


def _origin(store: Store, made: Sequence[Artifact]) -> tuple[Artifact, list[Artifact]]:
    """Return the queries that these artifacts were made from, and all artifacts that were made on the way."""
    involved, annotations = list(made), list[Artifact]()
    for artifact in made:
        ancestors = store.ancestors(artifact)
        if "annotations" not in ancestors:
            raise ArtifactError(f"{artifact.path} does not name its annotations: build it again")
        annotations += ancestors["annotations"]
        involved += chain.from_iterable(ancestors.values())
    return annotations[0], list(dict.fromkeys(involved))


def _rows(parts: Iterable[pa.Table]) -> list[Row]:
    return [row for part in parts for row in part.to_pylist()]


def of_provider(store: Store, dataset: str, provider: str) -> Artifact:
    """Return the newest negatives of this provider alone, or else the provider's newest fills.

    Raises `ArtifactError` naming the providers that there are.
    """
    known = set[str]()
    for manifest in reversed(store.find(dataset, "negatives")):
        artifact = store.reference(manifest)
        columns = [part["provider"] for part in store.parts(artifact, ["provider"])]
        of_these = {name for column in columns for name in column.unique().to_pylist()}
        if of_these == {provider}:
            return artifact
        known |= of_these
    for manifest in reversed(store.find(dataset, "fills")):
        known.add(str(manifest.parameters.get("provider")))
        if manifest.parameters.get("provider") == provider:
            return store.reference(manifest)
    if not known:
        raise store.missing(dataset, "negatives")
    raise ArtifactError(f"no negatives of {dataset} are by {provider!r}: {what_there_is(provider, sorted(known))}")


def query_columns(rows: Sequence[Row]) -> Column:
    """Return the queries: times in hundredths of a second, windows as starts and ends in turn."""
    return {
        "qid": [row["qid"] for row in rows],
        "vid": coded(row["vid"] for row in rows),
        "split": coded(row["split"] for row in rows),
        "text": coded(row["query"] for row in rows),
        "duration": [whole(row["duration"], 100) for row in rows],
        "windows": [[whole(time, 100) for window in row["windows"] for time in window] for row in rows],
        "novel": coded(tuple((it["type"], tuple(it["words"])) for it in row["novel"]) for row in rows),
    }


def negative_columns(store: Store, artifact: Artifact, places: Mapping[str, int], name: str) -> Column:
    """Return the negatives of an artifact, or its first fills: cosine in thousandths, plausibility in hundredths."""
    count, rows = by_query(_shown(store, artifact), places)
    rows.sort(key=lambda row: (places[row["qid"]], row["level"]))
    return {
        "name": name,
        "key": f"{artifact.stage}/{artifact.key}",
        "count": count,
        "level": [row["level"] for row in rows],
        "text": coded(row["negative"] for row in rows),
        "provider": coded(row["provider"] for row in rows),
        "model": coded(row["model"] for row in rows),
        "cosine": [whole(row.get("similarity"), 1000) for row in rows],
        "plausibility": [whole(row.get("plausibility"), 100) for row in rows],
        "checks": coded(tuple(row.get("checks", ())) for row in rows),
    }


def _shown(store: Store, artifact: Artifact) -> list[Row]:
    if artifact.stage == "negatives":
        return _rows(store.parts(artifact, CHOSEN))
    from penumbra.tasks.negatives.quality.negatives import first_fills  # only here: it imports spaCy and an encoder

    return _rows(first_fills(part) for part in store.parts(artifact, FILLED))


def refused_columns(refused: Iterable[Row], rows: Sequence[Row], places: Mapping[str, int]) -> Column:
    """Return the refusals with their reasons; level 0 is the query itself. A value equal to the query is left out."""
    count, known = by_query(refused, places)
    values = []
    for row in known:
        level = AT_A_LEVEL.match(row["value"])
        value = row["value"][level.end() :] if level else row["value"]
        repeats = value.strip() == rows[places[row["qid"]]]["query"]
        values.append((int(level[1]) if level else 0, "" if repeats else value))
    return {
        "count": count,
        "level": [level for level, _ in values],
        "stage": coded(row["stage"] for row in known),
        "reason": coded(row["reason"] for row in known),
        "value": coded(value for _, value in values),
    }


def video_links(dataset: str, vids: Sequence[str], folder: Path | None) -> Column:
    """Return the videos' address relative to the page, and the file name of each video or None.

    `folder` is the folder of the page; None is a page of the server, which serves the videos below the page's address.
    """
    videos = videos_of(dataset)
    if not videos.is_dir():
        return {"folder": "", "files": [None] * len(vids)}
    there = VideoFolder(videos)
    found = [there.find(vid) for vid in vids]
    return {
        "folder": quote(os.path.relpath(videos, folder) if folder else f"{dataset}/videos") + "/",
        "files": [quote(path.name, safe="") if path else None for path in found],
    }
