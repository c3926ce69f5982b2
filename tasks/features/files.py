"""Find the file of each video in a folder, by video id and any suffix of a video file."""

import os
from pathlib import Path

from penumbra.artifacts.locations import data_folder

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".3gp", ".ogv")


def is_inside(vid: str) -> bool:
    """Return whether a video id names a file directly in a folder."""
    return bool(vid) and vid not in (".", "..") and not any(c in vid for c in "/\\\0")


class VideoFolder:
    """The video files of a folder, by id; of several suffixes the first of `SUFFIXES` counts.

    A link is followed if it stays in the folder or in the folder of all data; `outside` are the ids of others.
    """

    def __init__(self, folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self.folder = folder
        self.outside: set[str] = set()
        ranked: dict[str, tuple[int, str]] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                if suffix.lower() not in suffixes or entry.name.startswith("."):
                    continue
                if entry.is_symlink() and not self._stays_inside(Path(entry)):
                    self.outside.add(stem)
                elif entry.is_file():
                    rank = (suffixes.index(suffix.lower()), entry.name)
                    ranked[stem] = min(rank, ranked.get(stem, rank))
        self._files = {stem: folder / name for stem, (_, name) in ranked.items()}

    def _stays_inside(self, link: Path) -> bool:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # a broken or circular link
            return False
        return any(target.is_relative_to(root.resolve()) for root in (self.folder, data_folder()))

    def find(self, vid: str) -> Path | None:
        """Return the file of a video id, which may end with its suffix; None if there is no file."""
        if not is_inside(vid):
            return None
        stem, suffix = os.path.splitext(vid)
        return self._files.get(vid) or (self._files.get(stem) if suffix.lower() in SUFFIXES else None)
