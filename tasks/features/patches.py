"""Stage `patch_features`: what CLIP sees in each place of a few frames of every video (VDI, section 3.4).

The last hidden states of a frame's patches before the projection, one frame for every `videos.patch_interval` seconds:
the one at its middle, decoded and encoded as `penumbra.tasks.features.video` does it, and with the same reasons to
reject a video. A state is one byte: a frame's largest is 127 of its scale, so that none is off by more than half a
scale, and an hour of ViT-B/32 (7 × 7 patches of 768) at a frame every 4 s is 900 × 37,632 bytes, 34 MB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.clip import Clip, patch_sizes
from penumbra.tasks.features.decoding.encode import patch_states
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import FrameStage, Row, Videos
from penumbra.tasks.stage import run

STAGE = "patch_features"
LARGEST = 127


def quantised(states: Float16Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """States (frames, patches, width) as bytes of the same shape, and the scale (frames) that they are to be times."""
    exact = states.astype(np.float32)
    largest = np.abs(exact).max(axis=(1, 2))
    scale = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    return np.rint(exact / scale[:, None, None]).astype(np.int8), scale


def patches_table(encoder: str, interval: float, rows: Sequence[Row], side: int) -> pa.Table:
    """Rows (video id, duration, states) as the stage's table; `side` is how many patches a frame is high and wide."""
    quantised_rows = [quantised(states) for _, _, states in rows]
    seconds = [np.minimum((np.arange(len(states)) + 0.5) * interval, duration) for _, duration, states in rows]
    return pa.table(
        {
            "vid": pa.array([vid for vid, _, _ in rows], pa.string()),
            "encoder": pa.array([encoder] * len(rows), pa.string()),
            "seconds": pa.array(seconds, pa.list_(pa.float32())),
            "grid": pa.array([[side, side]] * len(rows), pa.list_(pa.int32(), 2)),
            "scale": pa.array([scale for _, scale in quantised_rows], pa.list_(pa.float32())),
            "patches": pa.array([values.tobytes() for values, _ in quantised_rows], pa.large_binary()),
        }
    )


@dataclass(frozen=True)
class PatchFeatures(FrameStage):
    """What CLIP sees in each place of a few frames of every video."""

    name = STAGE
    states = staticmethod(patch_states)

    @property
    def interval(self) -> float:
        """Seconds from one frame of patches to the next."""
        return self.videos.patch_interval

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """See `patches_table`."""
        return patches_table(self.encoder.name, self.interval, rows, patch_sizes(self.encoder)[0])


def encode_patches(annotations: Artifact, folder: Path, clip: Clip, videos: Videos) -> Artifact:
    """Encode the patches of the videos of a data set, whose files are in a folder."""
    return run(PatchFeatures(annotations, folder, clip, videos))
