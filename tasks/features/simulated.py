"""Stage `video_features`, encoder `simulated`: clips made of what the sentences say, where nobody has the videos.

What a data set's sentences say is planted in their windows, so that a training needs no download but the annotations.
Each lemma of a verb, noun, adjective, preposition or adverb is a concept, subjects and auxiliaries left out. A clip is

    map · (sum of the sentences' concepts + sum of other events' concepts + what is seen all the time + noise)

where other events are real training sentences, most of which share a word with the video's own: no single word tells
the moment. So a model must put words together, as in a real video; perception is out of the question. Figures on
simulated clips rank ways to train, and are no figures of the data set.

All draws come from the seed and the video's id. So the same video has the same clips in any order and on any machine,
to the last bits in which machines' sentence encoders differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import STAGE, VIDEOS_A_PART, chunks, features_table
from penumbra.tasks.stage import Parameters, Stage, require_made, run, zip_parts
from penumbra.tasks.text.embeddings import Encoding, encode

SIMULATED = "simulated"
CLASSES = ("verb", "noun", "adjective", "preposition", "adverb")
DIFFICULTIES = {  # other events a video, probability that a word is seen all the time, norm of the noise
    "easy": (2.0, 0.3, 1.5),
    "medium": (4.0, 0.6, 2.5),
    "hard": (6.0, 0.8, 3.5),
}

LEMMAS_A_DIMENSION = 2

REMARK = (
    "The clips are simulated, made of the sentences themselves: figures rank ways to train, and say nothing of how "
    "well anything works on real videos."
)

Vectors = npt.NDArray[np.float64]
Concepts = tuple[tuple[str, float], ...]  # lemmas of a sentence with their weights, sorted


class Simulation(Parameters):
    """Clips made of the sentences instead of videos. Figures on them rank ways to train, nothing else."""

    difficulty: Literal["none", "easy", "medium", "hard"] = Field(
        "none", description="none: real videos. Otherwise how hard simulated clips are: events, background, noise."
    )
    other_events: float | None = Field(
        None, ge=0, le=1000, description="Other events a video, on average (Poisson); default: the difficulty's."
    )
    background: float | None = Field(
        None, ge=0, le=1, description="Probability that a word of the video is seen all the time; the difficulty's."
    )
    noise: float | None = Field(None, ge=0, description="Norm of a clip's Gaussian noise; default: the difficulty's.")
    background_strength: float = Field(0.6, ge=0, description="Weight of what is seen all the time.")
    sharing: float = Field(0.8, ge=0, le=1, description="Share of other events that have a word of the video's own.")
    event_shape: float = Field(3.0, gt=0, description="Shape of the gamma distribution of events' lengths.")
    event_scale: float = Field(2.7, gt=0, description="Its scale, in seconds.")
    weights: tuple[float, float, float, float, float] = Field(
        (1.0, 1.0, 0.6, 0.5, 0.5), description=f"Weight of a word by its class: {', '.join(CLASSES)}."
    )
    own: float = Field(
        0.6, ge=0, le=1, description="Part of a concept that is its own; the rest it shares with words of like meaning."
    )
    concept_width: int = Field(128, ge=2, le=4096, description="Dimensions in which concepts are added up.")
    width: int = Field(256, ge=2, le=65536, description="Dimensions of a clip.")
    sentence_model: str = Field("all-MiniLM-L6-v2", description="What says how like words are in meaning.")
    seed: int = Field(0, ge=0, description="Seed of everything drawn.")

    @property
    def wanted(self) -> bool:
        """Whether clips are simulated."""
        return self.difficulty != "none"

    def resolved(self) -> dict[str, Any]:
        """All numbers, those of the difficulty among them; its name changes nothing."""
        numbers = dict(zip(("other_events", "background", "noise"), DIFFICULTIES[self.difficulty], strict=True))
        said = self.model_dump(mode="json", exclude={"difficulty"}, exclude_none=True)
        return numbers | said


class SimulationError(PenumbraError):
    """A data set has nothing that could be planted."""


@dataclass(frozen=True)
class Planted:
    """A sentence in its video: its concepts and its windows, in seconds."""

    concepts: Concepts
    windows: tuple[tuple[float, float], ...]


def drawn(seed: int, *names: str) -> np.random.Generator:
    """Random numbers that belong to a name."""
    return np.random.default_rng([seed, *blake2b("\0".join(names).encode(), digest_size=8).digest()])


def concepts_of(tokens: Iterable[Mapping[str, Any]], weights: Sequence[float]) -> Concepts:
    """The concepts of a sentence's tokens, each once."""
    found = {
        token["lemma"]: weights[CLASSES.index(token["primitive"])]
        for token in tokens
        if token["primitive"] and not token["is_subject"]
    }
    return tuple(sorted((lemma, weight) for lemma, weight in found.items() if weight))


