"""Import and decode thousands of damaged feature files and videos: none may crash the run or be lost silently.

python -m bench.campaigns.fuzz --files 10000 --videos 200

A case is an intact file with some changed bytes, which its number determines. docs/reliability.md has the definitions.
"""

import io
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import typer

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.decoders import Decoder, each_decoded
from penumbra.tasks.features.errors import FeatureError, VideoError
from penumbra.tasks.features.frames import VideoSummary
from penumbra.tasks.features.imports import ImportedFeatures, Imports, Source
from penumbra.tasks.features.reading import matrix_of
from tests.films import film

BATCH = 250  # cases per process
PATIENCE = 300  # seconds that a batch may take
MATRIX = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
INTACT, CASE = "intact", "case"
CONTAINERS = {"mp4": "libx264", "mkv": "libx264", "ts": "libx264", "avi": "mpeg4", "mov": "mjpeg"}


@dataclass
class Outcome:
    """The results of a number of cases."""

    cases: int = 0
    crashes: int = 0
    losses: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Outcome") -> None:
        self.cases += other.cases
        self.crashes += other.crashes
        self.losses += other.losses
        self.reasons += other.reasons

    def row(self, name: str) -> str:
        """Return a row of a Markdown table."""
        results = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.most_common(4))
        return f"| {name} | {self.cases:,} | {self.crashes} | {self.losses} | {self.seconds:.0f} | {results} |"


def damaged(data: bytes, number: int) -> bytes:
    """Return the bytes with one to sixteen changes, mostly near the beginning; one case in twenty is also cut off."""
    chance = random.Random(number)
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(min(len(changed), chance.choice((128, 1024, len(changed)))))
        changed[at] = chance.choice((0, 127, 128, 255, chance.randrange(256), changed[at] ^ 1 << chance.randrange(8)))
    if chance.random() < 0.05:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed)


def _saved(save: Callable[..., None], **arrays: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _hdf5(libver: str, options: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=libver) as file:
        for vid in "abc":
            file.create_dataset(f"{vid}/c3d" if vid == "c" else vid, data=MATRIX, **options)
    return stream.getvalue()


def files() -> dict[str, tuple[bytes, ...]]:
    """Return intact files of each format."""
    summed = {"chunks": (4, 6), "fletcher32": True}
    packed = {"chunks": (4, 6), "compression": "gzip", "shuffle": True}
    hdf5 = ("earliest", {}), ("earliest", packed), ("latest", packed), ("latest", summed)
    return {
        "npy": (_saved(np.save, arr=MATRIX), _saved(np.save, arr=np.asfortranarray(MATRIX.astype(np.float16)))),
        "npz": (_saved(np.savez, features=MATRIX), _saved(np.savez_compressed, features=MATRIX)),
        "h5": tuple(_hdf5(*it) for it in hdf5),
    }


def import_batch(suffix: str, start: int, count: int) -> Outcome:
    """Import cases of a format; an exception is a crash."""
    intact, outcome = files()[suffix], Outcome(count)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / f"{INTACT}.npy", MATRIX)
        for number in range(start, start + count):
            file = folder / f"{CASE}{number if suffix == 'h5' else ''}.{suffix}"  # HDF5 may keep a file open
            file.write_bytes(damaged(intact[number % len(intact)], number))
            try:
                outcome.add(_imported(file if suffix == "h5" else folder))
            except Exception:
                outcome.crashes += 1
                print(f"{suffix} case {number}:\n{traceback.format_exc()}", file=sys.stderr)
            file.unlink()
    return outcome


