"""Moments in any video: a trained run, with the encoders that made the features which it was trained on.

grounder = Grounder.of_run("ab12")
for found in grounder.ground("video.mp4", ["a person opens the door.", "the person sits down."]):
    found.query, found.windows[0].start, found.windows[0].end, found.saliency
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.clip import Clip, Encoder, digests, load
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.simulated import SIMULATED
from penumbra.tasks.features.text import TextEncoder, load_text_encoder
from penumbra.tasks.grounding.batches.examples import Features, joined, normalised, prepare
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.prediction.watching import Watched, watch
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import chosen_run, load_run, run_name

VIDEO = "video"
Loaded = TypeVar("Loaded")


class PredictionError(PenumbraError):
    """The run can't be used on a video, or the query is none; the message says what to do."""


@dataclass(frozen=True)
class Window:
    """A moment, in seconds, and how sure the model is of it (0 to 1)."""

    start: float
    end: float
    score: float


@dataclass(frozen=True)
class Grounding:
    """What a model says of a query: windows, best first, and the saliency of each clip (none, for some models).

    Clip i covers [i · clip_length, (i + 1) · clip_length) seconds; the video that the model saw lasts `duration`.
    """

    query: str
    windows: tuple[Window, ...]
    saliency: tuple[float, ...]
    clip_length: float
    duration: float


class Grounder:
    """A run ready for videos of one's own.

    Args:
        name: what the run is called
        model: its best weights
        settings: the run's
        video_encoders: CLIP, one for each source of video features, as the model takes them side by side
        text_encoder: CLIP's text side, or another
        clip_length: seconds of a clip

    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        settings: Settings,
        video_encoders: Sequence[Encoder],
        text_encoder: TextEncoder,
        clip_length: float,
    ) -> None:
        self.name, self.settings, self.clip_length = name, settings, clip_length
        self.video_encoders, self.text_encoder = video_encoders, text_encoder
        self.device, self.system = device_of("auto"), system_of(settings)
        self.model = model.eval().to(self.device)

    @classmethod
    def of_run(cls, run: str, dataset: str | None = None) -> "Grounder":
        """A run by its key, the first digits of it, or its name, of any data set or of one.

        Raises:
            ArtifactError: no run is called so, or several are
            PredictionError: it was trained on features that no encoder at hand computes

        """
        metrics = chosen_run(dataset, run)
        model, settings = load_run(metrics)
        name = run_name(settings, metrics.key)
        store = Store()
        parents = [(parent, store.manifest(parent)) for parent in store.manifest(metrics).parents]
        videos = [_own(name, parent, told) for parent, told in parents if parent.stage == "video_features"]
        [text] = [_own(name, parent, told) for parent, told in parents if parent.stage == "text_features"]
        lengths = {told.parameters["clip_length"] for parent, told in parents if parent.stage == "video_features"}
        encoders = [_loaded(name, clip, load) for clip in videos]
        return cls(name, model, settings, encoders, _loaded(name, text, load_text_encoder), lengths.pop())

    def ground(self, video: str | Path, queries: Sequence[str]) -> list[Grounding]:
        """Find each query's moments in a video file; the video is decoded and encoded once for all of them.

        Raises:
            UnreadableError: the file is no video that can be used
            PredictionError: a query is empty

        """
        texts = checked(queries)
        return self.ask(self.watch(video), texts)

    def watch(self, video: str | Path) -> Watched:
        """Decode and encode a video file, for as many questions as one likes."""
        return watch(Path(video).expanduser(), self.video_encoders, self.clip_length)

    def ask(self, watched: Watched, queries: Sequence[str]) -> list[Grounding]:
        """Find each query's moments in a video that was watched."""
        asked = checked(queries)
        videos, texts, longest = self._videos(watched), self._texts(asked), self.settings.inputs.longest_video
        seconds = watched.duration if longest is None else min(watched.duration, longest * self.clip_length)
        rows = [
            {"qid": str(number), "vid": VIDEO, "query": text, "duration": seconds, "windows": []}
            for number, text in enumerate(asked)
        ]
        prepared = prepare(rows, {}, videos, texts, "predict")
        if prepared.rejected:
            raise PredictionError(f"the model can't be asked: {prepared.rejected[0]['reason']}")
        data = self.system.data(prepared, videos, texts, self.device)
        return [
            Grounding(
                text,
                tuple(Window(*window) for window in found.windows.tolist()),
                tuple(found.saliency.tolist()),
                self.clip_length,
                seconds,
            )
            for text, found in zip(asked, self.system.predict(self.model, data), strict=True)
        ]

    def _videos(self, watched: Watched) -> Features:
        longest = self.settings.inputs.longest_video
        return joined([normalised(_features([VIDEO], [one], self.clip_length), longest) for one in watched.features])

    def _texts(self, texts: Sequence[str]) -> Features:
        distinct = list(dict.fromkeys(texts))
        tokens, _, _ = self.text_encoder.encode(distinct)
        return normalised(_features(distinct, tokens), self.settings.inputs.longest_text)


def checked(queries: Sequence[str]) -> list[str]:
    """The queries without blanks around them; raises `PredictionError` where one is empty or no text."""
    texts = [query.strip() for query in queries]
    if not texts or not all(texts):
        raise PredictionError("the query is empty: say what to look for, as in 'a person opens the door.'")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise PredictionError("the query holds bytes that are no text: is the terminal's encoding UTF-8?") from None
    return texts


def _features(names: Sequence[str], several: Sequence[Float16Array], clip_length: float = 0.0) -> Features:
    offsets = torch.tensor([0, *np.cumsum([len(values) for values in several])], dtype=torch.long)
    index = {name: row for row, name in enumerate(names)}
    return Features(torch.from_numpy(np.concatenate(several)), offsets, index, clip_length)


def _own(run: str, features: Artifact, manifest: Manifest) -> Clip:
    """The CLIP that made an artifact of features; raises `PredictionError` where others' features were imported."""
    made = manifest.parameters
    if "encoder" not in made or "precision" not in made:
        kind = "simulated" if made.get("encoder") == SIMULATED else "imported"
        names = ", ".join(source["name"] for source in made.get("imported", [])) or made.get("encoder", features.path)
        raise PredictionError(
            f"{run} was trained on {kind} features ({names}), which can't be computed from a video here: train a run "
            "on features of extract-features' CLIP"
        )
    clip = Clip(encoder=made["encoder"], precision=made["precision"])
    if digests(clip).get("encoder") != manifest.inputs.get("encoder"):
        raise PredictionError(
            f"{run} was trained on features of CLIP {clip.encoder!r}, which is not there or is no longer the same: put "
            "its files back, or extract features anew and train on them"
        )
    return clip


def _loaded(run: str, clip: Clip, loading: Callable[[Clip], Loaded]) -> Loaded:
    try:
        return loading(clip)
    except PenumbraError as error:
        raise PredictionError(f"{run} was trained on features of {clip.encoder!r}: {error}") from None
