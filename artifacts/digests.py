"""SHA-256 of files: each is read whole, once as long as it does not change.

What was read is remembered in the user's cache folder, by the file's place and its stamp, so that a second run over
thousands of videos or parts is quick. A stamp is what changes with a file: on a disk its size, inode and the times of
its last changes, on an object store its size and ETag. A file that has just been written has none yet: it could change
again within one tick of the clock.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from penumbra.artifacts.locations import digests_file
from penumbra.artifacts.processes import cores

SETTLED = 2.0  # seconds after its last change from which a file is remembered
TABLE = "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, stamp TEXT, sha256 TEXT)"
BLOCK = 1 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files with their names."""
    if path.is_file():
        return digests_of([path])[0]
    return named_digest((it.relative_to(path).as_posix(), it) for it in sorted(path.rglob("*")) if it.is_file())


def named_digest(files: Iterable[tuple[str, Path | None]]) -> str:
    """A digest of files under the names that are given, some of which may have none."""
    several = list(files)
    found = iter(digests_of([file for _, file in several if file]))
    digest = hashlib.sha256()
    for name, file in several:
        digest.update(
            f"{name}\0{file.name if file else ''}\0{next(found) if file else ''}\0".encode(errors="surrogatepass")
        )
    return digest.hexdigest()


def digests_of(files: Sequence[Path]) -> list[str]:
    """The SHA-256 of each file; raises `OSError` naming one that can't be read."""
    places = [str(file.resolve()) for file in files]
    stamps = [stamp_of(os.stat(place)) for place in places]
    known = remembered(places)
    missing = [n for n, place in enumerate(places) if not stamps[n] or known.get(place, ("", ""))[0] != stamps[n]]
    with ThreadPoolExecutor(cores()) as readers:
        read = dict(zip(missing, readers.map(lambda n: _read(places[n]), missing), strict=True))
    remember((places[n], stamps[n], read[n]) for n in missing)
    return [read[n] if n in read else known[place][1] for n, place in enumerate(places)]


def stamp_of(found: os.stat_result) -> str:
    """The stamp of a file on a disk; '' where it has just been written."""
    if found.st_mtime > time.time() - SETTLED:
        return ""
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"


def _read(place: str) -> str:
    digest = hashlib.sha256()
    with open(place, "rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def remembered(places: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What is known of the files at these places: stamp and digest."""
    ask = "SELECT stamp, sha256 FROM digests WHERE path = ?"
    try:
        with closing(sqlite3.connect(f"{digests_file().as_uri()}?mode=ro", uri=True)) as memory:
            rows = [(place, memory.execute(ask, (place,)).fetchone()) for place in places]
    except sqlite3.Error:  # nothing is remembered yet, or the file is none: everything is read
        return {}
    return {place: row for place, row in rows if row}


def remember(rows: Iterable[tuple[str, str, str]]) -> None:
    """Remember place, stamp and digest of files, of those that have a stamp."""
    _change("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", [row for row in rows if row[1]])


def forget(places: Iterable[str]) -> None:
    """Have files read again that are gone, or whose content was found to be another."""
    _change("DELETE FROM digests WHERE path = ?", [(place,) for place in places])


def _change(statement: str, rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    file = digests_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, timeout=10.0)) as memory, memory:
            memory.execute(TABLE)
            memory.executemany(statement, rows)
    except (OSError, sqlite3.Error):  # then the next run reads them again
        return