def _imported(path: Path) -> Outcome:
    """Import a folder with a case and an intact file, or an HDF5 file."""
    outcome = Outcome()
    vids = list("abc") if path.is_file() else [CASE, INTACT]
    imports = Imports(sources=[Source(path=str(path), dimension=MATRIX.shape[1])])
    stage = ImportedFeatures(Artifact(root="/", dataset="d", stage="annotations", key=""), imports, 1.0)
    vars(stage)["durations"] = dict.fromkeys(vids, 10.0)
    try:
        part = stage.part(vids)
    except FeatureError:
        return Outcome(reasons=Counter({"no HDF5 file": 1}))
    kept = dict(
        zip(part.rows["vid"].to_pylist(), (matrix_of(rows.values) for rows in part.rows["features"]), strict=True)
    )
    reasons = {row["qid"]: row["reason"] for row in part.rejected}
    whole = {vid: np.array_equal(matrix, MATRIX.astype(np.float16)) for vid, matrix in kept.items()}
    outcome.losses += sum((vid in kept) == bool(reasons.get(vid)) for vid in vids)
    outcome.losses += path.is_dir() and not whole.get(INTACT)
    outcome.losses += (path / f"{CASE}.npz").is_file() and not whole.get(CASE, True)
    several = sorted({"imported" if vid in kept else reasons.get(vid, "lost") for vid in vids if vid != INTACT})
    outcome.reasons[" and ".join(several)] += 1
    return outcome


def run_files(suffix: str, cases: int) -> Outcome:
    """Import damaged files of a format in processes; the end of a process is a crash."""
    begun, total = time.monotonic(), Outcome()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for start in range(0, cases, BATCH):
        count = min(BATCH, cases - start)
        with ProcessPoolExecutor(1, context) as pool:
            future = pool.submit(import_batch, suffix, start, count)
            try:
                total.add(future.result(PATIENCE))
            except (BrokenProcessPool, TimeoutError) as error:
                reason = "hung" if isinstance(error, TimeoutError) else "ended its process"
                total.add(Outcome(count, crashes=1, reasons=Counter({reason: count})))
                print(f"{suffix} cases {start} to {start + count - 1}: {reason}", file=sys.stderr)
                for process in pool._processes.values():
                    process.kill()
    total.seconds = time.monotonic() - begun
    return total


def run_videos(cases: int, workers: int = 2) -> Outcome:
    """Decode damaged videos, and an intact one after every fifth of them."""
    begun, outcome = time.monotonic(), Outcome()
    with tempfile.TemporaryDirectory() as temporary:
        videos = dict(_films(Path(temporary), cases))
        ends: dict[str, str] = {}
        decoders = [Decoder(0.5) for _ in range(workers)]
        try:
            results = each_decoded(_decoded, videos.values(), ThreadPoolExecutor(workers), decoders)
            for vid, (end, clips) in zip(videos, results, strict=True):
                ends[vid] = end
                outcome.losses += vid.startswith(INTACT) and clips != 4
        except Exception:
            outcome.crashes += 1
            print(traceback.format_exc(), file=sys.stderr)
    outcome.cases = sum(not vid.startswith(INTACT) for vid in videos)
    outcome.losses += len(videos.keys() - ends.keys())
    outcome.reasons.update(end for vid, end in ends.items() if not vid.startswith(INTACT))
    outcome.seconds = time.monotonic() - begun
    return outcome


def _decoded(path: Path, decoder: Decoder) -> tuple[str, int]:
    summary = VideoSummary()
    try:
        return "decoded", sum(1 for _ in decoder.frames(path, summary))
    except VideoError as error:
        return error.reason, 0


def _films(folder: Path, cases: int) -> Iterator[tuple[str, Path]]:
    intact = [film(folder / f"{INTACT}.{suffix}", codec=codec) for suffix, codec in CONTAINERS.items()]
    for number in range(cases):
        original = intact[number % len(intact)]
        path = folder / f"{CASE}-{number}{original.suffix}"
        path.write_bytes(damaged(original.read_bytes(), number))
        yield path.stem, path
        if number % 5 == 0:
            yield f"{INTACT}-{number}", original


def main(files: int = 10_000, videos: int = 200) -> None:
    """Run the campaign; exit with 1 after a crash or a loss."""
    counts = {"npy": files // 3, "npz": files // 3, "h5": files - 2 * (files // 3)}
    outcomes = {f".{suffix} files, bytes changed": run_files(suffix, count) for suffix, count in counts.items()}
    outcomes["videos, bytes changed"] = run_videos(videos)
    for name, outcome in outcomes.items():
        print(outcome.row(name))
    sys.exit(any(outcome.crashes or outcome.losses for outcome in outcomes.values()))


if __name__ == "__main__":
    typer.run(main)
