"""The sample's videos, rendered before their features are extracted: the one door from the flows to the sample."""

from pathlib import Path

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.data.dataset import SHIPPED, Dataset
from penumbra.tasks.features.video import Videos, videos_folder
from penumbra.tasks.progress import counting, stage_log_extra
from penumbra.tasks.sample.scenes.encoding import is_whole
from penumbra.tasks.sample.scenes.render import Rendered, Rendering, read_scripts, render
from penumbra.tasks.stage import is_planned, logger, side_effect_task

LOG_EVERY = 50  # videos


class RenderingError(PenumbraError):
    """The videos of the sample can't be written."""


def is_sample(dataset: Dataset) -> bool:
    """Whether a data set is the shipped one, which has scripts instead of videos."""
    return dataset.name == "scenes" and dataset.location() == SHIPPED


def rendered(folder: Path) -> bool:
    """Whether all of the sample's videos are there."""
    return all(is_whole(folder / f"{script['vid']}.mp4", script) for script in read_scripts())


def render_missing(folder: Path, processes: int = 0) -> Rendering:
    """Make the sample's videos that are not there; raises `RenderingError` where one can't be made."""
    scripts, log = read_scripts(), logger()
    done, tick = 0, counting("videos", len(scripts))

    def progress(video: Rendered) -> None:
        nonlocal done
        done += 1
        tick(1)
        if video.new and done % LOG_EVERY == 0:
            log.info("%d of %d videos rendered", done, len(scripts), extra=stage_log_extra(""))

    try:
        rendering = render(scripts, folder, processes or None, progress)
    except OSError as error:
        raise RenderingError(
            f"{folder} can't be written ({error.strerror}): name another one with --param videos.folder=…"
        ) from None
    if rendering.failed:
        first = rendering.failed[0]
        raise RenderingError(f"{len(rendering.failed)} videos can't be rendered, as {first.vid}: {first.problem}")
    return rendering


def find_videos(dataset: Dataset, videos: Videos) -> Path | None:
    """The folder of a data set's videos. The sample's are rendered first; None in a plan, where they are not yet."""
    folder = videos_folder(dataset.name, videos)
    if not is_sample(dataset):
        return folder
    if is_planned():
        return folder if rendered(folder) else None
    render_scenes(str(folder), videos.workers)
    return folder


@side_effect_task("scenes")
def render_scenes(folder: str, processes: int = 0) -> str:
    """Render the sample's videos; returns what was done in one line."""
    line = str(render_missing(Path(folder), processes))
    logger().info(line)
    return line
