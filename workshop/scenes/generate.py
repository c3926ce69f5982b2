"""Make the data set "scenes": Compositional-Temporal-Grounding files and the scripts of the videos.

    python -m workshop.scenes.generate --output DIR [--videos N] [--seed S]

Writes train.json, test_trivial.json, novel_composition.json and novel_word.json (a video's sentences, timestamps and
duration, and in the novel splits the novel words) and scripts.jsonl (a video's room, agents and events).
The same seed gives the same bytes on every machine.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from workshop.scenes import world
from workshop.scenes.script import Script, write_script
from workshop.scenes.sentences import Pair, Sentence, SentenceWriter

TYPES = ("v-n", "a-n", "n-n", "v-adv", "p-n")
HELD_OUT = {"v-n": 0.10, "a-n": 0.12, "n-n": 0.15, "v-adv": 0.10, "p-n": 0.10}  # share of all occurrences
COMMONEST = 0.03  # largest share of its type that a held-out pair may have
PILOT = 150  # scripts in which the pairs are counted
TRIES = 10  # wordings for an event
SHARES = {"train": 0.51, "test_trivial": 0.13, "novel_composition": 0.22, "novel_word": 0.14}  # of the videos

NOVEL_WORDS = {world.NOVEL_AGENT, world.NOVEL_COLOUR, world.NOVEL_PATTERN}
NOVEL_WORDS |= {noun for noun, kind in world.NOUNS.items() if kind.novel}
NOVEL_WORDS |= {*world.NOVEL_ADVERBS.values(), *world.NOVEL_SIZE_WORDS.values(), *world.NOVEL_PREPOSITIONS.values()}
NOVEL_WORDS |= {verb for verbs in world.NOVEL_VERBS.values() for verb in verbs}

Label = dict[str, list[list[str]]] | dict[str, list[str]]
Acceptance = Callable[[Sentence], bool]


@dataclass
class AnnotatedVideo:
    """A script with its sentences, and in the novel splits a label for each sentence."""

    script: Script
    sentences: list[Sentence]
    labels: list[Label] = field(default_factory=list)


class TrainingVocabulary:
    def __init__(self, videos: list[AnnotatedVideo]) -> None:
        sentences = [sentence for video in videos for sentence in video.sentences]
        self.texts = {sentence.text for sentence in sentences}
        self.words = {word for sentence in sentences for word in sentence.words}
        self.lemmas = {lemma for sentence in sentences for _, lemma in sentence.lemmas}
        self.pairs = {pair for sentence in sentences for pair in sentence.pairs}


def hold_out(chance: random.Random) -> frozenset[Pair]:
    """Return pairs for Novel-Composition of each type, at most a quarter of the occurrences of a word."""
    counts, budget = Counter[Pair](), Counter[str]()
    for _ in range(PILOT):
        script = write_script(chance)
        writer = SentenceWriter(script, chance)
        for index in range(len(script.events)):
            for _ in range(2):
                counts.update(writer.describe(index).pairs)
    for pair, count in counts.items():
        budget.update(dict.fromkeys(pair[1:], count))
    held: set[Pair] = set()
    for kind, share in HELD_OUT.items():
        of_kind = {pair: count for pair, count in counts.items() if pair[0] == kind}
        left, most = share * sum(of_kind.values()), max(2, COMMONEST * sum(of_kind.values()))
        named = [pair for pair in sorted(of_kind) if kind == "v-adv" or pair[2] in world.NOUNS]
        candidates = [pair for pair in named if 2 <= of_kind[pair] <= most]  # neither rare nor common
        chance.shuffle(candidates)
        for pair in candidates:
            count = counts[pair]
            if count <= left and 4 * count <= min(budget[word] for word in pair[1:]):
                left -= count
                held.add(pair)
                budget.subtract(dict.fromkeys(pair[1:], 4 * count))
    return frozenset(held)


def annotated_videos(count: int, accept: Acceptance, chance: random.Random, *, novel=False) -> list[AnnotatedVideo]:
    videos = list[AnnotatedVideo]()
    for _ in range(600 * count):
        script, sentences = write_script(chance, novel=novel), dict[str, Sentence]()
        writer = SentenceWriter(script, chance, novel=novel)
        for index in range(len(script.events)):
            wanted = len(sentences) + chance.choice((1, 2, 2))
            for _ in range(TRIES):
                if len(sentences) < wanted and accept(sentence := writer.describe(index)):
                    sentences.setdefault(sentence.text, sentence)
        if sentences and len(sentences) >= min(2, len(script.events)):
            videos.append(AnnotatedVideo(script, list(sentences.values())))
        if len(videos) == count:
            return videos
    raise ValueError(f"no {count} videos with fitting sentences: ask for more videos or another seed")


def composition_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[list[str]]]:
    fresh = sorted(sentence.pairs - seen.pairs)
    label = {kind: [list(pair[1:]) for pair in fresh if pair[0] == kind] for kind in TYPES}
    return {kind: pairs for kind, pairs in label.items() if pairs}


def word_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[str]]:
    fresh = sorted((pos, lemma) for pos, lemma in sentence.lemmas if lemma not in seen.lemmas)
    return {pos: [lemma for _, lemma in group] for pos, group in groupby(fresh, key=itemgetter(0))}


def _has_novel_pair(sentence: Sentence, kind: str, held: frozenset[Pair], seen: TrainingVocabulary) -> bool:
    fresh = any(pair[0] == kind for pair in sentence.pairs & held) and sentence.pairs - held <= seen.pairs
    return fresh and sentence.words <= seen.words


def _has_novel_word(sentence: Sentence, held: frozenset[Pair], seen: TrainingVocabulary) -> bool:
    fresh = {lemma for _, lemma in sentence.lemmas} - seen.lemmas
    unseen = sentence.words - seen.words
    old_pairs = {pair for pair in sentence.pairs if fresh.isdisjoint(pair[1:])}
    return bool(fresh) and fresh <= NOVEL_WORDS and len(fresh) == len(unseen) and old_pairs <= seen.pairs - held


def make_splits(videos: int, chance: random.Random) -> dict[str, list[AnnotatedVideo]]:
    """Return the four splits, with `videos` videos in all. The others depend on the training split."""
    counts = {name: round(share * videos) for name, share in SHARES.items()}
    counts["train"] += videos - sum(counts.values())
    held = hold_out(chance)
    train = annotated_videos(counts["train"], lambda sentence: held.isdisjoint(sentence.pairs), chance)
    seen = TrainingVocabulary(train)
    trivial = annotated_videos(
        counts["test_trivial"],
        lambda it: it.pairs <= seen.pairs and it.text not in seen.texts and it.words <= seen.words,
        chance,
    )
    composition, count = list[AnnotatedVideo](), counts["novel_composition"]
    for i, kind in enumerate(TYPES):
        wanted = count // len(TYPES) + (i < count % len(TYPES))
        composition += annotated_videos(wanted, lambda it, kind=kind: _has_novel_pair(it, kind, held, seen), chance)
    word = annotated_videos(counts["novel_word"], lambda it: _has_novel_word(it, held, seen), chance, novel=True)
    for some, label in ((composition, composition_label), (word, word_label)):
        for video in some:
            video.labels = [label(sentence, seen) for sentence in video.sentences]
    return {"train": train, "test_trivial": trivial, "novel_composition": composition, "novel_word": word}


VIDEOS = 440
SEED = 2024
LABELS = {"novel_composition": "novels", "novel_word": "news"}  # split -> key of its labels


def annotation(video: AnnotatedVideo, split: str) -> dict[str, Any]:
    labels = {LABELS[split]: video.labels} if split in LABELS else {}
    texts, windows = zip(*((sentence.text, sentence.window) for sentence in video.sentences), strict=True)
    return {"sentences": texts, "timestamps": windows, "duration": video.script.duration, **labels}


def data_set(videos: int = VIDEOS, seed: int = SEED) -> dict[str, str]:
    """Return the content of each file; a video's id does not depend on its split."""
    chance = random.Random(seed)
    splits, files, scripts = make_splits(videos, chance), dict[str, str](), dict[str, str]()
    numbers = list(range(1, sum(map(len, splits.values())) + 1))
    chance.shuffle(numbers)
    for split, several in splits.items():
        rows = {}
        for video in several:
            vid = f"S{numbers.pop():04d}"
            for index, sentence in enumerate(video.sentences):
                for event in sentence.events:
                    video.script.events[event].sentences.append(index)
            rows[vid] = f"{json.dumps(vid)}: {json.dumps(annotation(video, split))}"
            scripts[vid] = json.dumps(video.script.record(vid, split), separators=(",", ":"))
        files[f"{split}.json"] = "{" + ",\n".join(rows[vid] for vid in sorted(rows)) + "}\n"
    files["scripts.jsonl"] = "".join(f"{scripts[vid]}\n" for vid in sorted(scripts))
    return files


def main(output: Annotated[Path, typer.Option()], videos: int = VIDEOS, seed: int = SEED) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name, text in data_set(videos, seed).items():
        (output / name).write_bytes(text.encode())


if __name__ == "__main__":
    typer.run(main)
