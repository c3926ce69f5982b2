"""What is known of a video that is done, kept beside the artifact until it is whole: kill -9 costs no video twice."""

import io
import json
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import DRAFTS, Store
from penumbra.tasks.features.decoding.encode import Encoded
from penumbra.tasks.features.decoding.frames import VideoSummary
from penumbra.tasks.features.reading import Float16Array


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
