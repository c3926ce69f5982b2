"""MMN as one would write it down first, to compare with: the whole padded map, loops over videos and sentences."""

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.map_losses import MapTargets, MMNLosses
from penumbra.models.mmn import IOU_SCALE, MMN, MapInputs, MapOutputs, unit
from penumbra.models.spans import iou

Norms = list[torch.nn.BatchNorm2d]


def norms_of(net: MMN) -> Norms:
    """Torch's own batch normalisation with the model's weights."""
    found = []
    for layer in net.proposals.layers:
        own = torch.nn.BatchNorm2d(len(layer.norm.weight))
        own.load_state_dict(layer.norm.state_dict())
        found.append(own.to(layer.norm.weight.device))
    return found


def proposals(net: MMN, norms: Norms, cells: Tensor) -> Tensor:
    """All layers over the map with the whole border around it."""
    s = net.settings
    border = (s.kernel - 1) * s.layers // 2
    mask = torch.zeros(s.clips**2, device=cells.device).index_fill(0, net.places, 1).view(1, 1, s.clips, s.clips)
    ones = torch.ones(1, 1, s.kernel, s.kernel, device=cells.device)
    for number, (layer, norm) in enumerate(zip(net.proposals.layers, norms, strict=True)):
        padding = 0 if number else border
        count = functional.conv2d(mask, ones, padding=padding).round()
        weight = torch.where(count > 0, 1 / count.clamp(min=1), 0.0)
        found = functional.conv2d(cells, layer.convolution.weight, layer.convolution.bias, padding=padding)
        cells = norm(found).relu() * weight
        mask = (weight > 0).float()
    return cells


def suppressed(windows: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The windows [n, 2] that stay, by a loop: what is left of the best ones hides what overlaps it more (MMN)."""
    ranks = scores.sort(descending=True).indices
    left = windows[ranks].unbind()
    dropped: set[int] = set()
    for place, (start, end) in enumerate(left):
        if place not in dropped:
            for later in range(place + 1, len(left)):
                met = (torch.minimum(left[later][1], end) - torch.maximum(left[later][0], start)).clamp(min=0)
                hull = torch.maximum(left[later][1], end) - torch.minimum(left[later][0], start)
                if met / hull > threshold:
                    dropped.add(later)
    return torch.stack([window for place, window in enumerate(left) if place not in dropped])


def laid_out(net: MMN, clips: Tensor) -> Tensor:
    """The map, step by step."""
    found = clips.new_zeros(*clips.shape[:2], net.settings.clips, net.settings.clips)
    for clip in range(net.settings.clips):
        found[:, :, clip, clip] = clips[:, :, clip]
    values = clips
    for step in net.map.steps:
        values = functional.max_pool1d(values, step.width, step.stride)
        for place, start in enumerate(step.starts):
            found[:, :, start, start + step.offset] = values[:, :, place]
    return found


def outputs(net: MMN, norms: Norms, inputs: MapInputs) -> MapOutputs:
    """The model's forward, sentences of one video after those of another."""
    maps = proposals(net, norms, laid_out(net, net.pool(inputs.video)))
    cells = maps.flatten(2)[..., net.places].transpose(1, 2)
    iou_vectors, contrast = [], []
    for video in range(len(inputs.video)):
        own = inputs.video_of == video
        found = net.sentences(inputs.text[own], inputs.text_mask[own])
        iou_vectors.append(unit(found[0]))
        contrast.append(unit(found[1]))
    return MapOutputs(
        unit(net.cell_iou(cells)),
        unit(net.cell_contrast(cells)),
        torch.cat(iou_vectors),
        torch.cat(contrast),
        inputs.video_of,
    )


def total(found: MapOutputs, targets: MapTargets, s: MMNLosses) -> Tensor:
    """The three losses of a batch, sentence by sentence."""
    cross, among_sentences, among_moments = [], [], []
    for number, vector in enumerate(found.sentence_contrast):
        video = int(found.video_of[number])
        overlap = targets.overlap[number]
        score = (IOU_SCALE * found.cell_iou[video] @ found.sentence_iou[number]).sigmoid()
        wanted = ((overlap - s.lowest) / (s.highest - s.lowest)).clamp(0, 1)
        cross.append(functional.binary_cross_entropy(score, wanted))
        for place in overlap.topk(s.positives).indices:
            moment = found.cell_contrast[video, place]
            lowered = moment @ vector - s.margin
            terms = [(lowered / s.temperature_video).exp()]
            for other, text in enumerate(found.sentence_contrast):
                if other != number and kept(found, targets, number, other, s.removal_overlap):
                    terms.append((moment @ text / s.temperature_video).exp())
            among_sentences.append(torch.stack(terms).sum().log() - lowered / s.temperature_video)
            terms = [(lowered / s.temperature_sentence).exp(), torch.tensor(1e-6)]
            for other, moments in enumerate(found.cell_contrast):
                cosines = moments @ vector
                if other == video:
                    cosines = cosines.where(overlap < s.negative_overlap, 0.0)
                terms.append((cosines / s.temperature_sentence).exp().sum())
            among_moments.append(torch.stack(terms).sum().log() - lowered / s.temperature_sentence)
    mutual = torch.stack(among_sentences).mean() + torch.stack(among_moments).mean()
    return torch.stack(cross).mean() + s.contrastive * mutual


def kept(found: MapOutputs, targets: MapTargets, one: int, other: int, highest: float) -> bool:
    """Whether another sentence is a negative of one."""
    if found.video_of[one] != found.video_of[other]:
        return True
    pairs = [
        float(iou(first, second))
        for first in targets.windows[one][targets.window_mask[one]]
        for second in targets.windows[other][targets.window_mask[other]]
    ]
    return max(pairs) < highest
