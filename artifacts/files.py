"""Files below a root: a folder or any URL that fsspec opens. Each is written in one step; paths are below the root.

A *lease* keeps a name for one process, and ends with that process. On a disk it is a lock (`filelock`), on an object
store an object that its holder renews and that lapses after `LAPSES` seconds. The digest of a file is remembered with
its stamp: size, inode and times on a disk, size and ETag on an object store. A file without a stamp is always read.
"""

import hashlib
import json
import os
import platform
import re
import sqlite3
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import fsspec

from penumbra.artifacts.errors import ArtifactError, PenumbraError, without_secrets
from penumbra.artifacts.locations import digests_file
from penumbra.artifacts.processes import cores, value_set

# Ten attempts outlast half a minute of 503 answers of a bucket; botocore's default of five ends after some seconds.
RETRIES = {"config_kwargs": {"retries": {"mode": "standard", "max_attempts": 10}}}
LEASES = ".leases"  # folder
LAPSES = 60.0  # seconds after the last renewal
LOOK_EVERY = 1.0  # seconds
SETTLED = 2.0  # seconds since its last change that a file needs to have a stamp
Waits = Callable[[str], None]  # called with the holder of a lease


class Files:
    """The files below a root. If a remote root does not answer, `ArtifactError` names it and the reason."""

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else str(Path(root).expanduser().resolve())
        if re.match(r"[^/]+://([^@]*:[^@]*@|.*\?)", root, re.DOTALL):
            protocol = root.partition("://")[0]
            raise ArtifactError(
                f"{protocol}://… is given with a password or a query, which every artifact would name: leave it out "
                f"and set FSSPEC_{protocol.upper()}_USERNAME and FSSPEC_{protocol.upper()}_PASSWORD"
            )
        options = RETRIES if self.root.startswith("s3://") and "AWS_MAX_ATTEMPTS" not in os.environ else {}
        try:
            self.filesystem, self._base = fsspec.core.url_to_fs(self.root, **options)
        except (ImportError, ValueError) as error:
            raise ArtifactError(f"PENUMBRA_ARTIFACTS={without_secrets(self.root)} can't be opened: {error}") from None
        self.is_local = isinstance(self.filesystem, fsspec.implementations.local.LocalFileSystem)

    def read(self, path: str) -> bytes:
        """Return a file's content; raise `FileNotFoundError` if there is none."""
        return bytes(self.call("cat_file", path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file in one step: a rename on a disk, one PUT on an object store."""
        if not self.is_local:
            self.call("pipe_file", path, content)
            return
        with self._errors():
            write_whole(Path(self._base, path), content)

    def exists(self, path: str) -> bool:
        return bool(self.call("exists", path))

    def below(self, path: str) -> dict[str, int]:
        """Return the sizes in bytes of all files of a folder, by their paths below it."""
        return {name: int(info["size"]) for name, info in self.infos(path).items()}

    def infos(self, path: str) -> dict[str, dict[str, Any]]:
        """Return fsspec's `info` of each file and link of a folder, by its path below the folder."""
        start = len(f"{self._base}/{path}/")
        return {name[start:]: info for name, info in sorted(self.call("find", path, detail=True).items())}

    def stamps(self, path: str) -> dict[str, str]:
        """Return the stamps of all files of a folder; '' is an unknown stamp."""
        infos = self.infos(path)
        if self.is_local:
            return {name: stamp_of(Path(self._base, path, name)) for name in infos}
        return {name: f"{info['size']} {info['ETag']}" if info.get("ETag") else "" for name, info in infos.items()}

    def matching(self, pattern: str) -> list[str]:
        """Return the sorted paths that match a pattern such as `*/masks/*/part-*`."""
        names = pattern.count("/") + 1
        return sorted("/".join(path.split("/")[-names:]) for path in self.call("glob", pattern))

    def remove(self, path: str) -> None:
        """Remove a file or a folder; raise `FileNotFoundError` if there is none."""
        self.call("rm", path, recursive=True)

    def call(self, name: str, path: str, *arguments: Any, **options: Any) -> Any:
        self.filesystem.invalidate_cache()  # other processes write, too
        with self._errors():
            return getattr(self.filesystem, name)(f"{self._base}/{path}", *arguments, **options)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise `ArtifactError` if the root does not answer or can't be written."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # each protocol's client has its own exceptions
            fault = f"{self.root} can't be written: {error}: set PENUMBRA_ARTIFACTS to another folder"
            if not self.is_local:
                reason = f"{type(error).__name__}: {without_secrets(str(error))}"
                fault = f"{without_secrets(self.root)} can't be reached ({reason})"
            raise ArtifactError(fault) from None

    def lease(self, name: str, waits: Waits = lambda holder: None) -> AbstractContextManager[None]:
        """Hold the lease `name` inside; if another process holds it, call `waits` once with that holder, and wait."""
        return (self._lock if self.is_local else self._renewed_object)(f"{LEASES}/{name}", waits)

    def holders(self, prefix: str) -> list[str]:
        """Return the holders of all leases whose names begin with `prefix`; remove files of leases that have ended."""
        if not self.is_local:
            terms = [json.loads(self.read(path)) for path in self.matching(f"{LEASES}/{prefix}*")]
            return [term["holder"] for term in terms if time.time() < term["renewed"] + LAPSES]
        held = []
        for path in Path(self._base, LEASES).glob(f"{prefix}*.lock"):
            holder = path.with_suffix(".holder")
            try:
                with filelock.FileLock(path, timeout=0):
                    holder.unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
            except filelock.Timeout:
                held.append(holder.read_text() if holder.exists() else "another process")
        return held

    @contextmanager
    def _lock(self, path: str, waits: Waits) -> Iterator[None]:
        lock, holder = filelock.FileLock(Path(self._base, f"{path}.lock")), Path(self._base, f"{path}.holder")
        with self._errors():
            holder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waits(holder.read_text() if holder.exists() else "another process")
            lock.acquire()
        with lock:
            holder.write_text(_this_process())
            yield

    @contextmanager
    def _renewed_object(self, path: str, waits: Waits) -> Iterator[None]:
        """Hold a lease by creating its next numbered object (term), once the last one has lapsed or was removed."""
        mine, ended = self._next_term(path, waits), threading.Event()
        while mine is None:
            time.sleep(LOOK_EVERY)
            mine = self._next_term(path, lambda holder: None)

        def renew(term: str) -> None:
            while not ended.wait(LAPSES / 4):
                self.write(term, _term())

        renewing = threading.Thread(target=renew, args=(mine,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            for term in self.matching(f"{path}.*"):
                if term <= mine:
                    self.remove(term)

    def _next_term(self, path: str, waits: Waits) -> str | None:
        """Create the object of the next term and return its path; None if another process holds the lease."""
        terms = self.matching(f"{path}.*")
        try:
            last = json.loads(self.read(terms[-1])) if terms else None
            if last and time.time() < last["renewed"] + LAPSES:
                waits(last["holder"])
                return None
            mine = f"{path}.{int(terms[-1].rpartition('.')[2]) + 1 if terms else 0:06d}"
            self.call("pipe_file", mine, _term(), mode="create")
        except (FileNotFoundError, FileExistsError):  # another process has just removed the last, or created the next
            return None
        return mine


def _this_process() -> str:
    return f"process {os.getpid()} on {platform.node()} (since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)"


def _term() -> bytes:
    return json.dumps({"holder": _this_process(), "renewed": time.time()}).encode()


def write_whole(target: Path, content: bytes) -> None:
    """Write a file on a disk in one step, and make its folder if there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_of(output: Path) -> Iterator[Path]:
    """Yield a draft that replaces `output` at the end; it is removed if the block fails. A pipe is written directly.

    The draft's name is random, so that nobody can put a link to another file in its place.
    """
    is_file = output.is_file() or not output.exists()
    target = output.resolve() if is_file else output
    draft = target.with_name(f".{uuid.uuid4().hex}") if is_file else target
    try:
        yield draft
        if is_file:
            draft.replace(target)
    except OSError as error:
        raise PenumbraError(f"--output {output} can't be written ({error.strerror or error})") from None
    finally:
        if is_file:
            draft.unlink(missing_ok=True)


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


FileStatus = tuple[int, int]  # size in bytes, time of the last change in nanoseconds
_NOTED: ContextVar[dict[str, FileStatus]] = ContextVar("noted")


def noting_files() -> AbstractContextManager[dict[str, FileStatus]]:
    """Yield a dictionary that gets the status, by path, of every file whose digest is computed inside."""
    return value_set(_NOTED, {})


def status_of(path: str | Path) -> FileStatus:
    """Return size and time of the last change of a file; raise `OSError` if there is none."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def check_unchanged(files: Mapping[str, FileStatus]) -> None:
    """Raise `ArtifactError` if one of these files has changed since its digest was computed."""
    for path, status in files.items():
        with suppress(OSError):
            if status_of(path) == status:
                continue
        raise ArtifactError(f"{path} was changed while it was read: run the same command again when it is complete")


def digests_of(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file; raise `OSError` naming one that can't be read."""
    if (noted := _NOTED.get(None)) is not None:
        noted.update((os.path.abspath(file), status_of(file)) for file in files)
    paths = [str(file.resolve(strict=True)) for file in files]
    stamps = {path: stamp_of(path) for path in paths}
    known = remembered(stamps)
    unknown = [path for path in stamps if path not in known]
    with ThreadPoolExecutor(cores()) as readers:
        read = dict(zip(unknown, readers.map(_read, unknown), strict=True))
    remember((path, stamps[path], digest) for path, digest in read.items())
    return [(read | known)[path] for path in paths]


def _read(path: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp_of(path: str | Path) -> str:
    """Return the stamp of a file on a disk; '' if it was changed just now, is no file or does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_mtime > time.time() - SETTLED:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def remembered(stamps: Mapping[str, str]) -> dict[str, str]:
    """Return the remembered digest of each file whose stamp is the same as when the digest was computed."""
    query = "SELECT sha256 FROM digests WHERE path = ? AND stamp = ?"
    try:
        with closing(sqlite3.connect(f"{digests_file().as_uri()}?mode=ro", uri=True)) as memory:
            rows = {path: memory.execute(query, (path, stamp)).fetchone() for path, stamp in stamps.items() if stamp}
    except sqlite3.Error:  # nothing is remembered yet, or the file is damaged: everything is read
        return {}
    return {path: row[0] for path, row in rows.items() if row}


def remember(rows: Iterable[tuple[str, str, str]]) -> None:
    """Remember path, stamp and digest of files; a row without a stamp makes its file be read again."""
    file, several = digests_file(), list(rows)
    if not several:
        return
    with suppress(OSError, sqlite3.Error):  # the next run reads the files again
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, timeout=10.0)) as memory, memory:
            memory.execute("CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, stamp TEXT, sha256 TEXT)")
            memory.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", several)
