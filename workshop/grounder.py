"""Make the training data of the shipped grounding model: scenes that are not in the data set, with features.

    python -m workshop.grounder FOLDER [--scenes N] [--seed S]

Writes FOLDER/train.jsonl, val.jsonl and features/<vid>.npy: features of the tiny CLIP for clips of half a second,
computed from the frames without a video file. No sentence contains a pair held out for Novel-Composition, a word of
Novel-Word, or the words of a test query.
"""

import json
import random
from pathlib import Path

import numpy as np
import torch
import typer

from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.features.clip import Clip, Encoder, load, normalise
from penumbra.tasks.features.frames import resize
from penumbra.tasks.features.video import frame_states
from workshop.scenes import generate
from workshop.scenes.generate import AnnotatedVideo, annotated_videos, hold_out
from workshop.tiny_clip.clips import Pictures, content, known_scenes, pictures_of_video

TESTS = ("test_trivial", "novel_composition", "novel_word")
HELD_OUT = 0.05  # share of the scenes for validation
CLIPS_AT_ONCE = 64


def other_scenes(count: int, seed: int) -> list[AnnotatedVideo]:
    """Return scenes with sentences like those of the training split, which the seed determines."""
    held = hold_out(random.Random(generate.SEED))
    files = [json.loads((SHIPPED / f"{split}.json").read_text(encoding="utf-8")) for split in TESTS]
    tests = {text for videos in files for video in videos.values() for text in video["sentences"]}
    return annotated_videos(count, lambda it: held.isdisjoint(it.pairs) and it.text not in tests, random.Random(seed))


@torch.inference_mode()
def features_of(pictures: Pictures, encoder: Encoder) -> np.ndarray:
    """Return the features [clips, dimension] of clips (clips, frames, rows, columns, 3)."""
    parts = []
    joined = [np.concatenate([resize(it, encoder.resizing) for it in frames], axis=-1) for frames in pictures]
    for start in range(0, len(joined), CLIPS_AT_ONCE):
        pixels = normalise(joined[start : start + CLIPS_AT_ONCE], encoder)
        parts.append(frame_states(encoder.model, pixels).half().cpu())
    return torch.cat(parts).numpy()


def main(folder: Path, scenes: int = 2000, seed: int = 7) -> None:
    encoder, known = load(Clip(encoder="tiny-clip")), known_scenes()
    (folder / "features").mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {"train": [], "val": []}
    for number, video in enumerate(other_scenes(scenes, seed)):
        vid = f"P{number:05d}"
        record = video.script.record(vid, "train")
        if content(record) in known:
            continue
        for place, sentence in enumerate(video.sentences):
            row = {"qid": f"{vid}_{place}", "query": sentence.text, "vid": vid, "duration": video.script.duration}
            row["relevant_windows"] = [sentence.window]
            lines["val" if number < HELD_OUT * scenes else "train"].append(json.dumps(row))
        np.save(folder / "features" / f"{vid}.npy", features_of(pictures_of_video(record), encoder))
    for split, several in lines.items():
        (folder / f"{split}.jsonl").write_text("\n".join(several) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
