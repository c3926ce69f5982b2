"""Files below a root, which is a folder or any URL that fsspec opens: each is there whole or not at all.

Paths are relative to the root, with `/` between their names.
"""

import json
import os
import stat
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from penumbra.artifacts.digests import stamp_of
from penumbra.artifacts.errors import ArtifactError, without_secrets

# A bucket that is away for half a minute (503) ends no run: botocore's five tries are over in some seconds.
PATIENT = {"config_kwargs": {"retries": {"mode": "standard", "max_attempts": 10}}}


class Files:
    """What lies below a root. Where a root elsewhere does not answer, `ArtifactError` names it and the reason."""

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else str(Path(root).expanduser().resolve())
        try:
            patient = PATIENT if self.root.startswith("s3://") and "AWS_MAX_ATTEMPTS" not in os.environ else {}
            self.filesystem, self._base = fsspec.core.url_to_fs(self.root, **patient)
        except (ImportError, ValueError) as error:
            raise ArtifactError(f"PENUMBRA_ARTIFACTS={without_secrets(self.root)} can't be opened: {error}") from None
        self.is_local = isinstance(self.filesystem, fsspec.implementations.local.LocalFileSystem)

    def read(self, path: str) -> bytes:
        """A file's content; raises `FileNotFoundError`."""
        content: bytes = self._call("cat_file", self._absolute(path))
        return content

    def map(self, path: str) -> memoryview:
        """A file's content, on a disk without reading it yet; raises `FileNotFoundError`."""
        if self.is_local:
            import pyarrow as pa  # a fifth of a second, which a list of what is there need not wait for

            return memoryview(pa.memory_map(self._absolute(path)).read_buffer()).cast("B")
        return memoryview(self.read(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file in one step: a rename on a disk, one PUT on an object store."""
        if not self.is_local:
            self._call("pipe_file", self._absolute(path), content)
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
            raise self._refused(error) from None

    def create(self, path: str, content: bytes) -> bool:
        """Write a file that is not there, on an object store: False where somebody else has written it first."""
        try:
            self._call("pipe_file", self._absolute(path), content, mode="create")
        except FileExistsError:
            return False
        return True

    def local(self, path: str) -> Path:
        """Where a file lies on this disk, its folder made; only of a root that `is_local`."""
        target = Path(self._absolute(path))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from None
        return target

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """What changes with a file on a disk (inode, size, time of its last change); None elsewhere."""
        if not self.is_local:
            return None
        found = os.stat(self._absolute(path))
        return found.st_ino, found.st_size, found.st_mtime_ns

    def modified(self, path: str) -> datetime:
        """When a file was written last; raises `FileNotFoundError`."""
        written: datetime = self._call("modified", self._absolute(path))
        return written

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder now, whoever made it."""
        self._call("invalidate_cache")
        return bool(self._call("exists", self._absolute(path)))

    def below(self, path: str) -> dict[str, int]:
        """All files of a folder, by their paths below it, and their sizes in bytes."""
        self._call("invalidate_cache")
        folder = self._absolute(path)
        found = self._call("find", folder, detail=True)
        return {name.removeprefix(f"{folder}/"): int(info["size"]) for name, info in sorted(found.items())}

    def stamps(self, path: str) -> dict[str, str]:
        """All files of a folder, by their paths below it, and the stamp of each (`penumbra.artifacts.digests`).

        It is '' where the store has none of a file.
        """
        if self.is_local:
            folder = Path(self._absolute(path))
            return {
                it.relative_to(folder).as_posix(): stamp
                for it in folder.rglob("*")
                if (stamp := _stamp(it)) is not None
            }
        self._call("invalidate_cache")
        found = self._call("find", self._absolute(path), detail=True)
        start = len(self._absolute(path)) + 1
        return {
            name[start:]: f"{info['size']} {info['ETag']}" if info.get("ETag") else "" for name, info in found.items()
        }

    def matching(self, pattern: str) -> list[str]:
        """The paths, in order, that match a pattern such as `*/masks/*/part-*`."""
        self._call("invalidate_cache")
        names = pattern.count("/") + 1
        return sorted("/".join(path.split("/")[-names:]) for path in self._call("glob", self._absolute(pattern)))

    def remove(self, path: str) -> None:
        """Take a file or a folder away; raises `FileNotFoundError`."""
        self._call("rm", self._absolute(path), recursive=True)

    def _absolute(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self.filesystem, name)(*arguments, **options)
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # each protocol's client has its own
            if isinstance(error, OSError) and self.is_local:
                raise self._refused(error) from None
            if self.is_local:
                raise
            reason = f"{type(error).__name__}: {without_secrets(str(error))}"
            raise ArtifactError(f"{without_secrets(self.root)} can't be reached ({reason})") from None

    def _refused(self, error: OSError) -> ArtifactError:
        """What to raise where the disk is full, the folder can't be written, or a file is in its place."""
        where = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or str(error)
        return ArtifactError(f"{self.root} can't be written: {reason}{where}: PENUMBRA_ARTIFACTS names another folder")


def _stamp(path: Path) -> str | None:
    """The stamp of a file on this disk; None where it is a folder, or gone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return stamp_of(found) if stat.S_ISREG(found.st_mode) else None


class JsonFolder:
    """A hidden folder of JSON files below a root: what a later run must know, and is part of no artifact."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._folder = files, f".{name}"

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a file, or write it anew."""
        self._files.write(f"{self._folder}/{name}.json", json.dumps(content).encode())

    def read_all(self) -> list[dict[str, Any]]:
        """The contents of all files, in the order of their names."""
        return [json.loads(self._files.read(path)) for path in self._files.matching(f"{self._folder}/*.json")]

    def remove(self, name: str) -> None:
        """Take a file away."""
        self._files.remove(f"{self._folder}/{name}.json")
