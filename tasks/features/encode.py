"""Frames of many videos in full batches through CLIP, and the features of each video as soon as its last one is there.

Batches are always full (the last one is filled up with zeros) and so each frame's features are the same in whatever
company it comes: a run that was killed and goes on ends with the same bytes. While one batch is computed, the next one
is gathered. An encoder that sees n frames of a clip gets them as one picture of 3·n channels.
"""

import io
import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import DRAFTS, Store
from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.features.clip import RESIZED_AT_ONCE, Encoder, encoder_threads, preprocess
from penumbra.tasks.features.decoders import DecoderMessage, Pool, Video
from penumbra.tasks.features.frames import Picture, VideoSummary, contact_sheet, thumbnail
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.progress import counting, uncounted

States = Callable[[Any, torch.Tensor], torch.Tensor]  # of CLIP and of frames' pixels, one row a frame


def frame_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Frames in the space that they share with texts [frames, dimension]."""
    states: torch.Tensor = model.get_image_features(pixels).pooler_output
    return states


def patch_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The last hidden states of frames' patches, before the projection [frames, patches, width]."""
    states: torch.Tensor = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:]  # the first is the class
    return states


@dataclass(frozen=True)
class Encoded:
    """A video's features (clips, …) with what is known of it; or the reason why it has none."""

    video: Video
    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnail: Picture | None = None
    reason: str = ""
    value: str = ""


@dataclass
class _Open:
    """A video whose features are not all there."""

    video: Video
    rows: list[Float16Array | None] = field(default_factory=list)
    summary: VideoSummary | None = None
    missing: int = 0
    thumbnail: Picture | None = None
    clip: list[Picture] = field(default_factory=list)  # frames of the clip that has begun

    def middle(self) -> Picture:
        """The frame that is shown of the clip."""
        return self.clip[len(self.clip) // 2]


@dataclass
class _Batch:
    """Frames, those under way to the encoder's form, the places where their features go, and at last the features."""

    pictures: list[Picture] = field(default_factory=list)
    pixels: "list[Future[torch.Tensor]]" = field(default_factory=list)
    places: list[tuple[_Open, int]] = field(default_factory=list)
    features: "Future[Float16Array] | None" = None


class FrameEncoder:
    """Takes frames as they come, hands out videos as they are done; `states` says which features a clip has.

    A clip has as many frames as the encoder sees at once (`Encoder.frames`); the last frame of a video fills its last
    clip up. `seen` are the clips whose frame, or the last one before it, is handed out as a thumbnail, by video id.
    """

    def __init__(
        self, encoder: Encoder, batch_size: int, seen: Mapping[str, int] | None = None, states: States = frame_states
    ) -> None:
        self.states, self.encoder, self.batch_size, self.seen = states, encoder, batch_size, seen or {}
        self._filling = _Batch()
        self._under_way: deque[_Batch] = deque()
        self._preparing: deque[Future[torch.Tensor]] = deque()
        self._open: dict[str, _Open] = {}
        self._threads, self._together = encoder_threads(encoder)

    def encode(self, messages: Iterable[DecoderMessage]) -> Generator[Encoded, None, None]:
        """Yield each video once: with its features, or with the reason why it has none."""
        try:
            with fast_cpu_matmul(self.encoder.device):
                for message in messages:
                    yield from self._take(message)
                if self._filling.places:
                    yield from self._launch()
                while self._under_way:
                    yield from self._collect()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _take(self, message: DecoderMessage) -> Iterator[Encoded]:
        vid = message.video.vid
        video = self._open.setdefault(vid, _Open(message.video))
        if message.picture is not None:
            video.clip.append(message.picture)
            if len(video.clip) == self.encoder.frames:
                yield from self._end_clip(video)
        elif message.summary is not None:
            if video.clip:
                video.clip += video.clip[-1:] * (self.encoder.frames - len(video.clip))
                yield from self._end_clip(video)
            video.summary = message.summary
            if not video.missing:
                yield self._done(video)
        else:
            del self._open[vid]
            yield Encoded(message.video, reason=message.reason, value=message.value)

    def _end_clip(self, video: _Open) -> Iterator[Encoded]:
        """Take a clip whose frames are all there."""
        if len(video.rows) <= self.seen.get(video.video.vid, -1):
            video.thumbnail = video.middle()
        picture = video.clip[0] if len(video.clip) == 1 else np.concatenate(video.clip, axis=2)
        video.clip = []
        yield from self._add(video, picture)

    def _add(self, video: _Open, picture: Picture) -> Iterator[Encoded]:
        batch = self._filling
        batch.pictures.append(picture)
        batch.places.append((video, len(video.rows)))
        video.rows.append(None)
        video.missing += 1
        if len(batch.places) == self.batch_size:
            yield from self._launch()
        elif sum(picture.nbytes for picture in batch.pictures) > RESIZED_AT_ONCE:
            self._prepare(batch)

    def _prepare(self, batch: _Batch) -> None:
        """Start preprocessing, of a part of a batch where frames are large; so many parts may be under way."""
        if batch.pictures:
            ready = self._threads.submit(preprocess, batch.pictures, self.encoder.processing, self.encoder.device)
            batch.pixels.append(ready)
            batch.pictures = []
            self._preparing.append(ready)
        if len(self._preparing) > self._together + 1:
            self._preparing.popleft().result()

    def _launch(self) -> Iterator[Encoded]:
        """Start on the batch; collect the oldest one when as many are under way as can be."""
        batch, self._filling = self._filling, _Batch()
        self._prepare(batch)
        batch.features = self._threads.submit(self._compute, batch.pixels)
        self._under_way.append(batch)
        if len(self._under_way) > self._together + 1:
            yield from self._collect()

    def _compute(self, ready: "list[Future[torch.Tensor]]") -> Float16Array:
        """Features (frames, …) of at most batch_size frames; whose preprocessing was started before."""
        with torch.inference_mode():
            pixels = torch.cat([part.result() for part in ready])
            frames = len(pixels)
            if frames < self.batch_size:
                pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - frames, *pixels.shape[1:])])
            features = self.states(self.encoder.model, pixels.to(self.encoder.dtype))
            halves: Float16Array = features[:frames].half().cpu().numpy()
        return halves

    def _collect(self) -> Iterator[Encoded]:
        batch = self._under_way.popleft()
        features = batch.features.result() if batch.features else np.zeros((0, 0), np.float16)
        for (video, clip), row in zip(batch.places, features, strict=True):
            video.rows[clip] = row
            video.missing -= 1
            if not video.missing and video.summary is not None:
                yield self._done(video)

    def _done(self, video: _Open) -> Encoded:
        del self._open[video.video.vid]
        features = np.stack([row for row in video.rows if row is not None])
        return Encoded(video.video, features, video.summary or VideoSummary(), video.thumbnail)


