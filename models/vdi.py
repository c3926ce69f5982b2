"""VDI (Luo et al., "Towards Generalisable Video Moment Retrieval: Visual-Dynamic Injection", CVPR 2023), on MMN.

MMN without its linear layer reads CLIP's frame features. CLIP's text encoder, which is trained, encodes the query and
its static and dynamic parts. Two losses bring the dynamic part close to the content of the frames; prediction does not
use them. No code is published. Where the paper leaves a choice open: words are dropped, not masked; a query without
both parts is left out of both losses; the transformers have one post-norm layer, 8 heads and dropout 0.1; MMN's
segments are the frames, but motion is computed from other frames, whose patches (the last hidden states before the
projection) are compared with the vector of their frame (Eq. 3); sine positions or an LSTM encode their order; each loss
has its own linear layer on the dynamic query, and both of its arguments have gradients.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.losses import masked_mean
from penumbra.models.map_losses import MMNLosses
from penumbra.models.mmn import MMN, MapInputs, MapOutputs, MMNSettings
from penumbra.models.transformer import clip_positions

Context = Literal["static", "query", "dynamic", "none"]
HEADS, DROPOUT = 8, 0.1  # attention heads and dropout of both transformers


@dataclass(frozen=True)
class VDISettings(MMNSettings):
    """Sizes of VDI. Frames have `grid` patches with `patch_dim` channels; `patch_dim` 0 leaves out the motion branch.

    `motion` is the sequence model of the spatial dynamic injection. `context` is the text that attends to the frames in
    the visual context injection; "none" (Fig. 3, "w/o Q") uses the mean of the frames.
    """

    patch_dim: int = 0
    grid: int = 49
    motion: Literal["transformer", "lstm"] = "transformer"
    context: Context = "static"
    text_rate: float = 0.1  # factor of the learning rate for the text encoder; 0 freezes it


@dataclass(frozen=True)
class VDILosses(MMNLosses):
    """Losses of MMN and VDI's two injections, with the paper's weights except `spatial_dynamics`, 0.01 in the paper."""

    visual_context: float = 0.5
    spatial_dynamics: float = 0.0


@dataclass
class Patches:
    """Frames [videos, frames, D] and their patches [videos, frames, grid, patch_dim]; mask [videos, frames]."""

    frames: Tensor
    patches: Tensor
    mask: Tensor


class VisualContext(nn.Module):
    """Decoder in which a text, in the paper the static query, attends to the frames (section 3.3, Eq. 1)."""

    def __init__(self, settings: VDISettings) -> None:
        super().__init__()
        width = settings.hidden
        layer = nn.TransformerDecoderLayer(width, HEADS, 4 * width, DROPOUT, batch_first=True)
        self.decoder = None if settings.context == "none" else layer
        self.dynamic = nn.Linear(width, width)

    def forward(self, text: Tensor, dynamic: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return dynamic queries and visual contexts [sentences, D]; frames [sentences, frames, D]."""
        context = frames.mean(1) if self.decoder is None else self.decoder(text[:, None], frames)[:, 0]
        return self.dynamic(dynamic), context


class SpatialDynamics(nn.Module):
    """Encoder of motion: how the patches that match their frame change over time (section 3.4, Eq. 3 and 4)."""

    def __init__(self, settings: VDISettings) -> None:
        super().__init__()
        width = settings.hidden
        self.frame = nn.Linear(width, width)
        self.patch = nn.Linear(settings.patch_dim, width)
        self.place = nn.Linear(settings.grid, width)
        self.dynamic = nn.Linear(width, width)
        self.sequence: nn.Module = (
            nn.LSTM(width, width, batch_first=True)
            if settings.motion == "lstm"
            else nn.TransformerEncoderLayer(width, HEADS, 4 * width, DROPOUT, batch_first=True)
        )

    def forward(self, seen: Patches) -> Tensor:
        """Return the motion [videos, D] of each video, a mean over its frames."""
        frames, patches = self.frame(seen.frames), self.patch(seen.patches)
        heat = (patches @ frames[..., None])[..., 0] / math.sqrt(frames.shape[-1])  # [videos, frames, grid]
        places = self.place(heat)
        empty = ~seen.mask.any(1, keepdim=True)  # videos without frames, which `VDI.inject` leaves out
        if isinstance(self.sequence, nn.LSTM):
            states = self.sequence(places)[0]  # padding is last, so it does not change the other states
        else:
            placed = places + clip_positions(seen.mask, places.shape[-1])
            states = self.sequence(placed, src_key_padding_mask=~(seen.mask | empty))
        weight = seen.mask[..., None].to(states.dtype)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


