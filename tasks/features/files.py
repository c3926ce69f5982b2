"""Which file is a video's: found in one folder by its id and any suffix of a video file."""

import os
from pathlib import Path

from penumbra.artifacts.locations import data_folder

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".3gp", ".ogv")


def is_inside(vid: str) -> bool:
    """Whether a video id names a file in a folder, and nothing outside it."""
    return bool(vid) and vid not in (".", "..") and not any(c in vid for c in "/\\\0")


class VideoFolder:
    """The video files of a folder, by id. Where an id has several files the first suffix of `SUFFIXES` counts.

    A link is followed to where it stays in the folder, or in the folder of all data; `outside` are the ids of others.
    """

    def __init__(self, folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self.folder = folder
        self.outside: set[str] = set()
        self._files: dict[str, Path] = {}
        best: dict[str, tuple[int, str]] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                if suffix.lower() not in suffixes or entry.name.startswith("."):
                    continue
                if entry.is_symlink() and not self._stays(Path(entry)):
                    self.outside.add(stem)
                elif entry.is_file():
                    rank = (suffixes.index(suffix.lower()), entry.name)
                    if stem not in best or rank < best[stem]:
                        best[stem] = rank
                        self._files[stem] = folder / entry.name

    def _stays(self, link: Path) -> bool:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # it leads nowhere, or round in a circle
            return False
        return any(target.is_relative_to(root.resolve()) for root in (self.folder, data_folder()))

    def find(self, vid: str) -> Path | None:
        """The file of a video id, with or without its suffix in the id; None where there is none."""
        if not is_inside(vid):
            return None
        stem, suffix = os.path.splitext(vid)
        return self._files.get(vid) or (self._files.get(stem) if suffix.lower() in SUFFIXES else None)