@dataclass(frozen=True)
class Draft:
    """A finished video: features (clips, …), or the reason why there are none; a small JPEG or nothing."""

    vid: str
    summary: VideoSummary
    features: Float16Array | None = None
    reason: str = ""
    value: str = ""
    thumbnail: bytes = b""


class Drafts:
    """The drafts of one artifact."""

    def __init__(self, store: Store, artifact: Artifact) -> None:
        self.store, self.artifact = store, artifact

    def write(self, encoded: Encoded, thumbnail: bytes) -> None:
        """Keep a video's features or its refusal."""
        facts = {
            "vid": encoded.video.vid,
            "summary": asdict(encoded.summary),
            "reason": encoded.reason,
            "value": encoded.value,
        }
        features = encoded.features if encoded.features is not None else np.zeros((0, 0), np.float16)
        data = io.BytesIO()
        np.savez(data, features=features, facts=_bytes(json.dumps(facts).encode()), thumbnail=_bytes(thumbnail))
        self.store.write_file(self.artifact, draft_name(encoded.video.vid), data.getvalue())

    def read(self, vid: str) -> Draft | None:
        """A video's draft, or None."""
        data = self.store.read_file(self.artifact, draft_name(vid))
        if data is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if "facts" not in arrays:
                return None  # of a run before facts had this name: the video is decoded again
            facts = json.loads(arrays["facts"].tobytes())
            summary, thumbnail = VideoSummary(**facts.pop("summary")), arrays["thumbnail"].tobytes()
            return Draft(
                **facts, summary=summary, features=None if facts["reason"] else arrays["features"], thumbnail=thumbnail
            )


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def draft_name(vid: str) -> str:
    """Where a video's draft lies in the artifact's folder."""
    return f"{DRAFTS}/{sha256(vid.encode(errors='replace')).hexdigest()[:32]}.npz"


BATCHES_AHEAD = 4


class Extraction:
    """The videos that are still to be done.

    Args:
        files: the file of each video, in the order in which they are wanted
        drafts: where finished videos are kept
        on_sheet: the videos of the contact sheet with the second that is to be seen there
        states: which features a frame has

    """

    def __init__(
        self, files: dict[str, Path], drafts: Drafts, on_sheet: dict[str, float], states: States = frame_states
    ) -> None:
        self.files, self.drafts, self.on_sheet, self.states = files, drafts, on_sheet, states
        self._finished: Iterator[Encoded] = iter(())
        self._tick: Callable[[int], None] = uncounted

    @contextmanager
    def start(
        self,
        encoder: Encoder,
        workers: int,
        clip_length: float,
        device: str,
        seconds: float,
        memory: int,
        batch_size: int,
        most: int,
    ) -> Iterator[None]:
        """Decode with so many workers; see `Pool`. Nothing starts before the first video is asked for.

        An encoder that sees n frames of a clip gets those at the middles of the clip's n parts.
        """
        frames = encoder.frames
        pool = Pool(workers, clip_length / frames, device, seconds, memory, BATCHES_AHEAD * batch_size * frames, most)
        seen = {vid: int(second / clip_length) for vid, second in self.on_sheet.items()}
        finished = FrameEncoder(encoder, batch_size, seen, self.states).encode(pool.decode(self._videos()))
        self._finished, self._tick = finished, counting("videos", len(self.files), whole=True)
        try:
            yield
        finally:
            finished.close()
            pool.close()

    def _videos(self) -> Iterator[Video]:
        for vid, file in self.files.items():
            if self.drafts.read(vid) is None:
                yield Video(vid, file)
            else:
                self._tick(1)

    def finish(self, vids: Sequence[str]) -> dict[str, Draft]:
        """The drafts of these videos, as soon as all that have a file are done."""
        drafts = {vid: draft for vid in vids if (draft := self.drafts.read(vid))}
        missing = {vid for vid in vids if vid in self.files} - drafts.keys()
        while missing:
            encoded = next(self._finished)
            self._tick(1)
            picture = encoded.thumbnail
            self.drafts.write(encoded, b"" if picture is None else thumbnail(picture))
            vid = encoded.video.vid
            if vid in missing:
                missing.remove(vid)
                draft = self.drafts.read(vid)
                if draft:
                    drafts[vid] = draft
        return drafts

    def contact_sheet(self) -> bytes:
        """A JPEG of the videos that are to be seen, or nothing where none is there."""
        drafts = [self.drafts.read(vid) for vid in self.on_sheet]
        thumbnails = [draft.thumbnail for draft in drafts if draft and draft.thumbnail]
        return contact_sheet(thumbnails) if thumbnails else b""