def meanings(lemmas: Sequence[str], sentence_model: str, width: int) -> Vectors:
    """Unit vectors [lemmas, width]: SentenceBERT's, centred and whitened in their first dimensions.

    There are at least two lemmas a dimension: whitened in more, all would lie equally far apart.
    """
    from sklearn.decomposition import PCA

    vectors = encode(lemmas, Encoding(sentence_model=sentence_model)).astype(np.float64)
    kept = min(width, ceil(len(lemmas) / LEMMAS_A_DIMENSION), len(lemmas) - 1, vectors.shape[1])
    found = np.zeros((len(lemmas), width))
    if kept > 0:
        found[:, :kept] = PCA(kept, whiten=True, svd_solver="full").fit_transform(vectors)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    return found


def individual(lemma: str, width: int, seed: int) -> Vectors:
    """The unit vector that is a lemma's own."""
    vector: Vectors = drawn(seed, "concept", lemma).standard_normal(width)
    return vector / np.linalg.norm(vector)


def covered(start: float, end: float, clips: int, clip_length: float) -> Vectors:
    """How much of each clip a window covers, 0 to 1 [clips]."""
    begin = np.arange(clips) * clip_length
    overlap = np.minimum(begin + clip_length, end) - np.maximum(begin, start)
    covering: Vectors = np.clip(overlap / clip_length, 0, 1)
    return covering


class World:
    """What all videos share: each concept's vector, the training sentences, and the map to features."""

    def __init__(self, sentences: Sequence[Concepts], training: Sequence[Concepts], numbers: Mapping[str, Any]) -> None:
        self.numbers, self.training = numbers, sorted(set(training))
        self.seed, self.width = numbers["seed"], numbers["concept_width"]
        lemmas = sorted({lemma for sentence in chain(sentences, training) for lemma, _ in sentence})
        shared = meanings(lemmas, numbers["sentence_model"], self.width)
        own = np.array([individual(lemma, self.width, self.seed) for lemma in lemmas]).reshape(-1, self.width)
        mixed = np.sqrt(1 - numbers["own"] ** 2) * shared + numbers["own"] * own
        self.vectors = dict(zip(lemmas, mixed, strict=True))
        self.map = drawn(self.seed, "map").standard_normal((self.width, numbers["width"])) / np.sqrt(self.width)
        self.having: dict[str, list[int]] = {}
        for number, sentence in enumerate(self.training):
            for lemma, _ in sentence:
                self.having.setdefault(lemma, []).append(number)

    def vector(self, sentence: Concepts) -> Vectors:
        """The weighted sum of a sentence's concepts [concept_width]."""
        total: Vectors = np.sum([weight * self.vectors[lemma] for lemma, weight in sentence], axis=0)
        return total

    def video(self, vid: str, duration: float, own: Sequence[Planted], clip_length: float) -> Float16Array:
        """The clips [clips, width] of a video."""
        draws, n = drawn(self.seed, "video", vid), self.numbers
        clips = ceil(duration / clip_length)
        scene = draws.standard_normal((clips, self.width)) * (n["noise"] / np.sqrt(self.width))
        for planted in own:
            there = np.max([covered(*window, clips, clip_length) for window in planted.windows], axis=0)
            scene += there[:, None] * self.vector(planted.concepts)
        for _ in range(draws.poisson(n["other_events"])):
            event, length = self.other_event(own, draws), draws.gamma(n["event_shape"], n["event_scale"])
            start = draws.uniform(0, max(duration - length, 0))
            if event:
                scene += covered(start, min(start + length, duration), clips, clip_length)[:, None] * self.vector(event)
        for lemma in sorted({lemma for planted in own for lemma, _ in planted.concepts}):
            if draws.random() < n["background"]:
                scene += n["background_strength"] * self.vectors[lemma]
        features: Float16Array = (scene @ self.map).astype(np.float16)
        return features

    def other_event(self, own: Sequence[Planted], draws: np.random.Generator) -> Concepts:
        """A training sentence that says none of the video's own; empty where a few draws find none."""
        words = [lemma for planted in own for lemma, _ in planted.concepts if lemma in self.having]
        shared = words and draws.random() < self.numbers["sharing"]
        for _ in range(8):
            among = self.having[words[draws.integers(len(words))]] if shared else range(len(self.training))
            found = self.training[among[draws.integers(len(among))]] if len(among) else ()
            if found and not any(set(planted.concepts) <= set(found) for planted in own):
                return found
        return ()


