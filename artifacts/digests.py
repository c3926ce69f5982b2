"""SHA-256 of files. A file is read once and not again until it changes.

Digests are remembered in the user's cache folder by path and stamp, so that a second run over thousands of files is
quick. A stamp changes with a file: on a disk it holds size, inode and the times of the last changes, on an object
store size and ETag. A file that was written in the last seconds has no stamp: it could change again within one tick of
the clock.
"""

import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from penumbra.artifacts.locations import digests_file
from penumbra.artifacts.processes import cores

SETTLED = 2.0  # seconds after its last change from which a file has a stamp
TABLE = "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, stamp TEXT, sha256 TEXT)"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or a digest of a folder's files with their names."""
    if path.is_file():
        return digests_of([path])[0]
    return named_digest((it.relative_to(path).as_posix(), it) for it in sorted(path.rglob("*")) if it.is_file())


def named_digest(files: Iterable[tuple[str, Path | None]]) -> str:
    """Return a digest of files under given names; a name may have no file."""
    several = list(files)
    digests = iter(digests_of([file for _, file in several if file]))
    combined = hashlib.sha256()
    for name, file in several:
        line = f"{name}\0{file.name if file else ''}\0{next(digests) if file else ''}\0"
        combined.update(line.encode(errors="surrogatepass"))
    return combined.hexdigest()


def digests_of(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file; raise `OSError` naming one that can't be read."""
    paths = [str(file.resolve(strict=True)) for file in files]
    stamps = {path: stamp_of(path) for path in paths}
    known = {path: digest for path, (stamp, digest) in remembered(paths).items() if stamp and stamp == stamps[path]}
    unknown = [path for path in stamps if path not in known]
    with ThreadPoolExecutor(cores()) as readers:
        read = dict(zip(unknown, readers.map(_read, unknown), strict=True))
    remember((path, stamps[path], digest) for path, digest in read.items())
    return [(read | known)[path] for path in paths]


def _read(path: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp_of(path: str | Path) -> str:
    """Return the stamp of a file on a disk; '' if it has none, is no file or does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_mtime > time.time() - SETTLED:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def remembered(paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the remembered stamps and digests of files, by path."""
    query = "SELECT stamp, sha256 FROM digests WHERE path = ?"
    try:
        with closing(sqlite3.connect(f"{digests_file().as_uri()}?mode=ro", uri=True)) as cache:
            rows = {path: cache.execute(query, (path,)).fetchone() for path in paths}
    except sqlite3.Error:  # nothing is remembered yet, or the cache is damaged: everything is read
        return {}
    return {path: row for path, row in rows.items() if row}


def remember(rows: Iterable[tuple[str, str, str]]) -> None:
    """Remember path, stamp and digest of files; files without a stamp are left out."""
    _change("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", [row for row in rows if row[1]])


def forget(paths: Iterable[str]) -> None:
    """Forget files that were removed, or that turned out to have another content."""
    _change("DELETE FROM digests WHERE path = ?", [(path,) for path in paths])


def _change(statement: str, rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    file = digests_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, timeout=10.0)) as cache, cache:
            cache.execute(TABLE)
            cache.executemany(statement, rows)
    except (OSError, sqlite3.Error):  # the next run reads the files again
        return
