"""Files below a root, which is a folder or any URL that fsspec opens. A file appears whole or not at all.

Paths are relative to the root, with `/` between names. A *lease* says who makes something now: one process holds it at
a time, and it ends with its holder. On a disk it is a lock of the operating system (`filelock`). On an object store it
is an object that only one process can create and that its holder renews; it lapses `LAPSES` seconds after the last
renewal. Two holders at once would write the same bytes: a lease saves work, and what the work costs.
"""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import fsspec

from penumbra.artifacts.digests import stamp_of
from penumbra.artifacts.errors import ArtifactError, without_secrets

# A bucket that answers 503 for half a minute ends no run: botocore's default of five tries takes some seconds.
RETRIES = {"config_kwargs": {"retries": {"mode": "standard", "max_attempts": 10}}}
LEASES = ".leases"
LAPSES = 60.0  # seconds after the last renewal
LOOK_EVERY = 1.0  # seconds


class Files:
    """The files below a root. If a remote root does not answer, `ArtifactError` names it and the reason."""

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else str(Path(root).expanduser().resolve())
        options = RETRIES if self.root.startswith("s3://") and "AWS_MAX_ATTEMPTS" not in os.environ else {}
        try:
            self.filesystem, self._base = fsspec.core.url_to_fs(self.root, **options)
        except (ImportError, ValueError) as error:
            raise ArtifactError(f"PENUMBRA_ARTIFACTS={without_secrets(self.root)} can't be opened: {error}") from None
        self.is_local = isinstance(self.filesystem, fsspec.implementations.local.LocalFileSystem)

    def read(self, path: str) -> bytes:
        """Return a file's content; raise `FileNotFoundError` if there is none."""
        content: bytes = self._call("cat_file", path)
        return content

    def map(self, path: str) -> memoryview:
        """Return a file's content, on a disk mapped into memory; raise `FileNotFoundError` if there is none."""
        if not self.is_local:
            return memoryview(self.read(path))
        import pyarrow as pa  # takes a fifth of a second, which a list of artifacts does not need

        return memoryview(pa.memory_map(f"{self._base}/{path}").read_buffer()).cast("B")

    def write(self, path: str, content: bytes) -> None:
        """Write a file in one step: a rename on a disk, one PUT on an object store."""
        if not self.is_local:
            self._call("pipe_file", path, content)
            return
        target = self.local(path)
        draft = target.with_name(f".{uuid.uuid4().hex}")
        try:
            with draft.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._not_writable(error) from None

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file on an object store; return False if somebody else has written it first."""
        try:
            self._call("pipe_file", path, content, mode="create")
        except FileExistsError:
            return False
        return True

    def local(self, path: str) -> Path:
        """Return a file's path on this disk and create its folder; only for a root that `is_local`."""
        target = Path(self._base, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from None
        return target

    def status(self, path: str) -> tuple[int, ...] | None:
        """Return inode, size and time of the last change of a file on a disk; None on an object store."""
        if not self.is_local:
            return None
        status = os.stat(f"{self._base}/{path}")
        return status.st_ino, status.st_size, status.st_mtime_ns

    def modified(self, path: str) -> datetime:
        """Return the time of the last change; raise `FileNotFoundError` if there is no file."""
        time_: datetime = self._call("modified", path)
        return time_

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists now, whoever made it."""
        self.filesystem.invalidate_cache()
        return bool(self._call("exists", path))

    def below(self, path: str) -> dict[str, int]:
        """Return the sizes in bytes of all files of a folder, by their paths below it."""
        return {name: int(info["size"]) for name, info in self._infos(path).items()}

    def stamps(self, path: str) -> dict[str, str]:
        """Return the stamps (see `penumbra.artifacts.digests`) of all files of a folder; '' is an unknown stamp."""
        if self.is_local:
            return {name: stamp_of(Path(self._base, path, name)) for name in self._infos(path)}
        return {
            name: f"{info['size']} {info['ETag']}" if info.get("ETag") else ""
            for name, info in self._infos(path).items()
        }

    def _infos(self, path: str) -> dict[str, dict[str, Any]]:
        self.filesystem.invalidate_cache()
        start = len(f"{self._base}/{path}/")
        return {name[start:]: info for name, info in sorted(self._call("find", path, detail=True).items())}

    def matching(self, pattern: str) -> list[str]:
        """Return the sorted paths that match a pattern such as `*/masks/*/part-*`."""
        self.filesystem.invalidate_cache()
        names = pattern.count("/") + 1
        return sorted("/".join(path.split("/")[-names:]) for path in self._call("glob", pattern))

    def remove(self, path: str) -> None:
        """Remove a file or a folder; raise `FileNotFoundError` if there is none."""
        self._call("rm", path, recursive=True)

    def _call(self, name: str, path: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self.filesystem, name)(f"{self._base}/{path}", *arguments, **options)
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # each protocol's client has its own exceptions
            if not self.is_local:
                reason = f"{type(error).__name__}: {without_secrets(str(error))}"
                raise ArtifactError(f"{without_secrets(self.root)} can't be reached ({reason})") from None
            raise (self._not_writable(error) if isinstance(error, OSError) else error) from None

    def _not_writable(self, error: OSError) -> ArtifactError:
        place = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or str(error)
        return ArtifactError(f"{self.root} can't be written: {reason}{place}: PENUMBRA_ARTIFACTS names another folder")

    @contextmanager
    def lease(self, name: str, waits: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
        """Hold the lease `name` inside; wait for it first, after calling `waits` once with its holder."""
        with (self._lock if self.is_local else self._renewed_object)(f"{LEASES}/{name}", waits):
            yield

    @contextmanager
    def _lock(self, path: str, waits: Callable[[str], None]) -> Iterator[None]:
        lock, holder = filelock.FileLock(self.local(f"{path}.lock")), self.local(f"{path}.holder")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waits(holder.read_text() if holder.exists() else "another process")
            lock.acquire()
        with lock:
            holder.write_text(_this_process())
            yield

    @contextmanager
    def _renewed_object(self, path: str, waits: Callable[[str], None]) -> Iterator[None]:
        """Hold a numbered term: when the last one has lapsed or was given back, whoever creates the next holds it."""
        waited = False
        while (mine := self._next_term(path, waits if not waited else lambda holder: None)) is None:
            waited = True
            time.sleep(LOOK_EVERY)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LAPSES / 4):
                self.write(mine, _term())

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            for term in self.matching(f"{path}.*"):
                if term <= mine:
                    self.remove(term)

    def _next_term(self, path: str, waits: Callable[[str], None]) -> str | None:
        """Return the object of the next term, or None if it could not be created now."""
        terms = self.matching(f"{path}.*")
        try:
            last = json.loads(self.read(terms[-1])) if terms else None
        except FileNotFoundError:  # given back just now
            return None
        if last and time.time() < last["renewed"] + LAPSES:
            waits(last["holder"])
            return None
        mine = f"{path}.{int(terms[-1].rpartition('.')[2]) + 1 if terms else 0:06d}"
        return mine if self.create(mine, _term()) else None


def _this_process() -> str:
    return f"process {os.getpid()} on {platform.node()} (since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)"


def _term() -> bytes:
    return json.dumps({"holder": _this_process(), "renewed": time.time()}).encode()


class JsonFolder:
    """A hidden folder of JSON files below a root: what a later run must know and no artifact contains."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._folder = files, f".{name}"

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write or replace a file."""
        self._files.write(f"{self._folder}/{name}.json", json.dumps(content).encode())

    def read_all(self) -> list[dict[str, Any]]:
        """Return the contents of all files, in the order of their names."""
        return [json.loads(self._files.read(path)) for path in self._files.matching(f"{self._folder}/*.json")]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.remove(f"{self._folder}/{name}.json")
