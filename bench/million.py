"""Measure `build-negatives` with a million queries, of which only some parts are made (docs/scale.md).

python -m bench.million [--queries 1000000] [--parts 50] [--folder FOLDER]

All parts except some in the middle are written as copies of eight parts of Charades-CG, under other qids and videos.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import typer

from bench.engines import FLOW, places
from penumbra.artifacts.catalogue import path_of
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.store import Store, part_name
from penumbra.tasks.data.annotations import ROWS_A_PART

SOURCE, ONCE, MANY = "charades-cg", "eight-parts", "a-million"
PARTS = 8  # of Charades-CG's training queries
IDS = ("qid", "vid", "negative_qid")
IN_PARTS = ("tags", "embeddings", "in_video_negatives", "masks", "fills", "negatives", "measures")
SETTLED = 5  # parts in the middle before the rate and memory of a stage are measured
POLL = 0.5  # seconds


def prefix(copy: int) -> str:
    return f"{copy:04d}-"


def write_datasets(folder: Path, queries: int) -> int:
    """Write both data sets; return the number of copies in the larger one, or raise `ValueError` if parts lack."""
    source = data_folder() / SOURCE
    videos, rows, parts = dict[str, Any](), 0, 0
    for vid, video in json.loads((source / "train.json").read_text(encoding="utf-8")).items():
        rows, parts = (0, parts + 1) if rows >= ROWS_A_PART else (rows, parts)
        if parts == PARTS:
            break
        videos[vid] = video
        rows += len(video["sentences"])
    else:
        raise ValueError(f"{SOURCE} has less than {PARTS} parts of training queries")
    copies = -(-queries // sum(len(video["sentences"]) for video in videos.values()))
    for name, numbers in ((ONCE, [0]), (MANY, range(copies))):
        shutil.copytree(source, folder / name, ignore=lambda _, files: [it for it in files if not it.endswith(".json")])
        renamed = {f"{prefix(number)}{vid}": video for number in numbers for vid, video in videos.items()}
        (folder / name / "train.json").write_text(json.dumps(renamed), encoding="utf-8")
    return copies


def planned(dataset: str) -> dict[Artifact, Work]:
    from penumbra.flows.local_run import prepare
    from penumbra.tasks.stage import planning

    flow, _, parameters = prepare("build-negatives", dataset, {})
    with planning() as plan:
        flow.fn(**parameters)
    return plan.works


def renamed(rows: pa.Table, copy: int) -> pa.Table:
    """Return the rows of the first copy with the ids of another one."""
    for name in set(IDS) & set(rows.column_names):
        ids = pc.replace_substring_regex(rows[name], f"^{prefix(0)}", prefix(copy))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), ids)
    return rows


def write_copies(store: Store, once: Artifact, many: Artifact, copies: int, left_out: range) -> None:
    """Write the parts of the large data set that are copies of the small one's parts, except some."""
    refusals = store.rejected(once)
    for source, record in enumerate(store.manifest(once).parts):
        rows, refused = store.part(once, source), next(refusals) if record.rejected else None
        places = [(copy * PARTS + source, copy) for copy in range(copies)]
        for index, copy in places if source < PARTS else [((copies - 1) * PARTS + source, 0)]:
            if index not in left_out:
                rejected = renamed(refused, copy).to_pylist() if refused else []
                about = record.taken, record.kept, rejected, Counter(record.notes), record.cost_usd
                store.write(many, index, Part(renamed(rows, copy), *about))


@dataclass
class Watched:
    """A command, and over time the gigabytes of memory of its process and of its largest worker."""

    command: tuple[str, ...]
    seconds: float = 0.0
    held: list[tuple[float, float, float]] = field(default_factory=list)  # time, the run, the worker

    def run(self) -> "Watched":
        """Run the command; raise `RuntimeError` with the end of its output if it fails."""
        start = time.perf_counter()
        with tempfile.TemporaryFile("w+") as output:
            process = psutil.Popen(self.command, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None:
                with suppress(psutil.Error):
                    workers = [child for child in process.children() if "spawn_main" in " ".join(child.cmdline())]
                    most = max((child.memory_info().rss for child in workers), default=0)
                    self.held.append((time.time(), process.memory_info().rss / 1e9, most / 1e9))
                with suppress(psutil.TimeoutExpired):
                    process.wait(POLL)
            self.seconds = time.perf_counter() - start
            output.seek(0)
            if process.returncode:
                raise RuntimeError(f"{' '.join(self.command)} ended with {process.returncode}: {output.read()[-3000:]}")
        return self

    def between(self, start: float, end: float) -> list[tuple[float, float]]:
        """Return the gigabytes of the run and of its largest worker between two times."""
        return [(own, worker) for at, own, worker in self.held if start <= at <= end] or [(0.0, 0.0)]


def stage_lines(store: Store, watched: Watched, works: dict[Artifact, Work], middle: range) -> Iterator[str]:
    for artifact in works:
        manifest = store.manifest(artifact)
        held = max(watched.between(manifest.started.timestamp(), manifest.ended.timestamp()))[0]
        line = f"{artifact.stage:20}{manifest.rows:>12,} rows {manifest.seconds:8.1f} s   the run {held:4.2f} GB"
        if artifact.stage in IN_PARTS:
            written = sorted((Path(artifact.path) / part_name(index)).stat().st_mtime for index in middle)
            start, end = written[min(SETTLED, len(written) - 2)], written[-1]
            each = (end - start) / (len(written) - 1 - SETTLED)
            workers = [worker for _, worker in watched.between(start, end)]
            hours = each * len(manifest.parts) / 3600
            line += f", a worker {workers[0]:4.2f} to {workers[-1]:4.2f} GB, at most {max(workers):4.2f}"
            line += f"; {each:5.2f} s a part, all {hours:5.2f} h"
        yield line


def main(queries: int = 1_000_000, parts: int = 50, folder: Path | None = None) -> None:
    """Print a line for each stage. PARTS are really made; everything is kept in FOLDER or a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        measure(folder or Path(temporary), queries, parts)


def measure(folder: Path, queries: int, parts: int) -> None:
    """Make the data sets and the copied parts, then the other parts by a user's command."""
    copies = write_datasets(folder / "data", queries)
    os.environ |= places(str(folder), PENUMBRA_DATA=str(folder / "data"), XDG_CACHE_HOME=str(folder / "cache"))
    once = Watched((*FLOW, ONCE)).run()
    print(f"{PARTS} parts: {once.seconds:.0f} s; {copies} copies", flush=True)
    store, works = Store(), planned(MANY)
    middle = range((copies * PARTS - parts) // 2, (copies * PARTS + parts) // 2)
    for source, copied in zip(planned(ONCE), works, strict=True):  # the same stages, in the same order
        if copied.stage in IN_PARTS:
            start = time.perf_counter()
            write_copies(store, source, copied, copies, middle)
            size = sum(store.files.below(path_of(copied)).values()) / 1e9
            print(f"{copied.stage}: copied in {time.perf_counter() - start:.0f} s, {size:.2f} GB", flush=True)
    watched = Watched((*FLOW, MANY)).run()
    print(f"the run: {watched.seconds:.0f} s")
    for line in stage_lines(store, watched, works, middle):
        print(line)
    for what, more in (("made before", ()), ("again", ()), ("planned", ("--dry-run",))):
        print(f"{what}: {Watched((*FLOW, MANY, *more)).run().seconds:.1f} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
