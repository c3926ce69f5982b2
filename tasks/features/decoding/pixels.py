"""CLIP's preprocessing on the device, a batch of frames of one size at a time.

Resize with antialiasing so that the shorter side fits, cut out the middle, scale, subtract the mean and divide by the
deviation of each colour: the same numbers as `CLIPImageProcessor` on each frame.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from penumbra.tasks.features.clip import COLOURS, Processing
from penumbra.tasks.features.decoding.frames import Picture

RESIZED_AT_ONCE = 32 << 20  # bytes of frames that are resized at once


def resized(height: int, width: int, processing: Processing) -> tuple[int, int]:
    """Rows and columns after resizing: the shorter side as asked, the longer one in proportion, rounded down."""
    if processing.shortest is None:
        return processing.size
    short, long = sorted((height, width))
    longer = int(processing.shortest * long / short)
    return (processing.shortest, longer) if height <= width else (longer, processing.shortest)


def preprocess(pictures: Sequence[Picture], processing: Processing, device: torch.device) -> torch.Tensor:
    """Frames (rows, columns, 3) of any sizes → float32 (frames, 3, rows, columns) on the device, in their order.

    Several frames of a clip may lie one after the other in the last axis: 3·n channels in, 3·n out.
    """
    with torch.inference_mode():
        return _preprocess_all(pictures, processing, device)


def _preprocess_all(pictures: Sequence[Picture], processing: Processing, device: torch.device) -> torch.Tensor:
    by_size: dict[tuple[int, ...], list[int]] = {}
    for index, picture in enumerate(pictures):
        by_size.setdefault(picture.shape, []).append(index)
    prepared: list[torch.Tensor | None] = [None] * len(pictures)
    for shape, indices in by_size.items():
        several = max(1, RESIZED_AT_ONCE // int(np.prod(shape)))
        for start in range(0, len(indices), several):
            some = indices[start : start + several]
            stacked = torch.from_numpy(np.stack([pictures[index] for index in some]))
            ready = _preprocess(stacked.to(device, non_blocking=True).permute(0, 3, 1, 2), processing)
            for index, pixels in zip(some, ready, strict=True):
                prepared[index] = pixels
    return torch.stack([pixels for pixels in prepared if pixels is not None])


def _preprocess(pixels: torch.Tensor, processing: Processing) -> torch.Tensor:
    """uint8 (frames, 3, rows, columns) → float32, resized, cut and normalised."""
    size = resized(pixels.shape[2], pixels.shape[3], processing)
    if size != tuple(pixels.shape[2:]):
        pixels = _resize(pixels, size, processing.resampling)
    if processing.crop:
        pixels = _middle(pixels, processing.crop)
    frames = pixels.shape[1] // COLOURS
    mean = torch.tensor(processing.mean * frames, device=pixels.device).view(-1, 1, 1)
    deviation = torch.tensor(processing.deviation * frames, device=pixels.device).view(-1, 1, 1)
    return (pixels.float() - mean / processing.scale) / (deviation / processing.scale)


def _resize(pixels: torch.Tensor, size: tuple[int, int], resampling: str) -> torch.Tensor:
    """Whole numbers from 0 to 255: columns, then rows, rounded after each as images libraries round.

    torch's own resizing of bytes is faster on a CPU, and off by one in several times as many pixels.
    """
    for shape in ((pixels.shape[2], size[1]), size):
        floats = functional.interpolate(pixels.float(), shape, mode=resampling, antialias=True, align_corners=False)
        pixels = floats.round_().clamp_(0, 255)
    return pixels


def _middle(pixels: torch.Tensor, crop: tuple[int, int]) -> torch.Tensor:
    """The middle of the pictures; black around them where they are smaller."""
    rows, columns = crop[0] - pixels.shape[2], crop[1] - pixels.shape[3]
    if rows > 0 or columns > 0:
        down, right = max(rows, 0), max(columns, 0)
        pixels = functional.pad(pixels, (right // 2, (right + 1) // 2, down // 2, (down + 1) // 2))
    top, left = (pixels.shape[2] - crop[0]) // 2, (pixels.shape[3] - crop[1]) // 2
    return pixels[:, :, top : top + crop[0], left : left + crop[1]]
