"""MMN (Wang et al., "Negative Sample Matters", AAAI 2022): sentences and candidate moments in two common spaces.

In the one the cosine says how well a moment overlaps with the sentence's (IoU branch), in the other sentences and
moments are each other's negatives (contrastive branch). The score of a candidate is made of both.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.moment_map import Kind, MomentMap, candidate_cells
from penumbra.models.proposals import ProposalConvolution

IOU_SCALE = 10.0  # of the cosine, before the sigmoid
TextPooling = Literal["mean", "given"]


@dataclass(frozen=True)
class MMNSettings:
    """What an MMN is built from; the defaults are those of Charades-STA.

    A video comes as `segments` means of its clips and is pooled to `clips` by windows of `pool` segments. `counts` is
    the map's schedule (`moment_map.schedule`). `projected` is false where clips are pooled without the linear layer
    before (VDI): video_dim is then the width of the map.
    """

    video_dim: int
    text_dim: int
    hidden: int = 512
    joint: int = 256
    clips: int = 16
    segments: int = 32
    pool: int = 2
    counts: tuple[int, ...] = (15,)
    kind: Kind = "pool"
    proposal: int = 512
    kernel: int = 5
    layers: int = 8
    projected: bool = True

    def __post_init__(self) -> None:
        """Refuse sizes that give no map."""
        if self.segments % self.clips or (self.segments - self.pool) // self.stride + 1 != self.clips:
            raise ValueError(f"{self.segments} segments, pooled by {self.pool}, do not give {self.clips} clips")
        if not self.projected and self.video_dim != self.hidden:
            raise ValueError(f"clips of {self.video_dim} channels that are not projected to {self.hidden}")

    @property
    def stride(self) -> int:
        """Segments between two clips."""
        return self.segments // self.clips


@dataclass
class MapInputs:
    """Videos with all their sentences.

    video [B, segments, video_dim]; text [S, Lt, text_dim] with text_mask [S, Lt], True where a token is no padding, of
    the S sentences of all videos; video_of [S] is each sentence's video. hard_text [K, S, Lh, text_dim] and hard_mask
    [K, S, Lh] are hard negatives of each sentence, mildest first.
    """

    video: Tensor
    text: Tensor
    text_mask: Tensor
    video_of: Tensor
    hard_text: Tensor | None = None
    hard_mask: Tensor | None = None


@dataclass
class MapOutputs:
    """Unit vectors in the two spaces: of the M candidates of each video [B, M, joint] and of each sentence [S, joint].

    hard_iou and hard_contrast [K, S, joint] are those of the hard negatives.
    """

    cell_iou: Tensor
    cell_contrast: Tensor
    sentence_iou: Tensor
    sentence_contrast: Tensor
    video_of: Tensor
    hard_iou: Tensor | None = None
    hard_contrast: Tensor | None = None

    def under(self, iou: Tensor, contrast: Tensor) -> "MapOutputs":
        """The same videos with other sentences [S, joint] in the place of theirs."""
        return replace(self, sentence_iou=iou, sentence_contrast=contrast)

    def iou_logits(self) -> Tensor:
        """Scaled cosine [S, M] between a sentence and the candidates of its video, in the IoU branch."""
        return IOU_SCALE * self._own(self.cell_iou, self.sentence_iou)

    def hard_iou_logits(self) -> Tensor:
        """The same [K, S, M] of each sentence's hard negatives."""
        if self.hard_iou is None:
            raise ValueError("no hard negatives were given")
        return IOU_SCALE * torch.einsum("smc,ksc->ksm", self.cell_iou[self.video_of], self.hard_iou)

    def contrast(self) -> Tensor:
        """Cosine [S, M] in the contrastive branch."""
        return self._own(self.cell_contrast, self.sentence_contrast)

    def fused(self, power: float) -> Tensor:
        """The score of every candidate [S, M]: (0.5 + 0.5 contrastive)^power times the IoU branch's."""
        share = (0.5 * self.contrast() + 0.5).clamp(min=0)  # a cosine may be a rounding below -1
        scores: Tensor = share**power * self.iou_logits().sigmoid()
        return scores

    def _own(self, cells: Tensor, sentences: Tensor) -> Tensor:
        return torch.einsum("smc,sc->sm", cells[self.video_of], sentences)


class SentenceEncoder(nn.Module):
    """A sentence is the mean of its tokens, normalised; one linear layer takes it to each space."""

    def __init__(self, width: int, joint: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.iou = nn.Linear(width, joint)
        self.contrast = nn.Linear(width, joint)

    def forward(self, text: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors [..., joint] of the IoU and the contrastive space for text [..., Lt, width] and mask [..., Lt]."""
        total = (text * mask[..., None]).sum(-2)
        sentence = self.norm(total / mask.sum(-1, keepdim=True).clamp(min=1))
        return self.iou(sentence), self.contrast(sentence)


class MMN(nn.Module):
    """Clips on the map, convolutions over it, and every candidate in both spaces; sentences beside them."""

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
        self.register_buffer("cells", cells, persistent=False)
        self.register_buffer("places", places, persistent=False)

    def forward(self, inputs: MapInputs) -> MapOutputs:
        """Candidates of every video and sentences in both spaces."""
        self._check(inputs)
        proposals = self.proposals(self.map(self.pool(inputs.video)))
        cells = proposals.permute(0, 2, 3, 1).flatten(1, 2)[:, self.places]
        iou, contrast = self.sentences(inputs.text, inputs.text_mask)
        found = MapOutputs(
            unit(self.cell_iou(cells)), unit(self.cell_contrast(cells)), unit(iou), unit(contrast), inputs.video_of
        )
        if inputs.hard_text is not None and inputs.hard_mask is not None:
            found.hard_iou, found.hard_contrast = map(unit, self.sentences(inputs.hard_text, inputs.hard_mask))
        return found

    def pool(self, video: Tensor) -> Tensor:
        """Segments [B, segments, video_dim] to clips [B, hidden, clips]."""
        if self.clip_projection is not None:
            video = self.clip_projection(video).relu()
        return functional.avg_pool1d(video.transpose(1, 2), self.settings.pool, self.settings.stride)

    def _check(self, inputs: MapInputs) -> None:
        s = self.settings
        found = *inputs.video.shape[1:], inputs.text.shape[-1]
        if found != (s.segments, s.video_dim, s.text_dim):
            raise ValueError(
                f"{found[0]} segments of {found[1]} channels and texts of {found[2]}, but the model takes {s.segments} "
                f"of {s.video_dim} and {s.text_dim}"
            )


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1, in float32 under autocast as well."""
    return functional.normalize(vectors.float(), dim=-1)
