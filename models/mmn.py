"""MMN (Wang et al., "Negative Sample Matters", AAAI 2022): sentences and candidate moments in two common spaces.

In the first space, the cosine predicts the overlap of a candidate with the sentence's moment (IoU branch); in the
second, sentences and moments are contrasted (contrastive branch). The score of a candidate combines both. From top to
bottom: settings, inputs and outputs, the map of candidates, convolutions over it, sentences, and the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.spans import hull_iou

Kind = Literal["pool", "conv"]
IOU_SCALE = 10.0  # factor of the cosine before the sigmoid


@dataclass(frozen=True)
class MMNSettings:
    """Sizes of MMN and parameters of the ranking of windows; the defaults are those of Charades-STA.

    `projected` is False if no linear layer precedes the pooling of clips (VDI); `video_dim` is then the width of the
    map. `existence` adds a head that predicts whether a sentence's moment is in the video.
    """

    video_dim: int = 1
    text_dim: int = 1
    existence: bool = False
    projected: bool = True
    hidden: int = 512  # width of clips and of the map
    joint: int = 256  # width of the two spaces that sentences and moments share
    clips: int = 16  # clips per video, the side of the map
    counts: tuple[int, ...] = (15,)  # number of moment lengths that grow by 1 clip, by 2 clips, by 4 clips, …
    segments: int = 32  # equal parts of a video over which its features are averaged
    pool: int = 2  # segments averaged per clip
    kind: Kind = "pool"  # how a moment's feature is computed from its clips
    proposal: int = 512  # width of the convolutions over the map
    kernel: int = 5  # kernel size of the convolutions
    layers: int = 8  # number of convolutions
    power: float = 0.5  # exponent of the contrastive score in a moment's score
    suppression: float = 0.5  # threshold of the non-maximum suppression
    keep: int = 10  # windows per query

    def __post_init__(self) -> None:
        if self.segments % self.clips or (self.segments - self.pool) // self.stride + 1 != self.clips:
            raise ValueError(f"{self.segments} segments, pooled by {self.pool}, do not give {self.clips} clips")
        if not self.projected and self.video_dim != self.hidden:
            raise ValueError(f"without a projection video_dim must be hidden {self.hidden}, not {self.video_dim}")
        schedule(self.clips, self.counts)
        if (self.kernel - 1) * self.layers % 2:
            raise ValueError(f"{self.layers} layers of kernel {self.kernel} change the size of the map")

    @property
    def stride(self) -> int:
        return self.segments // self.clips


@dataclass
class MapInputs:
    """A batch of videos with all their sentences. Masks are False for padding."""

    video: Tensor  # [videos, segments, video_dim]
    text: Tensor  # [texts, sentences, words, text_dim], the sentences of all videos, then hard negatives, level 1 first
    text_mask: Tensor  # [texts, sentences, words]
    video_of: Tensor  # [sentences], the video of each sentence


@dataclass
class MapOutputs:
    """Unit vectors in the two spaces: cells [videos, candidates, joint], texts [texts, sentences, joint].

    existence [texts, sentences] are logits of a text's moment being in the sentence's video, for the sentence itself
    and, in training, for a sentence of the next video (`of_next_video`) and the hard negatives.
    """

    cell_iou: Tensor
    cell_contrast: Tensor
    text_iou: Tensor
    text_contrast: Tensor
    video_of: Tensor
    existence: Tensor | None = None

    def iou_logits(self) -> Tensor:
        """Return the IoU branch's scaled cosine [sentences, candidates] of sentences and candidates of their video."""
        return IOU_SCALE * torch.einsum("smc,sc->sm", self.cell_iou[self.video_of], self.text_iou[0])

    def contrast(self) -> Tensor:
        """Return the contrastive branch's cosine [sentences, candidates]."""
        return torch.einsum("smc,sc->sm", self.cell_contrast[self.video_of], self.text_contrast[0])

    def fused(self, power: float) -> Tensor:
        """Return the scores [sentences, candidates]: (0.5 + 0.5 contrastive)^power times the IoU branch's score."""
        share = (0.5 * self.contrast() + 0.5).clamp(min=0)  # rounding may give a cosine slightly below -1
        return share**power * self.iou_logits().sigmoid()


# -- the map of candidates (2D-TAN, AAAI 2020; MMN): cell (i, j) is the moment from clip i to clip j -------------------
#
# All short moments are candidates; the longer the moments, the coarser their steps. Other cells are not computed.


