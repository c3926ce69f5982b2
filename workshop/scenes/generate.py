"""Make the sample data set "scenes": Compositional-Temporal-Grounding files and the scripts behind them.

    python -m workshop.scenes.generate [--output DIR] [--videos N] [--seed S]

Writes train.json, test_trivial.json, novel_composition.json and novel_word.json (a video: sentences, timestamps,
duration, and in the novel splits what is novel) and scripts.jsonl (a video: its room, its agents and its events).
The same seed gives the same bytes on every machine.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any, NoReturn

from penumbra.tasks.data.dataset import SHIPPED as DATA
from workshop.scenes.splits import FEWEST_VIDEOS, AnnotatedVideo, make_splits

VIDEOS = 440
SEED = 2024
LABELS = {"novel_composition": "novels", "novel_word": "news"}  # split -> key of its labels

Splits = dict[str, dict[str, AnnotatedVideo]]


def name_videos(splits: dict[str, list[AnnotatedVideo]], chance: random.Random) -> Splits:
    """Give every video an id that does not tell its split; note in the events which sentences describe them."""
    count = sum(map(len, splits.values()))
    numbers = list(range(1, count + 1))
    chance.shuffle(numbers)
    named: Splits = {}
    for split, videos in splits.items():
        named[split] = {f"S{numbers.pop():04d}": video for video in videos}
    for video in (video for videos in splits.values() for video in videos):
        for index, sentence in enumerate(video.sentences):
            for event in sentence.events:
                video.script.events[event].sentences.append(index)
    return named


def annotation(video: AnnotatedVideo, split: str) -> dict[str, Any]:
    """A video as the Compositional-Temporal-Grounding files have it."""
    entry: dict[str, Any] = {
        "sentences": [sentence.text for sentence in video.sentences],
        "timestamps": [list(sentence.window) for sentence in video.sentences],
        "duration": video.script.duration,
    }
    return {**entry, LABELS[split]: video.labels} if split in LABELS else entry


def data_set(videos: int = VIDEOS, seed: int = SEED) -> dict[str, str]:
    """File name -> text of all files of the data set."""
    chance = random.Random(seed)
    splits = name_videos(make_splits(videos, chance), chance)
    files = {}
    for split, named in splits.items():
        rows = [f"{json.dumps(vid)}: {json.dumps(annotation(video, split))}" for vid, video in sorted(named.items())]
        files[f"{split}.json"] = "{" + ",\n".join(rows) + "}\n"
    scripts = {vid: video.script.record(vid, split) for split, named in splits.items() for vid, video in named.items()}
    lines = [json.dumps(script, separators=(",", ":")) for _, script in sorted(scripts.items())]
    files["scripts.jsonl"] = "\n".join(lines) + "\n"
    return files


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not FEWEST_VIDEOS <= number <= 9999:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of videos from {FEWEST_VIDEOS} to 9999")
    return number


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = _Parser(
        prog="python -m workshop.scenes.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=DATA,
        metavar="DIR",
        help="folder for the five files (default: the shipped one, %(default)s)",
    )
    parser.add_argument(
        "--videos",
        type=_count,
        default=VIDEOS,
        metavar="N",
        help=f"videos in all, at least {FEWEST_VIDEOS} (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help="any whole number (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        write(options.output, data_set(options.videos, options.seed))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{options.videos} videos in {options.output}")


if __name__ == "__main__":
    main()
