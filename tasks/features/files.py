"""Find the file of each video in a folder, by video id and any suffix of a video file."""

import os
from pathlib import Path

from penumbra.artifacts.locations import data_folder

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".3gp", ".ogv")


def is_inside(vid: str) -> bool:
    """Return whether a video id names a file directly in a folder."""
    return bool(vid) and vid not in (".", "..") and not any(c in vid for c in "/\\\0")


class VideoFolder:
    """The video files of a folder, by id; of files with the same id, the first suffix in `SUFFIXES` is used.

    A link is followed if its target is in the folder or in the data folder; `outside` are the ids of other links.
    """

    def __init__(self, folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self.outside: set[str] = set()
        self._files: dict[str, Path] = {}
        roots = [root.resolve() for root in (folder, data_folder())]
        files = [it for it in folder.iterdir() if it.suffix.lower() in suffixes and not it.name.startswith(".")]
        for file in sorted(files, key=lambda file: (suffixes.index(file.suffix.lower()), file.name)):
            if file.is_symlink() and not (file.is_file() and any(file.resolve().is_relative_to(it) for it in roots)):
                self.outside.add(file.stem)
            elif file.is_file():
                self._files.setdefault(file.stem, file)

    def find(self, vid: str) -> Path | None:
        """Return the file of a video id, with or without its suffix; None if there is no file."""
        if not is_inside(vid):
            return None
        stem, suffix = os.path.splitext(vid)
        return self._files.get(vid) or (self._files.get(stem) if suffix.lower() in SUFFIXES else None)
