"""The parameters of `extract-features`, references to the artifacts that it makes, and its report in the Prefect UI."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted, markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import REJECTED, Store
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports import Imports
from penumbra.tasks.features.simulated import Simulation, remark_on
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import side_effect_task

FIRST = 3  # number of videos without features that the report names
UNUSED = "queries of videos without features: training leaves them out"


class FeaturesParameters(Parameters):
    """The parameter groups of `extract-features`."""

    clip: Clip = Clip()
    texts: Texts = Texts()
    videos: Videos = Videos()
    imports: Imports = Imports()
    simulation: Simulation = Simulation()

    def with_patches(self, wanted: bool) -> "FeaturesParameters":
        return self.model_copy(update={"videos": self.videos.model_copy(update={"patches": True})}) if wanted else self


@dataclass(frozen=True)
class ExtractedFeatures:
    """The artifacts of an `extract-features` run; `outcome` says in one line how the run ended."""

    annotations: Artifact
    text_features: Artifact
    video_features: tuple[Artifact, ...]
    patch_features: Artifact | None
    outcome: str | None = None

    @property
    def path(self) -> str:
        return self.video_features[0].path


@side_effect_task("report")
def report_features(annotations: Artifact, texts: Artifact, videos: Artifact) -> str:
    line, page = write_report(Store(), annotations, texts, videos)
    publish_report(annotations.dataset, "extract-features", page)
    logger().info(line)
    return line


def write_report(store: Store, annotations: Artifact, texts: Artifact, videos: Artifact) -> tuple[str, str]:
    """Return how a run ended, in one line, and the report as markdown."""
    text_features, video_features = store.manifest(texts), store.manifest(videos)
    counts, featured = [np.zeros(0, np.int64)], set[str]()
    for part in store.parts(videos, ["vid", "features"]):
        counts.append(pc.list_value_length(part["features"]).to_numpy())
        featured.update(part["vid"].to_pylist())
    rows_of_queries = store.rows(annotations, ["vid", "split"])
    unused = Counter(row["split"] for row in rows_of_queries if row["vid"] not in featured)
    clips, missing = np.concatenate(counts), video_features.taken - video_features.kept
    rows = [
        ("videos with features", f"{video_features.kept:,} of {video_features.taken:,}"),
        ("clips", f"{clips.sum():,} of {video_features.parameters['clip_length']:g} s"),
        ("texts", f"{text_features.kept:,} of {text_features.taken:,}"),
        (UNUSED, ", ".join(f"{split} {count:,}" for split, count in sorted(unused.items())) or "none"),
    ]
    kind = "simulated video" if remark_on([videos]) else "video"
    line = f"features of {counted(video_features.kept, kind)} and {counted(text_features.kept, 'text')}; "
    if missing:
        rejected = (row for rows in store.rejected(videos) for row in rows.slice(0, FIRST).to_pylist())
        first = [f"{row['qid']} ({row['reason']})" for row in islice(rejected, FIRST)]
        line += f"{counted(missing, 'video')} without: {', '.join(first)}{' …' if missing > FIRST else ''}"
    else:
        line += "none is missing"
    sections = [
        f"# {video_features.dataset}: features",
        *remark_on([videos]),
        f"**{plain(line)}.** They lie in `{videos.path}` and `{texts.path}`.",
        "## Figures",
        markdown_table(("figure", "value"), rows),
        f"## Videos without features: {missing:,}",
        markdown_table(("reason", "videos"), video_features.rejected.items()),
        f"Each is listed with its reason in `{videos.path}/{REJECTED}`." if missing else "",
    ]
    return line, "\n\n".join(sections)
