"""Decoding and encoding the videos of a run: what is done is kept at once, and what is kept is not done again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penumbra.tasks.features.clip import Encoder
from penumbra.tasks.features.decoding.drafts import Draft, Drafts
from penumbra.tasks.features.decoding.encode import Encoded, FrameEncoder, States, frame_states
from penumbra.tasks.features.decoding.pool import Pool, Video
from penumbra.tasks.features.decoding.sheet import contact_sheet, thumbnail
from penumbra.tasks.progress import counting, uncounted

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
