"""Make the videos of the sample data set "scenes" from its scripts: one mp4 file (H.264) a script.

    python -m workshop.scenes.render FOLDER [--split SPLIT ...] [--limit N] [--processes N] [--scripts F]

Writes FOLDER/<video id>.mp4, 160 × 160 pixels, 10 frames a second, as long as the annotations say. A file that is
there and whole is left as it is: a run that was stopped goes on where it was. The same script gives the same pixels.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from penumbra.artifacts.processes import cores, end_with_parent
from workshop.scenes.encoding import encode_script, is_whole
from workshop.scenes.generate import DATA
from workshop.scenes.initial_scene import Record

SCRIPTS = DATA / "scripts.jsonl"
_STALE = 3600  # seconds after which a part of a file belongs to no run any more


@dataclass(frozen=True)
class Rendered:
    """What has become of one script: `new` or left as it was; `problem` says why there is no file."""

    vid: str
    bytes: int = 0
    new: bool = False
    problem: str | None = None


@dataclass
class Rendering:
    """What a run has done."""

    folder: Path
    videos: list[Rendered] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Rendered]:
        """The scripts that have no file."""
        return [video for video in self.videos if video.problem is not None]

    def __str__(self) -> str:
        new, size = sum(video.new for video in self.videos), sum(video.bytes for video in self.videos)
        kept = len(self.videos) - new - len(self.failed)
        return (
            f"{new} videos rendered, {kept} there already, {len(self.failed)} failed; "
            f"{size / 1e6:.1f} MB in {self.folder}; {self.seconds:.1f} s"
        )


def read_scripts(path: Path = SCRIPTS, splits: tuple[str, ...] = (), limit: int | None = None) -> list[Record]:
    """The scripts of a file like scripts.jsonl: of these splits (all if none is named), at most so many.

    Raises:
        OSError: the file can't be read
        ValueError: a line is no script, or a split is not there

    """
    scripts = [_script(line, f"{path}, line {number}") for number, line in enumerate(path.open("rb"), 1)]
    known = {script.get("split") for script in scripts}
    for split in splits:
        if split not in known:
            raise ValueError(f"{path} has no split {split!r}, only {', '.join(sorted(map(str, known)))}")
    return [script for script in scripts if not splits or script["split"] in splits][:limit]


def _script(line: bytes, where: str) -> Record:
    try:
        script = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON: {error}") from None
    if not isinstance(script, dict) or not {"vid", "duration", "setting", "agents", "events"} <= set(script):
        raise ValueError(f"{where}: no script of a video")
    if not isinstance(script["vid"], str) or not re.fullmatch(r"[\w-]+", script["vid"]):
        raise ValueError(f"{where}: {script['vid']!r} is no video id that can name a file")
    return script


def render(
    scripts: list[Record],
    folder: Path,
    processes: int | None = None,
    progress: Callable[[Rendered], None] = lambda video: None,
) -> Rendering:
    """Make the video of each script that has none yet; `progress` is called after each. A bad script stops no other.

    Args:
        scripts: objects of scripts.jsonl
        folder: where to; it is made if need be
        processes: how many work at once; as many as there are cores if not given
        progress: is called with each video, in the order of the scripts

    Raises:
        OSError: the folder can't be made
        BrokenProcessPool: a worker process was killed

    """
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    rendering = Rendering(folder)
    for video in _all(scripts, folder, processes or cores()):
        rendering.videos.append(video)
        progress(video)
    rendering.seconds = time.monotonic() - begun
    return rendering


def _all(scripts: list[Record], folder: Path, processes: int) -> Iterator[Rendered]:
    work = partial(_render_one, folder)
    if processes == 1 or len(scripts) < 2:
        yield from map(work, scripts)
        return
    spawn = multiprocessing.get_context("spawn")  # to fork is not safe where threads run, as they do under Prefect
    with ProcessPoolExecutor(min(processes, len(scripts)), spawn, end_with_parent) as pool:
        try:
            yield from pool.map(work, scripts, chunksize=2)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _render_one(folder: Path, script: Record) -> Rendered:
    path = folder / f"{script['vid']}.mp4"
    try:
        if is_whole(path, script):
            return Rendered(script["vid"], path.stat().st_size)
        return Rendered(script["vid"], encode_script(script, path), new=True)
    except Exception as error:
        return Rendered(script["vid"], problem=f"{type(error).__name__}: {error}")


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed have left."""
    for part in folder.glob(".*.mp4.*.part"):
        if time.time() - part.stat().st_mtime > _STALE:
            part.unlink(missing_ok=True)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


class _Counter:
    """Tells how far it is: in place on a terminal, else a line every tenth of the way."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.begun = total, 0, time.monotonic()

    def __call__(self, video: Rendered) -> None:
        self.done += 1
        line = f"{self.done}/{self.total} videos, {time.monotonic() - self.begun:.0f} s"
        if video.problem is not None:
            print(f"{video.vid}: {video.problem}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{line}", end="" if self.done < self.total else "\n", file=sys.stderr, flush=True)
        elif self.done * 10 // self.total != (self.done - 1) * 10 // self.total:
            print(line, file=sys.stderr, flush=True)


def _arguments() -> Parser:
    parser = Parser(
        prog="python -m workshop.scenes.render",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the mp4 files go; made if need be")
    splits = "train, test_trivial, novel_composition or novel_word; again for more (default: all)"
    parser.add_argument("--split", action="append", default=[], metavar="SPLIT", help=splits)
    parser.add_argument("--limit", type=_positive, metavar="N", help="the first N videos only")
    parser.add_argument("--processes", type=_positive, metavar="N", help="how many work at once (default: all cores)")
    scripts = "scripts of another data set, as generate writes them (default: the shipped ones)"
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, metavar="FILE", help=scripts)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """The command line. Exit status 1 if a script could not be rendered, 2 for bad arguments, 130 if interrupted."""
    parser = _arguments()
    options = parser.parse_args(arguments)
    try:
        scripts = read_scripts(options.scripts, tuple(options.split), options.limit)
        rendering = render(scripts, options.folder, options.processes, _Counter(len(scripts)))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except BrokenProcessPool:
        parser.exit(1, "a worker process was killed; the same command goes on from here\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped; the same command goes on from here\n")
    print(rendering)
    if rendering.failed:
        parser.exit(1)


if __name__ == "__main__":
    main()
