"""Grounding of queries in any video, by a trained run or a published model with the encoders of its features.

grounder = Grounder.of_run("ab12")
for grounding in grounder.ground("video.mp4", ["a person opens the door.", "the person sits down."]):
    grounding.query, grounding.windows[0].start, grounding.windows[0].end, grounding.saliency

The module also has the output of predictions: rows for `penumbra predict`, and pictures of frames and saliency.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn
from transformers.utils import logging

from penumbra.artifacts import charts
from penumbra.artifacts.charts import GREY, HEAD, LINE, MARGIN, WIDTH, Drawing, Line, Panel
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import draft_of
from penumbra.artifacts.manifest import Manifest
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.clip import Clip, Encoder, digests, load
from penumbra.tasks.features.decoders import Decoder
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.frames import COLUMNS, ROWS
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.text import ClipTexts, TextEncoder, load_text_encoder
from penumbra.tasks.features.video import EncodedVideo, encode_video, notes_on
from penumbra.tasks.grounding.batches.examples import Loaded, features_of, joined, normalised
from penumbra.tasks.grounding.evaluation.calibration import Calibrator, calibrator_of
from penumbra.tasks.grounding.evaluation.predictions import existence_of
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.pretrained import CLIP_LENGTH, CLIPS, load_pretrained
from penumbra.tasks.grounding.runs import RunError, below_in_words, found_run
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import chosen_run, load_run, run_name

VIDEO = "video"
FRAMES = 24  # lowest number of thumbnails per video; the highest is twice this number
STRIP, SHOWN = 8, 3  # frames in a picture, windows per query in a picture
PANEL = 150
AXIS = WIDTH - MARGIN - 6  # pixels
CLOSE = "≈"
TOLERANCE = 0.01  # windows whose scores differ less from the best are marked, because the run can't rank them


@dataclass(frozen=True)
class Window:
    """A moment in seconds, and its score (0 to 1)."""

    start: float
    end: float
    score: float


@dataclass(frozen=True)
class Grounding:
    """The prediction for a query: non-empty windows, best first, and the saliency of each clip, if the model has it.

    Clip i covers [i · clip_length, (i + 1) · clip_length) seconds; the model reads `duration` seconds of the video.
    `existence` is how likely the moment is in the video at all, 0 to 1, and `exists` is whether it reaches the run's
    threshold. Both are None if the run is not calibrated; `exists` is also None if its AUROC may be chance. Windows are
    predicted in any case.
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
        """The text shown for a query whose moment is not in the video; otherwise ''."""
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
    caveats: tuple[str, ...] = ()  # notes such as: no better than a constant window, existence not calibrated
    calibrator: Calibrator | None = None

    def __post_init__(self) -> None:
        self.device, self.system = device_of(), system_of(self.settings)
        self.model = self.model.eval().to(self.device)

    @classmethod
    def of_run(cls, run: str, dataset: str | None = None) -> "Grounder":
        """Return the grounder of a run, by its key, the first digits of it, or its name.

        Raise `ArtifactError` unless one run matches, and `RunError` if its features can't be computed here.
        """
        metrics, store = chosen_run(dataset, str(run)), Store()  # the digits may be a number
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
        or OWNER/NAME of the hub, with one file of weights. `clip` computes the features, by default OpenAI's ViT-B/32.
        Raise `RunError` if there is no such checkpoint, its digest is wrong, or it reads features of other widths.
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
                f"{model} reads features of widths {widths[0]} (video) and {widths[1]} (text), but CLIP computes "
                f"{projected} and {texts.width}. SlowFast (2304), I3D (1024) and C3D (500) can't be computed from a "
                "video here: import such features, and set training.start_from to the file"
            )
        seconds = CLIPS * CLIP_LENGTH
        caveat = f"{model} reads the first {seconds:.0f} s of a video, and its existence is not calibrated"
        caveats = (note, caveat) if note else (caveat,)
        return cls(Path(model).name, network, settings, [encoder], texts, CLIP_LENGTH, caveats)

    def ground(self, video: str | Path, queries: Sequence[str]) -> list[Grounding]:
        """Return the grounding of each query in a video file; raise `PenumbraError` if it can't be decoded."""
        texts = checked(queries)
        return self.ask(self.watch(video), texts)

    def watch(self, video: str | Path) -> Watched:
        """Decode and encode a video file, for any number of queries; raise `PenumbraError` if it can't be decoded."""
        path = Path(video).expanduser()
        if not path.is_file():
            raise PenumbraError(f"no file {path}")
        encoded, features = list[EncodedVideo](), list[Float16Array]()
        for encoder in self.video_encoders:
            with closing(Decoder(self.clip_length / encoder.frames, encoder.resizing)) as decoder:
                encoded.append(one := encode_video(encoder, decoder, path, thumbnails=FRAMES))
            if one.features is None:
                raise PenumbraError(f"{path}: {one.reason}{f' ({one.value})' if one.value else ''}")
            features.append(one.features)
        summary, seconds = encoded[-1].summary, self.clip_length / self.video_encoders[-1].frames
        frames = tuple(((index + 0.5) * seconds, frame) for index, frame in encoded[-1].thumbnails)
        notes = (*notes_on(summary, summary.duration, self.clip_length), *self.caveats)
        return Watched(tuple(features), self.clip_length, summary.duration, frames, notes)

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
        existence, groundings, judge = existence_of(predictions, self.calibrator), list[Grounding](), self.calibrator
        for text, one, value in zip(texts, predictions, existence, strict=True):
            not_empty = (it for it in one.windows.tolist() if it[0] < it[1])  # rounding to clips empties some windows
            windows = tuple(Window(*it) for it in not_empty)
            exists = judge.is_there(value) if judge and value is not None else None
            groundings.append(Grounding(text, windows, tuple(one.saliency.tolist()), clip, seconds, value, exists))
        return groundings


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
    """Return the CLIP that made an artifact of features; raise `RunError` if none did, or its files are missing."""
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


