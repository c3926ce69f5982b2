"""Stage `video_features`, encoder `simulated`: clips made from the sentences of a data set, without its videos.

A clip is map · (sum of the sentences' concepts + sum of other events' concepts + background + noise), with a concept
for each lemma of a primitive. Other events are training sentences, most of which share a word with a sentence of the
video. Figures on simulated clips only rank training methods. Seed and video id determine all random numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import STAGE, VIDEOS_A_PART, VideoStage, features_table
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.stage import require_made, zip_parts
from penumbra.tasks.text.embeddings import Encoding, encode, encoder_inputs

SIMULATED = "simulated"
CLASSES = ("verb", "noun", "adjective", "preposition", "adverb")
DIFFICULTIES = {  # other events a video on average (Poisson); probability that a word is background; norm of the noise
    "easy": {"other_events": 2.0, "background": 0.3, "noise": 1.5},
    "medium": {"other_events": 4.0, "background": 0.6, "noise": 2.5},
    "hard": {"other_events": 6.0, "background": 0.8, "noise": 3.5},
}
NUMBERS: dict[str, Any] = {
    "background_strength": 0.6,  # weight of the words that are visible in the whole video
    "sharing": 0.8,  # share of other events that have a word of the video's sentences
    "event_shape": 3.0,  # shape of the gamma distribution of events' lengths
    "event_scale": 2.7,  # scale of the same distribution, in seconds
    "weights": [1.0, 1.0, 0.6, 0.5, 0.5],  # weights of words by class, in the order of CLASSES
    "own": 0.6,  # weight of a concept's random vector; the rest is shared by words of similar meaning
    "concept_width": 128,  # dimensions in which concepts are added
    "width": 256,  # dimensions of a clip
    "sentence_model": "all-MiniLM-L6-v2",  # measures the similarity of words
}
LEMMAS_A_DIMENSION = 2

REMARK = (
    "The clips are simulated from the sentences themselves: figures rank training methods and do not show how well "
    "anything works on real videos."
)

Vectors = npt.NDArray[np.float64]
Concepts = tuple[tuple[str, float], ...]  # lemmas of a sentence with their weights, sorted


class Simulation(Parameters):
    """Clips made from the sentences instead of videos; figures on them only rank training methods."""

    difficulty: Literal["none", "easy", "medium", "hard"] = Field(
        "none", description="Difficulty of simulated clips (events, background, noise); none: real videos."
    )
    seed: int = Field(0, ge=0, description="Seed of all random numbers.")

    @property
    def wanted(self) -> bool:
        return self.difficulty != "none"

    def numbers(self) -> dict[str, Any]:
        return NUMBERS | DIFFICULTIES[self.difficulty] | {"seed": self.seed}


class Planted(NamedTuple):
    """A sentence of a video: its concepts and its windows in seconds."""

    concepts: Concepts
    windows: Sequence[tuple[float, float]]


def generator(seed: int, *names: str) -> np.random.Generator:
    """Return a random generator that depends only on the seed and the names."""
    return np.random.default_rng([seed, *blake2b("\0".join(names).encode(), digest_size=8).digest()])


def concepts_of(tokens: Iterable[Mapping[str, Any]]) -> Concepts:
    """Return the concepts of a sentence's tokens, each once, with their weights."""
    weights = dict(zip(CLASSES, NUMBERS["weights"], strict=True))
    planted = (token for token in tokens if token["primitive"] and not token["is_subject"])
    return tuple(sorted({token["lemma"]: weights[token["primitive"]] for token in planted}.items()))


def meanings(lemmas: Sequence[str], width: int) -> Vectors:
    """Return SentenceBERT's unit vectors [lemmas, width], whitened, with at most one dimension per two lemmas."""
    from sklearn.decomposition import PCA

    vectors = encode(lemmas, Encoding(sentence_model=NUMBERS["sentence_model"])).astype(np.float64)
    kept = min(width, ceil(len(lemmas) / LEMMAS_A_DIMENSION), len(lemmas) - 1, vectors.shape[1])
    whitened = np.zeros((len(lemmas), width))
    if kept > 0:
        whitened[:, :kept] = PCA(kept, whiten=True, svd_solver="full").fit_transform(vectors)
    return np.asarray(whitened / np.maximum(np.linalg.norm(whitened, axis=1, keepdims=True), 1e-9))


def covered(start: float, end: float, clips: int, clip_length: float) -> Vectors:
    """Return the share of each clip that a window covers [clips]."""
    begin = np.arange(clips) * clip_length
    overlap = np.minimum(begin + clip_length, end) - np.maximum(begin, start)
    return np.asarray(np.clip(overlap / clip_length, 0, 1))


