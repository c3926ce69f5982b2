"""Moments in any video: a trained run or a published model with the encoders of the features that it was trained on.

grounder = Grounder.of_run("ab12")
for grounding in grounder.ground("video.mp4", ["a person opens the door.", "the person sits down."]):
    grounding.query, grounding.windows[0].start, grounding.windows[0].end, grounding.saliency
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Manifest
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.clip import Clip, Encoder, digests, load
from penumbra.tasks.features.decoders import Decoder
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.text import ClipTexts, TextEncoder, load_text_encoder
from penumbra.tasks.features.video import EncodedVideo, encode_video, notes_on
from penumbra.tasks.grounding.batches.examples import Loaded, features_of, joined, normalised
from penumbra.tasks.grounding.evaluation.predictions import Calibrator, calibrator_of
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.prediction.pretrained import CLIP_LENGTH, CLIPS, load_pretrained
from penumbra.tasks.grounding.runs import RunError, below_in_words, found_run
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import chosen_run, load_run, run_name

VIDEO = "video"
FRAMES = 24  # thumbnails of a video, twice as many at most


@dataclass(frozen=True)
class Window:
    """A moment in seconds, and its score (0 to 1)."""

    start: float
    end: float
    score: float


@dataclass(frozen=True)
class Grounding:
    """The prediction for a query: windows, best first and none empty, and the saliency of each clip, if there is any.

    Clip i covers [i · clip_length, (i + 1) · clip_length) seconds; the model saw `duration` seconds of the video.
    `existence` is how likely the moment is in the video at all, 0 to 1, and `exists` whether that reaches the run's
    threshold; both are None if the run is not calibrated, `exists` also if its AUROC may be chance. Windows are there
    in any case.
    """

    query: str
    windows: tuple[Window, ...]
    saliency: tuple[float, ...]
    clip_length: float
    duration: float
    existence: float | None = None
    exists: bool | None = None

    @property
    def absence(self) -> str:
        """The answer to a query whose moment is not in the video; otherwise ''."""
        return "" if self.exists is not False else f"not in this video (existence {self.existence:.2f})"


@dataclass(frozen=True)
class Watched:
    """An encoded video: features [clips, channels] of each encoder, and thumbnails (JPEG) with their seconds.

    `notes` describe faults of the file that did not prevent its use.
    """

    features: tuple[Float16Array, ...]
    clip_length: float
    duration: float
    frames: tuple[tuple[float, bytes], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Grounder:
    """A run, or a published model, that predicts moments in any video."""

    name: str
    model: nn.Module = field(repr=False)
    settings: Settings = field(repr=False)
    video_encoders: Sequence[Encoder] = field(repr=False)  # one for each source of video features
    text_encoder: TextEncoder = field(repr=False)
    clip_length: float  # seconds
    caveats: tuple[str, ...] = ()  # that its evaluation shows no grounding, or that existence is not calibrated
    calibrator: Calibrator | None = None  # of existence

    def __post_init__(self) -> None:
        self.device, self.system = device_of(), system_of(self.settings)
        self.model = self.model.eval().to(self.device)

    @classmethod
    def of_run(cls, run: str, dataset: str | None = None) -> "Grounder":
        """Return the grounder of a run, by its key, the first digits of it, or its name.

        Raise `ArtifactError` unless one run matches, `RunError` if no encoder here computes its features.
        """
        metrics, store = chosen_run(dataset, str(run)), Store()  # digits may be given as a number
        model, settings = load_run(metrics)
        name = run_name(settings, metrics.key)
        parents = store.manifest(metrics).parents
        [texts] = [store.manifest(it) for it in parents if it.stage == "text_features"]
        videos = [store.manifest(it) for it in parents if it.stage == "video_features"]
        of_texts, *of_videos = (_clip_of(name, it) for it in (texts, *videos))
        encoders, text_encoder = [load(clip) for clip in of_videos], load_text_encoder(of_texts)
        caveat = below_in_words(name, found_run(metrics.key, metrics.dataset).below)
        calibrator, reason = calibrator_of(metrics)
        caveats = tuple(filter(None, (caveat, "" if calibrator and not calibrator.is_chance else reason)))
        clip_length = videos[0].parameters["clip_length"]
        return cls(name, model, settings, encoders, text_encoder, clip_length, caveats, calibrator)

    @classmethod
    def pretrained(cls, model: str, clip: Clip | None = None) -> "Grounder":
        """Return the grounder of a checkpoint that others have trained, with CLIP's features of two seconds.

        `model` is a name of `pretrained.PUBLISHED`, such as `qd_detr-qvhighlights`, which is downloaded once; a file;
        or OWNER/NAME of the hub, with one file of weights. Its features are those of `clip`, by default OpenAI's
        ViT-B/32. Raise `RunError` if there is no such checkpoint, its digest is wrong, or CLIP has no such features.
        """
        clip = clip or Clip()
        network, settings, widths, note = load_pretrained(model)
        try:
            encoder = load(clip)
        except FeatureError:
            raise RunError(
                f"{model} reads features of CLIP {clip.encoder!r}, which can't be loaded: `hf download {clip.encoder}` "
                "on a machine that reaches the hub, and copy its cache (HF_HOME) here"
            ) from None
        texts, projected = ClipTexts(encoder), encoder.model.config.projection_dim
        if widths != (projected, texts.width):
            raise RunError(
                f"{model} reads features of width {widths[0]} of a video and {widths[1]} of a text, and CLIP gives "
                f"{projected} and {texts.width}. SlowFast (2304), I3D (1024) and C3D (500) can't be computed from a "
                "video here: import such features, and give the file as training.start_from"
            )
        seconds = CLIPS * CLIP_LENGTH
        caveat = f"{model} reads the first {seconds:.0f} s of a video, and its existence is not calibrated"
        caveats = (note, caveat) if note else (caveat,)
        return cls(Path(model).name, network, settings, [encoder], texts, CLIP_LENGTH, caveats)

    def ground(self, video: str | Path, queries: Sequence[str]) -> list[Grounding]:
        """Return each query's moments in a video file; raise `PenumbraError` if it can't be decoded."""
        texts = checked(queries)
        return self.ask(self.watch(video), texts)

    def watch(self, video: str | Path) -> Watched:
        """Decode and encode a video file, for any number of queries; raise `PenumbraError` if it can't be decoded."""
        path = Path(video).expanduser()
        if not path.is_file():
            raise PenumbraError(f"no file {path}")
        encoded = list[EncodedVideo]()
        for encoder in self.video_encoders:
            with closing(Decoder(self.clip_length / encoder.frames, encoder.resizing)) as decoder:
                one = encode_video(encoder, decoder, path, thumbnails=FRAMES)
            if one.features is None:
                raise PenumbraError(f"{path}: {one.reason}{f' ({one.value})' if one.value else ''}")
            encoded.append(one)
        features = tuple(one.features for one in encoded if one.features is not None)
        summary, seconds = encoded[-1].summary, self.clip_length / self.video_encoders[-1].frames
        frames = tuple(((index + 0.5) * seconds, frame) for index, frame in encoded[-1].thumbnails)
        notes = (*notes_on(summary, summary.duration, self.clip_length), *self.caveats)
        return Watched(features, self.clip_length, summary.duration, frames, notes)

    def ask(self, watched: Watched, queries: Sequence[str]) -> list[Grounding]:
        texts, inputs, clip = checked(queries), self.settings.inputs, self.clip_length
        distinct = list(dict.fromkeys(texts))
        tokens, _, _ = self.text_encoder.encode(distinct)
        text_features = normalised(features_of(distinct, tokens), inputs.longest_text)
        several = [features_of([VIDEO], [one], clip) for one in watched.features]
        videos = joined([normalised(one, inputs.longest_video) for one in several])
        seconds = min(watched.duration, (inputs.longest_video or float("inf")) * clip)
        row = {"vid": VIDEO, "duration": seconds, "windows": []}
        rows = [{**row, "qid": str(number), "query": text} for number, text in enumerate(texts)]
        examples = Loaded(videos, text_features, rows, {}).examples_of(rows, "predict")
        if examples.rejected:
            raise RunError(f"the model can't predict this: {examples.rejected[0]['reason']}")
        predictions = self.system.predict(self.model, self.system.data(examples, self.device))
        calibrator = self.calibrator
        existence = calibrator.of(predictions) if calibrator else [None] * len(predictions)
        return [
            Grounding(
                text,
                tuple(Window(*it) for it in one.windows.tolist() if it[0] < it[1]),  # rounding to clips empties some
                tuple(one.saliency.tolist()),
                clip,
                seconds,
                exists,
                None if calibrator is None or exists is None else calibrator.is_there(exists),
            )
            for text, one, exists in zip(texts, predictions, existence, strict=True)
        ]


