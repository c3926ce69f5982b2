"""What a DETR predicts for a data set: ranked windows and saliency of every query."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from penumbra.models.grounding import GroundingModel
from penumbra.models.outputs import Inputs, Outputs
from penumbra.models.postprocessing import rank_windows, snap_windows
from penumbra.tasks.grounding.batches.device_data import DeviceData
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.families.objective import autocast
from penumbra.tasks.grounding.settings import Ranking


def predict(model: GroundingModel, data: DeviceData, ranking: Ranking, *, bf16: bool = False) -> list[Prediction]:
    """Predict every query, in the data's order; saliency is rounded to halves.

    Videos of a length share a batch, so that little is padded.
    """
    found: list[Prediction | None] = [None] * len(data)
    for rows, outputs in outputs_of(model, data, ranking.batch_size, data.inputs, bf16=bf16):
        ranked = rank_windows(outputs.spans[-1], outputs.scores, data.examples.duration[rows])
        windows = snap_windows(ranked, data.clip_length, ranking.longest) if ranking.snap else ranked
        saliency = outputs.saliency.half().float().cpu().numpy()  # the published files hold halves, ties and all
        lengths = data.videos.host_lengths[data.host["video"][rows.numpy()]]
        for place, row in enumerate(rows.tolist()):
            found[row] = Prediction(data.examples.qids[row], windows[place].numpy(), saliency[place, : lengths[place]])
    return [prediction for prediction in found if prediction is not None]


def saliency_inside(model: GroundingModel, data: DeviceData, batch_size: int) -> np.ndarray:
    """Mean saliency inside the moment [N, 5] under the positive, the hard negatives and the next query's text.

    NaN where a query lacks a hard negative, or a batch the next query.
    """
    result = np.full((len(data), 5), np.nan)
    gather = partial(data.inputs, hard=True)
    for rows, outputs in outputs_of(model, data, batch_size, gather, negative=True):
        inside = data.clips.gather(rows.to(data.device), outputs.saliency.shape[1])[0][..., 1]
        parts = [outputs.saliency[None]]
        if outputs.saliency_hard is not None:
            parts.append(outputs.saliency_hard)
        if outputs.saliency_negative is not None:
            parts.append(outputs.saliency_negative[None])
        means: Tensor = (torch.cat(parts).float() * inside).sum(-1) / inside.sum(-1)
        present = data.columns["hard_present"][:, rows.to(data.device)]
        means[1:4] = means[1:4].masked_fill(~present, torch.nan)
        result[rows.numpy(), : len(parts[0]) + 3 + (outputs.saliency_negative is not None)] = means.T.cpu().numpy()
    return result


def outputs_of(
    model: GroundingModel,
    data: DeviceData,
    size: int,
    gather: Callable[[Tensor], Inputs],
    *,
    bf16: bool = False,
    negative: bool = False,
) -> Iterator[tuple[Tensor, Outputs]]:
    """Rows of the data and what the model says of them in evaluation; `gather` gives the inputs of some rows."""
    order = np.argsort(data.videos.host_lengths[data.host["video"]], kind="stable")
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(order), size):
            rows = torch.from_numpy(order[first : first + size])
            with torch.no_grad(), autocast(data.device, bf16):
                outputs = model(gather(rows), negative=negative)
            yield rows, outputs
    finally:
        model.train(was_training)