class World:
    """The data of all videos: the vector of each concept, the training sentences, and the map to features."""

    def __init__(self, sentences: Sequence[Concepts], training: Sequence[Concepts], numbers: Mapping[str, Any]) -> None:
        self.numbers, self.training = numbers, sorted(set(training))
        self.seed, self.width = numbers["seed"], numbers["concept_width"]
        lemmas = sorted({lemma for sentence in chain(sentences, training) for lemma, _ in sentence})
        shared = meanings(lemmas, self.width)
        draws = [generator(self.seed, "concept", lemma).standard_normal(self.width) for lemma in lemmas]
        own = np.array([vector / np.linalg.norm(vector) for vector in draws]).reshape(-1, self.width)
        mixed = np.sqrt(1 - numbers["own"] ** 2) * shared + numbers["own"] * own
        self.vectors = dict(zip(lemmas, mixed, strict=True))
        self.map = generator(self.seed, "map").standard_normal((self.width, numbers["width"])) / np.sqrt(self.width)
        self.with_lemma: dict[str, list[int]] = {}  # numbers of training sentences
        for number, sentence in enumerate(self.training):
            for lemma, _ in sentence:
                self.with_lemma.setdefault(lemma, []).append(number)

    def vector(self, sentence: Concepts) -> Vectors:
        return np.asarray(np.sum([weight * self.vectors[lemma] for lemma, weight in sentence], axis=0))

    def video(self, vid: str, duration: float, own: Sequence[Planted], clip_length: float) -> Float16Array:
        """Return the clips [clips, width] of a video."""
        draws, n = generator(self.seed, "video", vid), self.numbers
        clips = ceil(duration / clip_length)
        scene = draws.standard_normal((clips, self.width)) * (n["noise"] / np.sqrt(self.width))
        for planted in own:
            coverage = np.max([covered(*window, clips, clip_length) for window in planted.windows], axis=0)
            scene += coverage[:, None] * self.vector(planted.concepts)
        for _ in range(draws.poisson(n["other_events"])):
            event, length = self.other_event(own, draws), draws.gamma(n["event_shape"], n["event_scale"])
            start = draws.uniform(0, max(duration - length, 0))
            if event:
                scene += covered(start, min(start + length, duration), clips, clip_length)[:, None] * self.vector(event)
        for lemma in sorted({lemma for planted in own for lemma, _ in planted.concepts}):
            if draws.random() < n["background"]:
                scene += n["background_strength"] * self.vectors[lemma]
        return np.asarray(scene @ self.map, np.float16)

    def other_event(self, own: Sequence[Planted], draws: np.random.Generator) -> Concepts:
        """Return a random training sentence that includes no sentence of the video; empty if eight draws find none."""
        words = [lemma for planted in own for lemma, _ in planted.concepts if lemma in self.with_lemma]
        shared = words and draws.random() < self.numbers["sharing"]
        for _ in range(8):
            among = self.with_lemma[words[draws.integers(len(words))]] if shared else range(len(self.training))
            event = self.training[among[draws.integers(len(among))]] if len(among) else ()
            if event and not any(set(planted.concepts) <= set(event) for planted in own):
                return event
        return ()


@dataclass(frozen=True)
class SimulatedFeatures(VideoStage):
    """Simulated clips of every video that has a sentence with a window."""

    tags: Artifact
    simulation: Simulation
    clip_length: float

    def parameters(self) -> dict[str, Any]:
        own = {"encoder": SIMULATED, "clip_length": self.clip_length, "videos_a_part": VIDEOS_A_PART}
        return own | self.simulation.numbers()

    def inputs(self) -> dict[str, str]:
        return encoder_inputs("sentence model", NUMBERS["sentence_model"])

    @cached_property
    def videos(self) -> dict[str, tuple[float, list[Planted], int]]:
        """The duration of each video in seconds, its sentences, and the number of sentences without a concept."""
        videos: dict[str, tuple[float, list[Planted], int]] = {}
        for annotations, tags in zip_parts(require_made(self.annotations), require_made(self.tags)):
            rows = annotations.select(["vid", "duration", "windows"]).to_pylist()
            for row, tokens in zip(rows, tags["tokens"].to_pylist(), strict=True):
                duration, own, wordless = videos.get(row["vid"], (0.0, [], 0))
                concepts = concepts_of(tokens)
                if concepts and row["windows"]:
                    own.append(Planted(concepts, row["windows"]))
                videos[row["vid"]] = max(duration, row["duration"]), own, wordless + (not concepts)
        if not any(own for _, own, _ in videos.values()):
            raise FeatureError(f"{self.dataset}: nothing can be simulated: no query has a window and a word to plant")
        return videos

    @cached_property
    def world(self) -> World:
        training = [
            concepts_of(tokens)
            for annotations, tags in zip_parts(self.annotations, self.tags)
            for split, tokens in zip(annotations["split"].to_pylist(), tags["tokens"].to_pylist(), strict=True)
            if split == "train"
        ]
        sentences = [planted.concepts for _, own, _ in self.videos.values() for planted in own]
        return World(sentences, [sentence for sentence in training if sentence], self.simulation.numbers())

    @cached_property
    def durations(self) -> dict[str, float]:
        return {vid: duration for vid, (duration, _, _) in self.videos.items()}

    def part(self, piece: list[str]) -> Part:
        rows, rejected, notes = [], [], Counter[str]()
        for vid in piece:
            duration, own, wordless = self.videos[vid]
            notes["query without a word that could be planted"] += wordless
            if duration < self.clip_length:
                rejected.append(rejection(vid, STAGE, "video is shorter than a clip", f"{duration:g} s"))
            elif not own:
                rejected.append(rejection(vid, STAGE, "no sentence with a window and a word that could be planted"))
            else:
                rows.append((vid, duration, self.world.video(vid, duration, own, self.clip_length)))
        table = features_table(SIMULATED, self.clip_length, rows, NUMBERS["width"])
        return Part(table, len(piece), len(rows), rejected, +notes)


def remark_on(artifacts: Iterable[Artifact]) -> list[str]:
    """Return the remark for figures that are computed from simulated clips; empty for other artifacts."""
    manifests = [Store().manifest(artifact) for artifact in artifacts if artifact.stage == STAGE]
    return [REMARK] if any(manifest.parameters.get("encoder") == SIMULATED for manifest in manifests) else []