class Step(NamedTuple):
    """One length of moments: pooling the previous length with kernel `width` and `stride` gives these cells."""

    width: int
    stride: int
    cells: list[tuple[int, int]]


def schedule(clips: int, counts: Sequence[int]) -> list[Step]:
    """Return the steps of a map: single clips, then `counts[g]` moment lengths that grow by 2^g clips.

    Raise `ValueError` if the longest moment exceeds the map.
    """
    if clips <= sum(count * 2**group for group, count in enumerate(counts)):
        raise ValueError(f"a map of {clips} clips is too narrow for steps {tuple(counts)}")
    steps, offset = [Step(1, 1, [(clip, clip) for clip in range(clips)])], 0
    for group, count in enumerate(counts):
        for number in range(count):
            offset += 2**group
            width, stride = (3, 2) if group and not number else (2, 1)
            cells = [(start, start + offset) for start in range(0, clips - offset, 2**group)]
            steps.append(Step(width, stride, cells))
    return steps


def candidate_cells(clips: int, counts: Sequence[int]) -> Tensor:
    """Return the first and last clip [candidates, 2] of each candidate, row by row of the map."""
    return torch.tensor(sorted(cell for step in schedule(clips, counts) for cell in step.cells))


def candidate_windows(cells: Tensor, clips: int, durations: Tensor) -> Tensor:
    """Return windows [sentences, candidates, 2] in seconds of `cells` [candidates, 2]; durations [sentences]."""
    bounds = cells + cells.new_tensor([0, 1])
    return bounds * durations[:, None, None].float() / clips


class MomentMap(nn.Module):
    """Map of candidates (2D-TAN): clips on the diagonal, and longer moments that are computed from shorter ones.

    `kind` "pool" takes the maximum over a moment's clips, "conv" uses convolutions instead. Other cells are 0.
    """

    places: Tensor

    def __init__(self, clips: int, counts: Sequence[int], hidden: int, kind: Kind) -> None:
        super().__init__()
        diagonal, *self.steps = schedule(clips, counts)
        learned = self.steps if kind == "conv" else []
        self.convolutions = nn.ModuleList(nn.Conv1d(hidden, hidden, step.width, step.stride) for step in learned)
        cells = [cell for step in (diagonal, *self.steps) for cell in step.cells]
        places = torch.tensor([start * clips + end for start, end in cells])
        self.register_buffer("places", places, persistent=False)

    def forward(self, clips: Tensor) -> Tensor:
        """[batch, hidden, clips] to [batch, hidden, clips, clips]."""
        values, levels = clips, [clips]
        for number, step in enumerate(self.steps):
            if self.convolutions:
                values = self.convolutions[number](values)
            else:
                values = functional.max_pool1d(values, step.width, step.stride)
            levels.append(values)  # [batch, hidden, starts]
        candidates = torch.cat(levels, dim=-1)  # [batch, hidden, candidates]
        batch, hidden, size = clips.shape
        empty = candidates.new_zeros(batch, hidden, size**2)
        return empty.index_copy(2, self.places, candidates).view(batch, hidden, size, size)


def candidate_overlap(cells: Tensor, clips: int, durations: Tensor, windows: Tensor, present: Tensor) -> Tensor:
    """Return the highest hull IoU [sentences, candidates] of `cells` with windows [sentences, windows, 2], in s."""
    candidates = candidate_windows(cells, clips, durations)
    overlap = hull_iou(candidates[:, :, None], windows[:, None])  # [sentences, candidates, windows]
    return overlap.masked_fill(~present[:, None], 0).amax(-1)


