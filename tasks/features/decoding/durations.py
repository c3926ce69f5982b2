"""How long video files last, told by decoding them: headers may be wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.processes import cores
from penumbra.tasks.features.decoding.files import VideoFolder
from penumbra.tasks.features.decoding.pool import Pool, Video

STEP = 60.0  # seconds of video between two signs of life
PATIENCE = 60.0  # seconds that a decoder may be without one
WAITING = 1 << 29  # bytes of frames
LARGEST = 1 << 32  # bytes that a decoder may take


class DurationError(PenumbraError):
    """A video that should tell its duration is not there, or can't be decoded."""


def durations_of_files(folder: Path, vids: Sequence[str]) -> Mapping[str, float]:
    """The seconds of each video; raises `DurationError` naming the first one that can't be told."""
    if not folder.is_dir():
        raise DurationError(f"no folder {folder}: give the one that holds the videos, by --videos")
    files = VideoFolder(folder)
    found = {vid: files.find(vid) for vid in vids}
    missing = [vid for vid in vids if found[vid] is None]
    if missing:
        more = f" (nor of {len(missing) - 1:,} more)" if missing[1:] else ""
        raise DurationError(
            f"{folder} holds no file of video {missing[0]!r}{more}, and its rows tell no duration: add the file, or a "
            "column by --duration"
        )
    durations: dict[str, float] = {}
    pool = Pool(min(cores(), len(vids)), STEP, "", PATIENCE, WAITING, most=LARGEST)
    for message in pool.decode(Video(vid, path) for vid, path in found.items() if path):
        if message.reason:
            raise DurationError(
                f"{message.video.path} tells no duration: {message.reason} ({message.value}): mend it, or take its "
                "rows away"
            )
        if message.summary:
            durations[message.video.vid] = message.summary.duration
    return durations
