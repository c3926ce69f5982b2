"""The page: a data set's queries, their negatives, rejected rows and predictions of runs as one HTML file.

Template, style, script and data are in the file, and the page loads nothing else. The data are not trusted. They are
compressed and base64-encoded, so that their text can't be parsed as markup; the script inserts them as text nodes; and
the Content-Security-Policy allows only the page's own script, and no requests.

In tables of the data with any number of rows per query, `count` is the number of rows of each query, in the order of
the queries. Columns with repeated values are `coded`: the distinct values, and for each row the index of its value.
"""

import gzip
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from penumbra.artifacts.errors import what_there_is
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.data.dataset import videos_of
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.negatives.reviews import REVIEWER

HERE = Path(__file__).parent
SCRIPTS = ("words.js", "found.js", "rows.js", "review.js", "query.js", "page.js")  # one script, in this order
Column = dict[str, Any]
Row = dict[str, Any]
CHOSEN = ["qid", "level", "negative", "provider", "model", "similarity", "plausibility", "checks"]
FILLED = ["qid", "level", "negative", "provider", "model", "status"]
REFUSING = ("annotations", "tags", "masks", "fills", "negatives", "predictions")  # they reject queries
WINDOWS = 5  # windows per query
NOTHING: Row = {"vid": "", "split": "", "query": "", "duration": 0.0, "windows": [], "novel": []}  # of a rejected query
AT_A_LEVEL = re.compile(r"\Alevel (\d+)(?:: )?")  # start of the value of a rejection at a level