def segment_means(video: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Return means [batch, segments, channels] of equal parts of videos [batch, clips, channels]; lengths [batch].

    Bounds are i/segments of the length, rounded half to even and at most the last clip; so, as published, the last clip
    of a video with more clips than segments is ignored. A segment without a clip is the clip at its start: a video with
    fewer clips than segments repeats clips.
    """
    parts = torch.arange(segments + 1, device=video.device, dtype=torch.float64) / segments
    bounds = (parts * lengths[:, None]).round().long().minimum(lengths[:, None] - 1)
    first, after = bounds[:, :-1], bounds[:, 1:].maximum(bounds[:, :-1] + 1)
    place = torch.arange(video.shape[1], device=video.device)
    inside = (place >= first[..., None]) & (place < after[..., None])
    return (inside / (after - first)[..., None]) @ video


class ProposalLayer(nn.Module):
    """Convolution, batch normalisation, ReLU, and weights of 1 / (number of candidates in a cell's receptive field).

    The published code pads the map once, before the first layer, by the border that all layers remove, and also
    convolves and normalises this border. Cells of the border without a candidate in reach equal the bias. Here they are
    not computed: the statistics count `outside` zeros per channel and sample, and each layer pads as little as it can.
    """

    weights: Tensor

    def __init__(self, width: int, out: int, kernel: int, padding: int, outside: int, weights: Tensor) -> None:
        super().__init__()
        self.convolution, self.padding, self.outside = nn.Conv2d(width, out, kernel), padding, outside
        self.norm = nn.BatchNorm2d(out)  # holds weights and running statistics
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, cells: Tensor) -> Tensor:
        """[videos, width, n, n] to [videos, out, m, m], in float32 after the convolution."""
        cells = functional.conv2d(cells, self.convolution.weight, padding=self.padding)
        with torch.autocast(cells.device.type, enabled=False):
            return self._normalised(cells.float()).relu() * self.weights

    def _normalised(self, cells: Tensor) -> Tensor:
        """Batch-normalise cells [videos, out, m, m], which lack the convolution's bias, together with their border.

        Subtracting the mean of the batch removes the bias, so the bias only changes the running mean.
        """

        def by_channel(values: Tensor) -> Tensor:
            return values[:, None, None]  # broadcastable against cells

        norm: Any = self.norm  # with weights and statistics
        bias = self.convolution.bias.detach()  # type: ignore[union-attr]
        if self.training:
            border = cells.shape[0] * self.outside
            count = cells.numel() // cells.shape[1] + border
            mean = cells.sum((0, 2, 3)) / count
            centred = cells - by_channel(mean)
            variance = (centred.square().sum((0, 2, 3)) + border * mean.square()) / count
            with torch.no_grad():
                norm.running_mean.lerp_(mean + bias, norm.momentum)
                norm.running_var.lerp_(variance * (count / max(count - 1, 1)), norm.momentum)
                norm.num_batches_tracked += 1
        else:
            centred, variance = cells - by_channel(norm.running_mean - bias), norm.running_var
        return centred * by_channel(norm.weight * (variance + norm.eps).rsqrt()) + by_channel(norm.bias)


class ProposalConvolution(nn.Module):
    """Layers of convolutions [videos, width, N, N] to [videos, out, N, N]; `mask` [N, N] is True for candidates."""

    def __init__(self, width: int, out: int, kernel: int, layers: int, mask: Tensor) -> None:
        super().__init__()
        border, seen = (kernel - 1) * layers // 2, mask.float()
        stack = []
        for number in range(layers):
            padding = min(kernel - 1, border)
            border -= padding
            ones = torch.ones(1, 1, kernel, kernel)
            number_seen = functional.conv2d(seen[None, None], ones, padding=padding)[0, 0].round()  # candidates
            seen = (number_seen > 0).float()
            weights = torch.where(number_seen > 0, 1 / number_seen.clamp(min=1), 0.0)
            outside = (len(seen) + 2 * border) ** 2 - seen.numel()
            stack.append(ProposalLayer(out if number else width, out, kernel, padding, outside, weights))
        self.layers = nn.ModuleList(stack)

    def forward(self, cells: Tensor) -> Tensor:
        """Run all layers in the memory format channels last, in which convolutions are faster on CPUs and GPUs."""
        cells = cells.contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            cells = layer(cells)
        return cells


def of_next_video(video_of: Tensor) -> Tensor:
    """Return, for each sentence, the index [sentences] of a sentence of the next video; the first follows the last.

    video_of [sentences] is sorted and starts at 0. The sentences of the next video are assigned in turn.
    """
    counts = torch.bincount(video_of)
    first, following = counts.cumsum(0) - counts, (video_of + 1) % len(counts)
    place = torch.arange(len(video_of), device=video_of.device) - first[video_of]
    return first[following] + place % counts[following]


class SentenceEncoder(nn.Module):
    """Encoder of a sentence: the normalised mean of its tokens, through one linear layer for each space."""

    def __init__(self, width: int, joint: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.iou = nn.Linear(width, joint)
        self.contrast = nn.Linear(width, joint)

    def forward(self, text: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return IoU and contrastive vectors [..., joint] of a text [..., words, width] with its mask [..., words]."""
        total = (text * mask[..., None]).sum(-2)  # [..., width]
        sentence = self.norm(total / mask.sum(-1, keepdim=True).clamp(min=1))
        return self.iou(sentence), self.contrast(sentence)


class ExistenceHead(nn.Module):
    """Logit of a sentence's moment being in a video, linear in products of the sentence and the likeliest cells."""

    def __init__(self, joint: int) -> None:
        super().__init__()
        self.products = nn.Linear(2 * joint, 1)

    def forward(self, cells: tuple[Tensor, Tensor], sentences: tuple[Tensor, Tensor]) -> Tensor:
        """Return logits [sentences]; cells [sentences, candidates, joint], sentences [sentences, joint] of both spaces.

        Cells are averaged with softmax weights of the IoU branch's scaled cosine. The products of unit vectors are
        small, so they are multiplied by `joint`.
        """
        weights = (IOU_SCALE * torch.einsum("smc,sc->sm", cells[0], sentences[0])).softmax(1)
        likeliest = [torch.einsum("sm,smc->sc", weights, space) for space in cells]
        products = [sentence * cell for sentence, cell in zip(sentences, likeliest, strict=True)]
        vector = torch.cat(products, dim=1) * products[0].shape[1]  # [sentences, 2·joint]
        with torch.autocast(vector.device.type, enabled=False):
            return self.products(vector.float())[:, 0]


class MMN(nn.Module):
    """MMN: map of candidates, convolutions over the map, and projections of cells and sentences to both spaces."""

    cells: Tensor
    places: Tensor

    def __init__(self, settings: MMNSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.clip_projection = nn.Linear(s.video_dim, s.hidden) if s.projected else None
        self.map = MomentMap(s.clips, s.counts, s.hidden, s.kind)
        cells = candidate_cells(s.clips, s.counts)
        places = cells[:, 0] * s.clips + cells[:, 1]
        mask = torch.zeros(s.clips**2, dtype=torch.bool).index_fill(0, places, True).view(s.clips, s.clips)
        self.proposals = ProposalConvolution(s.hidden, s.proposal, s.kernel, s.layers, mask)
        self.cell_iou = nn.Linear(s.proposal, s.joint)
        self.cell_contrast = nn.Linear(s.proposal, s.joint)
        self.sentences = SentenceEncoder(s.text_dim, s.joint)
        self.existence_head = ExistenceHead(s.joint) if s.existence else None
        self.register_buffer("cells", cells, persistent=False)
        self.register_buffer("places", places, persistent=False)

    def forward(self, inputs: MapInputs) -> MapOutputs:
        s, shape = self.settings, (*inputs.video.shape[1:], inputs.text.shape[-1])
        if shape != (s.segments, s.video_dim, s.text_dim):
            raise ValueError(
                f"{shape[0]} segments of {shape[1]} channels and texts of {shape[2]}, but the model takes {s.segments} "
                f"of {s.video_dim} and {s.text_dim}"
            )
        proposals = self.proposals(self.map(self.pool(inputs.video)))  # [videos, proposal, clips, clips]
        cells = proposals.permute(0, 2, 3, 1).flatten(1, 2)[:, self.places]  # [videos, candidates, proposal]
        iou, contrast = self.sentences(inputs.text, inputs.text_mask)  # [texts, sentences, joint]
        outputs = MapOutputs(
            unit(self.cell_iou(cells)), unit(self.cell_contrast(cells)), unit(iou), unit(contrast), inputs.video_of
        )
        if self.existence_head is not None:
            outputs.existence = self._existence(outputs, self.existence_head)
        return outputs

    def _existence(self, outputs: MapOutputs, head: ExistenceHead) -> Tensor:
        video_of = outputs.video_of
        own, *hard = zip(outputs.text_iou, outputs.text_contrast, strict=True)
        texts = [own]
        if self.training and len(outputs.cell_iou) > 1:
            following = of_next_video(video_of)
            texts.append((own[0][following], own[1][following]))
        cells = outputs.cell_iou[video_of], outputs.cell_contrast[video_of]
        return torch.stack([head(cells, text) for text in (*texts, *(hard if self.training else ()))])

    def pool(self, video: Tensor) -> Tensor:
        """[videos, segments, video_dim] to [videos, hidden, clips]."""
        if self.clip_projection is not None:
            video = self.clip_projection(video).relu()
        return functional.avg_pool1d(video.transpose(1, 2), self.settings.pool, self.settings.stride)


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of length 1, always in float32."""
    return functional.normalize(vectors.float(), dim=-1)
