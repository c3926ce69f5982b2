"""Measure `build-negatives` on one core, by workers, and on clusters of this machine.

python -m bench.engines [DATASET] [--queries 4600] [--engines here,processes,dask,ray]

Each engine runs a user's command with an empty store, `here` on a single core. All Parquet files must be equal.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.store import Store

STAGES = ("tags", "embeddings", "fills", "negatives")
RUN = (sys.executable, "-m", "penumbra", "run")
FLOW = (*RUN, "build-negatives")


def smaller(dataset: str, queries: int, folder: Path) -> Path:
    """Write this data set with its first training queries to a folder; return the folder."""
    (folder / dataset).mkdir(parents=True)
    for file in (data_folder() / dataset).glob("*.json"):
        videos, left = json.loads(file.read_text(encoding="utf-8")), queries or sys.maxsize
        if file.stem == "train":
            videos = {vid: row for vid, row in videos.items() if (left := left - len(row["sentences"])) >= 0}
        (folder / dataset / file.name).write_text(json.dumps(videos), encoding="utf-8")
    return folder


def run(command: Sequence[str], variables: dict[str, str], cores: set[int] | None = None) -> tuple[float, float]:
    """Return the wall and CPU seconds of a command and its processes, on these cores or on all."""
    begin: Callable[[], None] | None = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    before, start = os.times(), time.perf_counter()
    env, none = {**os.environ, **variables}, subprocess.DEVNULL
    subprocess.run(command, env=env, check=True, preexec_fn=begin, stdout=none, stderr=none)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used


def content(store: Store, dataset: str) -> dict[str, Any]:
    """Return the digests of all Parquet files by path."""
    return {f"{manifest.stage}/{manifest.key}": manifest.digests for manifest in store.find(dataset)}


def places(folder: str, **variables: str) -> dict[str, str]:
    """Return the variables of a run that keeps everything in a folder, changed by some."""
    inside = {name: f"{folder}/{name.lower()}" for name in ("PENUMBRA_ARTIFACTS", "PENUMBRA_DATA", "PREFECT_HOME")}
    return {**inside, "PREFECT_API_URL": "", **variables}


def main(
    dataset: Annotated[str, typer.Argument()] = "charades-cg",
    queries: int = 4600,
    engines: str = "here,processes,dask,ray",
) -> None:
    """Print a line for each engine."""
    found, base = dict[str, Any](), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        data = str(smaller(dataset, queries, Path(folder) / "data"))
        for engine in engines.split(","):
            own = {"PENUMBRA_ENGINE": engine, "PENUMBRA_ARTIFACTS": f"{folder}/{engine}"}
            variables = places(folder, PENUMBRA_DATA=data, **own)
            wall, cpu = run((*FLOW, dataset), variables, {min(os.sched_getaffinity(0))} if engine == "here" else None)
            store = Store(variables["PENUMBRA_ARTIFACTS"])
            found[engine] = content(store, dataset)
            seconds = {it.stage: it.seconds for it in store.find(dataset)}
            base = base or seconds
            ratios = "   ".join(f"{name} {seconds[name]:.1f} s ({base[name] / seconds[name]:.2f} ×)" for name in STAGES)
            print(f"{engine:10} {wall:6.1f} s wall, CPU of its processes {cpu:6.1f} s   {ratios}", flush=True)
        same = all(one == found[engine] for one in found.values())
        print(f"all Parquet files the same: {json.dumps(same)}")
        again, planned = (run((*FLOW, dataset, *more), variables)[0] for more in ([], ["--dry-run"]))
        print(f"made before {again:.1f} s, planned {planned:.1f} s")
    sys.exit(not same)


if __name__ == "__main__":
    typer.run(main)
