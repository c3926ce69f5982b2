"""Run flows on a few videos of the shipped data set in processes that can be killed.

A run is a fork of a process that has imported everything, without Prefect's server, so that a case takes seconds.
`Place.command` starts the same run as a user does, with its server.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penumbra.artifacts.catalogue import path_of
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import FileStatus
from penumbra.artifacts.manifest import Artifact, Part, WrittenPart
from penumbra.artifacts.store import Store
from penumbra.flows.commands import main as penumbra
from penumbra.flows.local_run import prepare
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.features import text, video
from penumbra.tasks.grounding.training import loop
from penumbra.tasks.grounding.training.checkpoints import Checkpoint
from tests.corner import cut_out, without_prefect

NAME = "corner"
EPOCHS = 6
MODEL = {
    "name": "qd_detr",
    "hidden": 8,
    "ablation": {"encoder_layers": 1, "decoder_layers": 1, "queries": 3, "heads": 2, "feed_forward": 8},
    "losses": {"shine": True},
}
NEGATIVES = {"filling": {"candidates": 2}, "judging": {"judge": False}}
TRAINING = {
    "preset": "scenes-qd_detr-shine",
    "model": MODEL,
    "training": {"epochs": EPOCHS, "batch_size": 8, "validation": 0.3, "start_from": ""},
}
STEPS = ("build-negatives", "extract-features", "train-grounding", "evaluate-grounding")
FLOWS = (*STEPS, "full-pipeline")
IMPORTED = ("sentence_transformers", "transformers.models.clip", "accelerate", "sklearn.linear_model")  # slow imports
OK, STOPPED, CRASHED = 0, 1, 2  # exit codes of a run
WHOLE = "made"  # file in which runs record finished parts and epochs


def noting(file: Path) -> None:
    """Make parts small, and record every finished part and epoch of this process in a file."""
    Annotations.__init__.__defaults__ = (8,)  # type: ignore[misc]
    text.TEXTS_A_PART, video.VIDEOS_A_PART = 24, 2
    write_part, write_checkpoint = Store.write, loop.write_checkpoint

    def note(*words: object) -> None:
        with file.open("a") as stream:
            stream.write(json.dumps([os.getpid(), *map(str, words)]) + "\n")

    def part(store: Store, artifact: Artifact, index: int, made: Part, files: Mapping[str, FileStatus]) -> WrittenPart:
        record = write_part(store, artifact, index, made, files)
        note(path_of(artifact), f"part {index}")
        return record

    def checkpoint(folder: Path, name: str, made: Checkpoint) -> None:
        write_checkpoint(folder, name, made)
        if name == "last":
            note(f"training {folder.name}", f"epoch {made.state['epoch']}")

    Store.write, loop.write_checkpoint = part, checkpoint  # type: ignore[method-assign]


class Place:
    """A folder with a data set, a store, a cache, and the output of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dataset, self.store, self.runs = folder / "dataset", folder / "store", count()
        self.environment = {
            "PENUMBRA_ARTIFACTS": str(self.store),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": "",
        }

    def changes(self, flow: str) -> dict[str, Any]:
        """Return the parameters of a flow."""
        videos = {"folder": f"{self.dataset}/videos", "clip_length": 1.0}
        features = {"clip": {"encoder": "tiny-clip"}, "videos": videos}
        return {"dataset": {"name": NAME, "folder": str(self.dataset)}} | {
            "build-negatives": NEGATIVES,
            "extract-features": features,
            "train-grounding": TRAINING,
            "evaluate-grounding": {},
            "full-pipeline": {"negatives": NEGATIVES, "features": features, **TRAINING},
        }[flow]

    def start(self, flow: str) -> "Run":
        """Start a flow without Prefect's server."""

        def work() -> None:
            noting(self.folder / WHOLE)
            started, _, parameters = prepare(flow, NAME, self.changes(flow))
            with without_prefect():
                started.fn(**parameters)

        return Run(self, work)

    def command(self, flow: str) -> "Run":
        """Start `penumbra run` as users do."""
        given = [f"--param={name}={json.dumps(value)}" for name, value in self.changes(flow).items()]
        words = [sys.executable, "-m", __spec__.name, str(self.folder / WHOLE), "run", flow, NAME, *given]
        return Run(self, lambda: os.execv(sys.executable, words))

    def penumbra(self, *words: str) -> tuple[int, str]:
        """Run a command of the console; return its exit code and output."""
        with patch.object(sys, "argv", ["penumbra", *words]):
            process = Run(self, penumbra)
        return process.wait(), process.output()

    def finish(self, flow: str) -> str:
        """Run a flow to its end; raise `RuntimeError` if it fails."""
        process = self.start(flow)
        if process.wait():
            raise RuntimeError(f"{flow}: {process.output()}")
        return process.output()

    def tree(self) -> dict[str, str]:
        """Return the digests of all parts and weights."""
        files = [*self.store.rglob("part-*.parquet"), *self.store.rglob("*.safetensors")]
        return {str(f.relative_to(self.store)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(files)}

    def drafts(self) -> list[str]:
        """Return the temporary files of unfinished runs."""
        return [str(it.relative_to(self.store)) for it in self.store.rglob(".*") if it.parent != self.store]

    def made(self) -> list[tuple[int, str, str]]:
        """Return process, artifact, and part or epoch of everything that runs have finished."""
        file = self.folder / WHOLE
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def made_twice(self) -> int:
        """Return the number of parts and epochs that were made again."""
        return sum(times - 1 for times in Counter(made[1:] for made in self.made()).values())

    def keep(self, name: str) -> None:
        """Copy the store under a name."""
        shutil.copytree(self.store, self.folder / name)

    def restore(self, name: str) -> None:
        """Restore the store's copy of this name, and forget what runs have made."""
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self.folder / name, self.store)
        (self.folder / WHOLE).unlink(missing_ok=True)


class Run:
    """A fork of this process in its own process group, whose id is `pid`."""

    def __init__(self, place: Place, work: Callable[[], None]) -> None:
        self.file = place.folder / f"output-{next(place.runs)}"
        self.process = get_context("fork").Process(target=self._run, args=(place, work))
        self.process.start()
        self.pid = self.process.pid or 0

    def _run(self, place: Place, work: Callable[[], None]) -> None:
        os.setsid()
        stream = os.open(self.file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.environ |= place.environment
        os._exit(_ended(work))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise `TimeoutError` if the run does not end in time."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutError
        return self.process.exitcode

    def output(self) -> str:
        return self.file.read_text(errors="replace") if self.file.exists() else ""


def _ended(work: Callable[[], None]) -> int:
    """Return the exit code of some work; a traceback gives `CRASHED`."""
    try:
        work()
        return OK
    except PenumbraError as error:
        print(f"penumbra: {error}", file=sys.stderr, flush=True)
        return STOPPED
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return CRASHED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def undisturbed(place: Place) -> tuple[dict[str, dict[str, str]], dict[str, float]]:
    """Run every flow once, each after the ones before it; return the digests and the seconds of each.

    The store before each flow is copied under the flow's name.
    """
    for name in IMPORTED:
        import_module(name)
    cut_out(place.dataset)
    place.store.mkdir()
    place.keep("full-pipeline")
    trees, seconds = {}, {}
    for flow in FLOWS:
        if flow == "full-pipeline":
            place.keep("done")
            place.restore(flow)
        else:
            place.keep(flow)
        begun = time.monotonic()
        place.finish(flow)
        trees[flow], seconds[flow] = place.tree(), time.monotonic() - begun
    return trees, seconds


if __name__ == "__main__":
    noting(Path(sys.argv.pop(1)))
    penumbra()
