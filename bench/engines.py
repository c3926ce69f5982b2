"""Measure `build-negatives` on one core, by workers, and on clusters of this machine.

python -m bench.engines [DATASET] [--queries 4600] [--engines here,processes,dask,ray]

Each engine runs a user's command with an empty store, `here` on a single core. All Parquet files must be equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    subprocess.run(
        command,
        env={**os.environ, **variables},
        check=True,
        preexec_fn=begin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used


def content(store: Store, dataset: str) -> dict[str, Any]:
    """Return the digests of all Parquet files by path."""
    return {f"{manifest.stage}/{manifest.key}": manifest.digests for manifest in store.find(dataset)}


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", default="charades-cg")
    parser.add_argument("--queries", type=int, default=4600)
    parser.add_argument("--engines", default="here,processes,dask,ray")
    options = parser.parse_args()
    dataset, found, base = options.dataset, dict[str, Any](), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        data = smaller(dataset, options.queries, Path(folder) / "data")
        for engine in options.engines.split(","):
            variables = {
                "PENUMBRA_ENGINE": engine,
                "PENUMBRA_DATA": str(data),
                "PENUMBRA_ARTIFACTS": f"{folder}/{engine}",
                "PREFECT_HOME": f"{folder}/prefect",
                "PREFECT_API_URL": "",
            }
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
        print(f"found done {again:.1f} s, planned {planned:.1f} s")
    sys.exit(not same)


if __name__ == "__main__":
    main()