def context_loss(dynamic: Tensor, context: Tensor, split: Tensor) -> Tensor:
    """Return the mean squared distance of dynamic queries and contexts [sentences, D] where `split` is True (Eq. 2)."""
    return masked_mean((dynamic - context).square().sum(-1), split)


def dynamics_loss(dynamic: Tensor, motion: Tensor, video_of: Tensor, split: Tensor) -> Tensor:
    """Return the spatial dynamic injection loss (Eq. 5) of dynamic queries [sentences, D] and motions [videos, D].

    It is the sum of (cos of motions - cos of queries)² over pairs of the n sentences with `split` [sentences], divided
    by n². Pairs in one video are left out: as they have the same motion, their dynamic queries would become equal.
    """
    queries = functional.normalize(dynamic, dim=-1)
    motions = functional.normalize(motion, dim=-1)[video_of]  # [sentences, D]
    distance = (motions @ motions.T - queries @ queries.T).square()
    pairs = (video_of[:, None] != video_of) & split[:, None] & split
    count = split.sum().clamp(min=1)
    return torch.where(pairs, distance, 0).sum() / count**2


@dataclass
class VDIInputs(MapInputs):
    """Inputs of MMN with texts as token ids: text and text_mask [texts, sentences, tokens].

    `static` and `dynamic` are the ids and masks [sentences, tokens] of the two parts of each sentence; `split`
    [sentences] is True for sentences that have both parts. Prediction takes `MapInputs`.
    """

    static: tuple[Tensor, Tensor]
    dynamic: tuple[Tensor, Tensor]
    split: Tensor
    seen: Patches | None = None


class VDI(nn.Module):
    """VDI: MMN on frames, the two injections, and a text encoder (ids, mask [sentences, tokens] to [sentences, D])."""

    def __init__(self, settings: VDISettings, text_encoder: nn.Module) -> None:
        super().__init__()
        self.grounding, self.text_encoder, self.settings = MMN(settings), text_encoder, settings
        self.context = VisualContext(settings)
        self.dynamics = SpatialDynamics(settings) if settings.patch_dim else None

    def forward(self, inputs: MapInputs) -> MapOutputs:
        ids, mask = inputs.text, inputs.text_mask
        texts = self.text_encoder(ids.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, ids.shape[:2])[:, :, None]
        ones = torch.ones(texts.shape[:3], dtype=torch.bool, device=ids.device)
        return self.grounding(MapInputs(inputs.video, texts, ones, inputs.video_of))

    def inject(self, inputs: VDIInputs) -> dict[str, Tensor]:
        """Return both losses without their weights; the motion loss is left out without patch features."""
        static, dynamic = self.text_encoder(*inputs.static), self.text_encoder(*inputs.dynamic)
        texts = {"static": static, "dynamic": dynamic, "none": static}
        if self.settings.context == "query":
            texts["query"] = self.text_encoder(inputs.text[0], inputs.text_mask[0])
        frames = inputs.video[inputs.video_of]
        words, context = self.context(texts[self.settings.context], dynamic, frames)
        motion = None
        if self.dynamics is not None and inputs.seen is not None:
            motion = self.dynamics.dynamic(dynamic), self.dynamics(inputs.seen)  # [sentences, D], [videos, D]
        with torch.autocast(frames.device.type, enabled=False):
            terms = {"visual_context": context_loss(words, context, inputs.split)}
            if motion is not None and inputs.seen is not None:
                counted = inputs.split & inputs.seen.mask.any(1)[inputs.video_of]
                terms["spatial_dynamics"] = dynamics_loss(*motion, inputs.video_of, counted)
        return terms
