"""Windows, their overlap and their post-processing against the published code."""

import numpy as np
import pytest
import torch
from torch import Tensor

from penumbra.models.spans import generalised_iou, iou, rank_windows, snap_windows, suppress, to_spans, to_windows
from tests.golden.reading import FOLDER, OUTPUTS, close

FILE = FOLDER / "postprocessing.npz"


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    if not FILE.is_file():
        pytest.skip("needs the golden numbers: no shared/golden beside the project")
    with np.load(FILE) as content:
        return {name: torch.from_numpy(value) for name, value in content.items()}


def test_ranked_windows_are_equal_to_the_last_decimal(arrays: dict[str, Tensor]) -> None:
    ranked = rank_windows(arrays["in.pred_spans"], arrays["in.scores"], arrays["in.duration"])
    assert torch.equal(ranked, arrays["out.ranked"])


@pytest.mark.parametrize("clip_length", ["2", "1", "0.5"])
def test_snapped_windows_are_equal_to_the_last_decimal(arrays: dict[str, Tensor], clip_length: str) -> None:
    snapped = snap_windows(arrays["out.ranked"], float(clip_length), 150)
    assert torch.equal(snapped, arrays[f"out.post_clip{clip_length}"])


@pytest.mark.parametrize("threshold", ["0.3", "0.5", "0.7"])
def test_suppression_keeps_the_same_windows(arrays: dict[str, Tensor], threshold: str) -> None:
    kept = suppress(arrays["out.ranked"], float(threshold))
    for query, rows in enumerate(kept):
        assert torch.equal(rows, arrays[f"out.nms{threshold}.{query}"])


def test_spans_and_overlap(arrays: dict[str, Tensor]) -> None:
    close(to_windows(arrays["in.cxw"]), arrays["out.xx"], OUTPUTS)
    close(to_spans(arrays["out.xx"]), arrays["out.cxw_back"], OUTPUTS)
    first, second = arrays["in.spans1"][:, None], arrays["in.spans2"][None]
    close(iou(first, second), arrays["out.iou"], OUTPUTS)
    close(generalised_iou(first, second), arrays["out.giou"], OUTPUTS)