@dataclass(frozen=True)
class SimulatedFeatures(Stage):
    """Simulated clips of every video that has a sentence with a window."""

    name = STAGE
    version = 1
    unit = "video"

    annotations: Artifact
    tags: Artifact
    simulation: Simulation
    clip_length: float

    def parameters(self) -> dict[str, Any]:
        """All numbers of the simulation."""
        return {
            "encoder": SIMULATED,
            "clip_length": self.clip_length,
            "videos_a_part": VIDEOS_A_PART,
            **self.simulation.resolved(),
        }

    def determines(self) -> dict[str, Any]:
        """The same."""
        return self.parameters()

    @cached_property
    def videos(self) -> dict[str, tuple[float, list[Planted], int]]:
        """Each video's duration in seconds, its sentences, and how many of these have no word to plant."""
        found: dict[str, tuple[float, list[Planted], int]] = {}
        for annotations, tags in zip_parts(require_made(self.annotations), require_made(self.tags)):
            rows = annotations.select(["vid", "duration", "windows"]).to_pylist()
            for row, tokens in zip(rows, tags["tokens"].to_pylist(), strict=True):
                duration, own, wordless = found.get(row["vid"], (0.0, [], 0))
                concepts = concepts_of(tokens, self.simulation.weights)
                if concepts and row["windows"]:
                    own.append(Planted(concepts, tuple((start, end) for start, end in row["windows"])))
                found[row["vid"]] = max(duration, row["duration"]), own, wordless + (not concepts)
        if not any(own for _, own, _ in found.values()):
            raise SimulationError(
                f"{self.dataset}: no query has both a window and a word that could be planted; nothing can be simulated"
            )
        return found

    @cached_property
    def world(self) -> World:
        """What all videos share."""
        training = [
            concepts_of(tokens, self.simulation.weights)
            for annotations, tags in zip_parts(self.annotations, self.tags)
            for split, tokens in zip(annotations["split"].to_pylist(), tags["tokens"].to_pylist(), strict=True)
            if split == "train"
        ]
        sentences = [planted.concepts for _, own, _ in self.videos.values() for planted in own]
        return World(sentences, [sentence for sentence in training if sentence], self.simulation.resolved())

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        """The videos of each part."""
        return chunks(self.videos)

    def part(self, piece: list[str]) -> Part:
        """Simulate one part's videos."""
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
        table = features_table(SIMULATED, self.clip_length, rows, self.simulation.width)
        return Part(table, len(piece), len(rows), rejected, +notes)


def remark_on(artifacts: Iterable[Artifact]) -> list[str]:
    """What must be said of figures where any of these artifacts are simulated clips."""
    features = [Store().manifest(artifact) for artifact in artifacts if artifact.stage == STAGE]
    return [REMARK] if any(found.parameters.get("encoder") == SIMULATED for found in features) else []


def simulate(annotations: Artifact, tags: Artifact, simulation: Simulation, clip_length: float) -> Artifact:
    """Make clips of the sentences of a data set."""
    return run(SimulatedFeatures(annotations, tags, simulation, clip_length))