def write_page(data: Mapping[str, Any]) -> str:
    """Return the page with the data of `gather`; the same data give the same text."""
    markup, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    packed = gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), mtime=0)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(markup)
    return template.render(
        dataset=data["dataset"],
        verdict=data["verdict"],
        policy=policy(style, script),
        data=b64encode(packed).decode(),
        style=Markup(style),  # noqa: S704 (files of this package)
        script=Markup(script),  # noqa: S704 (files of this package)
    )


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy, which allows this style, this script and videos next to the page only."""
    of_style, of_script = (f"'sha256-{b64encode(sha256(it.encode()).digest()).decode()}'" for it in (style, script))
    return (
        f"default-src 'none'; script-src {of_script}; style-src {of_style}; media-src 'self' file:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def gather(
    store: Store,
    dataset: str,
    providers: Sequence[str],
    runs: Sequence[str],
    folder: Path,
    chosen: Artifact | None = None,
) -> Column:
    """Return the data of the page in `folder`: negatives (of providers, `chosen`, or the newest) and predictions.

    Raise `ArtifactError` if there are neither negatives nor runs.
    """
    from penumbra.tasks.negatives.quality.page import newest_verdict  # only here: it imports scipy

    negatives: dict[str, Artifact] = {}
    for provider in providers:
        artifact = of_provider(store, dataset, provider)
        negatives[f"{provider}, first fills" if artifact.stage == "fills" else provider] = artifact
    if chosen:
        negatives["Negatives"] = chosen
    elif not providers and not (runs and store.newest_if_any(dataset, "negatives") is None):
        negatives["Negatives"] = store.newest(dataset, "negatives")
    predicted = list[tuple[str, Artifact]]()
    for run in dict.fromkeys(runs):
        from penumbra.tasks.grounding.evaluation.figures import predictions_of  # only here: it imports torch
        from penumbra.tasks.grounding.training.stage import chosen_run, name_of

        metrics = chosen_run(dataset, run)
        predicted.append((name_of(store.manifest(metrics)), predictions_of(metrics)))
    made = [*negatives.values(), *(artifact for _, artifact in predicted)]
    ancestors = [store.ancestors(artifact) for artifact in made]
    for artifact, stages in zip(made, ancestors, strict=True):
        if "annotations" not in stages:
            raise ArtifactError(f"{artifact.path} does not name its annotations: build it again")
    annotations = ancestors[0]["annotations"][0]
    involved = dict.fromkeys(chain(made, *(chain.from_iterable(stages.values()) for stages in ancestors)))
    rows = list(store.rows(annotations))
    queries = {row["qid"]: row for row in rows}
    rejected = (part for it in involved if it.stage in REFUSING for part in store.rejected(it))
    refused = [row for part in rejected for row in part.to_pylist()]
    unknown = dict.fromkeys(row["qid"] for row in refused if row["qid"] not in queries)
    rows += [{**NOTHING, "qid": qid} for qid in unknown]
    places = {row["qid"]: place for place, row in enumerate(rows)}
    verdicts = {name: newest_verdict(store, artifact) for name, artifact in negatives.items()}
    return {
        "dataset": dataset,
        "verdict": " · ".join(f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict),
        "queries": query_columns(rows),
        "videos": video_links(dataset, list(dict.fromkeys(row["vid"] for row in rows)), folder),
        "negatives": [negative_columns(store, it, places, name) for name, it in negatives.items()],
        "refused": refused_columns(refused, rows, places),
        "runs": [prediction_columns(store, *run, queries, places) for run in predicted],
    }


def of_provider(store: Store, dataset: str, provider: str) -> Artifact:
    """Return the newest negatives by this provider only, else its newest fills, or raise `ArtifactError`."""
    known, several = set[str](), list[Manifest]()
    for manifest in store.find(dataset, "negatives"):
        providers = set(store.table(store.reference(manifest), ["provider"])["provider"].unique().to_pylist())
        several += [manifest] if providers - {REVIEWER} == {provider} else []
        known |= providers - {REVIEWER}
    if not several:
        fills = store.find(dataset, "fills")
        several = [manifest for manifest in fills if manifest.parameters.get("provider") == provider]
        known |= {str(manifest.parameters.get("provider")) for manifest in fills}
    if several:
        store.announce_newest(several)
        return store.reference(several[-1])
    if not known:
        raise store.missing(dataset, "negatives")
    raise ArtifactError(f"no negatives of {dataset} are by {provider!r}: {what_there_is(provider, sorted(known))}")


def query_columns(rows: Sequence[Row]) -> Column:
    """Return the columns of the queries: times in hundredths of a second, windows as alternating starts and ends."""
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
    """Return the columns of negatives or first fills: cosine in thousandths, plausibility in hundredths."""
    if artifact.stage == "negatives":
        shown = list(store.rows(artifact, CHOSEN))
    else:
        from penumbra.tasks.negatives.quality.negatives import first_fills  # only here: it imports spaCy and an encoder

        shown = [row for part in store.parts(artifact, FILLED) for row in first_fills(part).to_pylist()]
    count, rows = by_query(shown, places)
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


def refused_columns(refused: Iterable[Row], rows: Sequence[Row], places: Mapping[str, int]) -> Column:
    """Return the columns of the rejected rows; level 0 is the query. Values equal to the query are left empty."""
    count, known = by_query(refused, places)
    values = [AT_A_LEVEL.sub("", row["value"]) for row in known]
    queries = [rows[places[row["qid"]]]["query"] for row in known]
    return {
        "count": count,
        "level": [int(at[1]) if (at := AT_A_LEVEL.match(row["value"])) else 0 for row in known],
        "stage": coded(row["stage"] for row in known),
        "reason": coded(row["reason"] for row in known),
        "value": coded("" if it.strip() == query else it for it, query in zip(values, queries, strict=True)),
    }


def prediction_columns(
    store: Store, name: str, predictions: Artifact, annotations: Mapping[str, Row], places: Mapping[str, int]
) -> Column:
    """Return the columns of a run's predictions: times in hundredths of a second, other numbers in thousandths."""
    from penumbra.tasks.grounding.evaluation.figures import judged_split  # only here: it imports torch
    from penumbra.tasks.grounding.evaluation.rejection import asked_by_split
    from penumbra.tasks.grounding.metrics import score_queries

    count, rows = by_query(store.rows(predictions), places)
    manifest = store.manifest(predictions)
    judged = [row for row in rows if row["windows"] and annotations.get(row["qid"], {}).get("windows")]
    overlap: dict[str, float] = {}
    if judged:
        windows = judged_split(judged, annotations, manifest.parameters["ranking"].get("truth_ends")).windows
        overlap = dict(zip(windows.qids, score_queries(windows).iou.tolist(), strict=True))
    features = (store.manifest(it).parameters for it in manifest.parents if it.stage == "video_features")
    best = [row["windows"][:WINDOWS] for row in rows]
    by_split, threshold = asked_by_split(predictions)  # the false sentences
    asked_count, asked = by_query(chain.from_iterable(by_split.values()), places)
    return {
        "name": name,
        "key": f"predictions/{predictions.key}",
        "clip": next((float(known["clip_length"]) for known in features if "clip_length" in known), None),
        "count": count,
        "windows": [[whole(it[end], 100) for it in several for end in ("start", "end")] for several in best],
        "scores": [[whole(it["score"], 1000) for it in several] for several in best],
        "iou": [whole(overlap.get(row["qid"]), 1000) for row in rows],
        "saliency": [[whole(value, 1000) for value in row["saliency"]] for row in rows],
        "existence": [whole(row["existence"], 1000) for row in rows],
        "asked": {
            "threshold": whole(threshold, 1000),
            "count": asked_count,
            "kind": coded(row["kind"] for row in asked),
            "text": coded(row["sentence"] for row in asked),
            "existence": [whole(row["existence"], 1000) for row in asked],
        },
    }


def video_links(dataset: str, vids: Sequence[str], folder: Path) -> Column:
    """Return the folder of the videos, relative to `folder` of the page, and the file name of each video or None."""
    videos = videos_of(dataset)
    if not videos.is_dir():
        return {"folder": "", "files": [None] * len(vids)}
    paths = map(VideoFolder(videos).find, vids)
    files = [quote(path.name, safe="") if path else None for path in paths]
    return {"folder": quote(os.path.relpath(videos, folder)) + "/", "files": files}


def coded(values: Iterable[Any]) -> Column:
    """Return a column as its distinct values, and for each row the index of its value."""
    places: dict[Any, int] = {}
    codes = [places.setdefault(value, len(places)) for value in values]
    return {"values": list(places), "codes": codes}


def by_query(rows: Iterable[Row], places: Mapping[str, int]) -> tuple[list[int], list[Row]]:
    """Return the number of rows of each query, and the rows in the queries' order; rows of no query are left out."""
    known = sorted((row for row in rows if row["qid"] in places), key=lambda row: places[row["qid"]])
    count = [0] * len(places)
    for row in known:
        count[places[row["qid"]]] += 1
    return count, known


def whole(value: float | None, scale: int) -> int | None:
    """Return a figure times `scale`, rounded to an integer; None if it is unknown or not finite."""
    return None if value is None or not isfinite(value) else round(value * scale)