def checked(queries: Sequence[str]) -> list[str]:
    """Return the queries without surrounding blanks; raise `PenumbraError` if one is empty or not text."""
    if isinstance(queries, str):
        raise PenumbraError("give a list of queries: ['a person opens the door.', …]")
    texts = [query.strip() for query in queries]
    if not texts or not all(texts):
        raise PenumbraError("the query is empty: say what to look for, as in 'a person opens the door.'")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise PenumbraError("the query holds bytes that are not text: is the terminal's encoding UTF-8?") from None
    return texts


def _clip_of(run: str, manifest: Manifest) -> Clip:
    """Return the CLIP that made an artifact of features; raise `RunError` if there is none, or if it is missing."""
    made = manifest.parameters
    if "encoder" not in made or "precision" not in made:
        name = made.get("encoder") or ", ".join(source["name"] for source in made.get("imported", []))
        raise RunError(
            f"{run} was trained on features ({name}) that can't be computed from a video here, as they were "
            "imported or simulated: train a run on features of extract-features' CLIP"
        )
    clip = Clip(encoder=made["encoder"])
    today = digests(clip)
    if any(today.get(name) != digest for name, digest in manifest.inputs.items() if name.startswith("encoder")):
        raise RunError(
            f"{run} was trained on features of CLIP {clip.encoder!r}, which is missing or has changed: restore its "
            "files, or extract features again and train on them"
        )
    return clip
