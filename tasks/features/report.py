"""The report of an `extract-features` run in the Prefect UI: frames, lengths, rejected videos and speed."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.markdown import code, markdown_table
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import REJECTED, Store
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.features.video import SHEET
from penumbra.tasks.stage import logger, side_effect_task

FLOW = "extract-features"
SHOWN = 20  # rejected videos
UNUSED = "queries of videos without features: training leaves them out"

Counts = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


def row_lengths(store: Store, artifact: Artifact, lists: str, seconds: str = "") -> tuple[Counts, Seconds]:
    """Return the number of vectors of each row, and each row's duration if a column of seconds is named."""
    counts: list[Counts] = [np.zeros(0, np.int64)]
    durations: list[Seconds] = [np.zeros(0)]
    for part in store.parts(artifact, [lists, *([seconds] if seconds else [])]):
        counts.append(pc.list_value_length(part[lists]).to_numpy().astype(np.int64))
        if seconds:
            durations.append(part[seconds].to_numpy())
    return np.concatenate(counts), np.concatenate(durations)


def queries_without_features(store: Store, annotations: Artifact, videos: Artifact) -> Counter[str]:
    """Return the number of queries of each split whose video has no features."""
    featured = {vid for part in store.parts(videos, ["vid"]) for vid in part["vid"].to_pylist()}
    missing: Counter[str] = Counter()
    for part in store.parts(annotations, ["vid", "split"]):
        pairs = zip(part["vid"].to_pylist(), part["split"].to_pylist(), strict=True)
        missing.update(split for vid, split in pairs if vid not in featured)
    return missing


def _rejected(store: Store, artifact: Artifact) -> Iterator[tuple[str, str, str]]:
    for part in store.rejected(artifact):
        for row in part.to_pylist():
            yield row["qid"], row["reason"], row["value"]


def _speed(manifest: Manifest, count: int) -> str:
    return f"{count / manifest.seconds:,.1f}" if manifest.seconds else "–"


def write_report(store: Store, annotations: Artifact, texts: Artifact, videos: Artifact) -> str:
    """Return the report as markdown."""
    text_features, video_features = store.manifest(texts), store.manifest(videos)
    clips, durations = row_lengths(store, videos, "features", "duration")
    tokens, _ = row_lengths(store, texts, "tokens")
    unused = queries_without_features(store, annotations, videos)
    rows = [
        ("videos with features", f"{video_features.kept:,} of {video_features.taken:,}"),
        ("clips", f"{clips.sum():,} of {video_features.parameters['clip_length']:g} s"),
        ("clips a video, median (least, most)", _spread(clips)),
        ("seconds a video, median (least, most)", _spread(durations)),
        ("clips a second", _speed(video_features, int(clips.sum()))),
        ("texts", f"{text_features.kept:,} of {text_features.taken:,}"),
        ("tokens a text, median (least, most)", _spread(tokens)),
        ("texts a second", _speed(text_features, text_features.taken)),
        (UNUSED, ", ".join(f"{split} {count:,}" for split, count in sorted(unused.items())) or "none"),
    ]
    sheet = store.read_file(videos, SHEET)
    rejected = list(_rejected(store, videos))
    shown = [(code(vid), reason, value) for vid, reason, value in rejected[:SHOWN]]
    left = [f"{len(rejected) - SHOWN:,} more are in `{videos.path}/{REJECTED}`."] if len(rejected) > SHOWN else []
    sections = [
        f"# {video_features.dataset}: features",
        *remark_on([videos]),
        f"**{outcome(store, texts, videos)}.** They lie in `{videos.path}` and `{texts.path}`.",
        *(["## Frames", f"![frames](data:image/jpeg;base64,{b64encode(sheet).decode()})"] if sheet else []),
        "## Figures",
        markdown_table(("figure", "value"), rows),
        f"## Videos without features: {len(rejected):,}",
        markdown_table(("reason", "videos"), Counter(reason for _, reason, _ in rejected).most_common()),
        *([markdown_table(("video", "reason", "details"), shown), *left] if shown else []),
    ]
    return "\n\n".join(sections)


def _spread(values: Counts | Seconds) -> str:
    return f"{np.median(values):g} ({values.min():g}, {values.max():g})" if len(values) else "–"


def outcome(store: Store, texts: Artifact, videos: Artifact) -> str:
    """Return how a run ended, in one line."""
    text_features, video_features = store.manifest(texts), store.manifest(videos)
    missing = video_features.taken - video_features.kept
    kind = "simulated videos" if remark_on([videos]) else "videos"
    line = f"features of {video_features.kept:,} {kind} and {text_features.kept:,} texts"
    return f"{line}; {missing:,} videos have none" if missing else f"{line}; none is missing"


@side_effect_task("report")
def report_features(annotations: Artifact, texts: Artifact, videos: Artifact) -> str:
    """Publish the report of a run, and return its outcome in one line."""
    store = Store()
    publish_report(annotations.dataset, FLOW, write_report(store, annotations, texts, videos))
    line = outcome(store, texts, videos)
    logger().info(line)
    return line