# -- rows and pictures -------------------------------------------------------------------------------------------------


def predict(
    video: Path, queries: Sequence[str], grounder_of: Callable[[], Grounder], picture: Path | None
) -> tuple[Watched, list[Grounding]]:
    """Return the encoded video and the grounding of each query, and draw them into the file `picture`, if given.

    Raise `PenumbraError` if this file is no .svg or can't be written; see `Grounder` for other faults.
    """
    checked(queries)
    if picture and picture.suffix.lower() != ".svg":
        raise PenumbraError(f"--output {picture}: pictures are SVG, which any browser shows: name a .svg file")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights, which takes a moment
    grounder = grounder_of()
    watched = grounder.watch(video)
    groundings = grounder.ask(watched, queries)
    if picture:
        with draft_of(picture) as draft:
            draft.write_text(draw(video.name, watched, groundings).svg(), encoding="utf-8")
    return watched, groundings


def as_rows(groundings: Sequence[Grounding], most: int, windows: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield query (once), start, end and score of the best windows of each query; mark scores close to the best.

    A query whose moment is not in the video gets a row that says so, and windows only if `windows` is True.
    """
    for one in groundings:
        shown = one.windows[:most] if windows or not one.absence else ()
        if one.absence or not shown:
            yield "\n".join(filter(None, (one.query, one.absence))), "–", "–", "–"
        for place, window in enumerate(shown):
            query = "" if place or one.absence else one.query
            close = f" {CLOSE}" if place and one.windows[0].score - window.score < TOLERANCE else ""
            yield query, f"{window.start:.2f}", f"{window.end:.2f}", f"{window.score:.3f}{close}"


def draw(video: str, watched: Watched, groundings: Sequence[Grounding]) -> Drawing:
    """Return frames of the video, and for each query its saliency with the best window shaded, and the best windows."""
    body, width = [charts.text(MARGIN, 18, video, room=AXIS, weight="600")], AXIS / STRIP
    height = width * ROWS / COLUMNS
    for slot in range(STRIP):
        x, middle = MARGIN + slot * width, (slot + 0.5) / STRIP * watched.duration
        second, frame = min(watched.frames, key=lambda kept: abs(kept[0] - middle))
        body.append(charts.photo(x + 1, HEAD, width - 2, height, frame, f"the video at {second:.1f} s"))
        body.append(charts.text(x + width / 2, HEAD + height + 14, f"{second:.1f} s", "middle", GREY))
    top, described = HEAD + height + 18, []
    for grounding in groundings:
        windows = ", ".join(f"{w.start:.1f} – {w.end:.1f} s ({w.score:.2f})" for w in grounding.windows[:SHOWN])
        windows = "; ".join(filter(None, (grounding.absence, windows)))
        described.append(f"{grounding.query}: {windows or 'no window'}")
        body.append(charts.text(MARGIN, top + 15, f"“{grounding.query}”", room=AXIS, weight="600"))
        body.append(charts.text(MARGIN, top + LINE + 15, windows or "no window", colour=GREY))
        top += 2 * LINE + 16
        if grounding.saliency:
            panel = _panel("saliency", {"saliency": grounding}, watched.duration)
            body += charts.draw_panel(panel, 0, top - 16, WIDTH, PANEL)
            top += PANEL
    return Drawing(f"Moments in {video}", round(top), body, "; ".join(described))


def _panel(title: str, groundings: Mapping[str, Grounding], seconds: float) -> Panel:
    """Return a panel with the saliency of groundings by label, and the best window of the first one shaded."""
    lines = [
        Line(label, [((clip + 0.5) * one.clip_length, value) for clip, value in enumerate(one.saliency)], style)
        for style, (label, one) in enumerate(groundings.items())
    ]
    best = [(window.start, window.end) for window in next(iter(groundings.values())).windows[:1]]
    return Panel(title, lines, 0, seconds, "s", best, least=SALIENCY_SPAN)


def saliency_by_text(groundings: Mapping[str, Grounding]) -> Drawing:
    """Return a drawing of the saliency of a query, with its best window shaded, and of its negatives, by name."""
    labelled = {f"{name}: {one.query}": one for name, one in groundings.items()}
    panel = _panel("", labelled, next(iter(groundings.values())).duration)
    return charts.panels("Saliency under the query and its negatives", [panel], columns=1, height=230, legend=True)
