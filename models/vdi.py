"""VDI (Luo et al., "Towards Generalisable Video Moment Retrieval: Visual-Dynamic Injection", CVPR 2023), on MMN.

MMN without its linear layer takes CLIP's frame features. CLIP's text encoder, which is trained, gives the query's
feature and those of its static and dynamic part. Two losses inject what frames show into the dynamic part; prediction
needs neither. There is no published code. Where the paper leaves something open: words are dropped, not masked; a
query that can't be split takes part in neither loss; the transformers have one post-norm layer, 8 heads and dropout
0.1; MMN's segments are the frames, but motion has frames of its own, whose patches (the last hidden states before the
projection) are compared with their own frame's vector (Eq. 3); sine positions or an LSTM give their order; the two
losses share no linear layer on the dynamic query, and neither side is a fixed target.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from penumbra.models.map_losses import context_loss, dynamics_loss
from penumbra.models.mmn import MMN, MapInputs, MapOutputs, MMNSettings
from penumbra.models.transformer import clip_positions

Sequence = Literal["lstm", "transformer"]
Context = Literal["static", "query", "dynamic", "none"]


@dataclass(frozen=True)
class InjectionSettings:
    """Sizes of the injections; `grid` patches of `patch_dim` channels a frame, 0 for none: then there is no motion.

    `context` says which text attends to the frames in the visual context injection; "none": their mean is the context.
    """

    width: int
    patch_dim: int = 0
    grid: int = 49
    sequence: Sequence = "transformer"
    heads: int = 8
    dropout: float = 0.1
    context: Context = "static"


@dataclass
class Patches:
    """Frames [videos, frames, D] with their own patches [videos, frames, grid, patch_dim]; mask [videos, frames]."""

    frames: Tensor
    patches: Tensor
    mask: Tensor


class VisualContext(nn.Module):
    """Decoder with which a text, in the paper the static query, attends to the frames (section 3.3, Eq. 1)."""

    def __init__(self, settings: InjectionSettings) -> None:
        super().__init__()
        s = settings
        layer = nn.TransformerDecoderLayer(s.width, s.heads, 4 * s.width, s.dropout, batch_first=True)
        self.decoder = None if s.context == "none" else layer
        self.dynamic = nn.Linear(s.width, s.width)

    def forward(self, text: Tensor, dynamic: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return dynamic queries and visual contexts [sentences, D]; frames [sentences, frames, D]."""
        context = frames.mean(1) if self.decoder is None else self.decoder(text[:, None], frames)[:, 0]
        return self.dynamic(dynamic), context


class SpatialDynamics(nn.Module):
    """Encoder of how the place of a frame's content moves from frame to frame (section 3.4, Eq. 3 and 4)."""

    def __init__(self, settings: InjectionSettings) -> None:
        super().__init__()
        s = settings
        self.frame = nn.Linear(s.width, s.width)
        self.patch = nn.Linear(s.patch_dim, s.width)
        self.place = nn.Linear(s.grid, s.width)
        self.dynamic = nn.Linear(s.width, s.width)
        self.sequence: nn.Module = (
            nn.LSTM(s.width, s.width, batch_first=True)
            if s.sequence == "lstm"
            else nn.TransformerEncoderLayer(s.width, s.heads, 4 * s.width, s.dropout, batch_first=True)
        )

    def heat(self, seen: Patches) -> Tensor:
        """Return the similarity [videos, frames, grid] of each patch to its frame."""
        frames, patches = self.frame(seen.frames), self.patch(seen.patches)
        similarity: Tensor = (patches @ frames[..., None])[..., 0] / math.sqrt(frames.shape[-1])
        return similarity

    def forward(self, seen: Patches) -> Tensor:
        """Return the motion [videos, D] of each video, the mean over its frames."""
        places = self.place(self.heat(seen))
        nothing = ~seen.mask.any(1, keepdim=True)  # videos without frames, which `VDI.inject` leaves out
        if isinstance(self.sequence, nn.LSTM):
            states = self.sequence(places)[0]  # padding comes last and changes nothing before it
        else:
            placed = places + clip_positions(seen.mask, places.shape[-1])
            states = self.sequence(placed, src_key_padding_mask=~(seen.mask | nothing))
        weight = seen.mask[..., None].to(states.dtype)
        mean: Tensor = (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean


@dataclass
class InjectedInputs:
    """Inputs of MMN with texts as token ids: text and text_mask [sentences, tokens].

    `static` and `dynamic` are the ids and masks [sentences, tokens] of the sentences' two parts; `split` [sentences]
    says which sentences have them.
    """

    map: MapInputs
    static: tuple[Tensor, Tensor]
    dynamic: tuple[Tensor, Tensor]
    split: Tensor
    seen: Patches | None = None


class VDI(nn.Module):
    """MMN on frame features, the injections, and a text encoder: ids, mask [sentences, tokens] to [sentences, D]."""

    def __init__(self, settings: MMNSettings, injection: InjectionSettings, text_encoder: nn.Module) -> None:
        super().__init__()
        self.grounding, self.text_encoder, self.injection = MMN(settings), text_encoder, injection
        self.context = VisualContext(injection)
        self.dynamics = SpatialDynamics(injection) if injection.patch_dim else None

    def forward(self, inputs: MapInputs) -> MapOutputs:
        outputs: MapOutputs = self.grounding(self.encode(inputs))
        return outputs

    def encode(self, inputs: MapInputs) -> MapInputs:
        text = self.text_encoder(inputs.text, inputs.text_mask)[:, None]
        hard = mask = None
        if inputs.hard_text is not None and inputs.hard_mask is not None:
            levels = inputs.hard_text.shape[0]
            flat = self.text_encoder(inputs.hard_text.flatten(0, 1), inputs.hard_mask.flatten(0, 1))
            hard = flat.unflatten(0, (levels, -1))[:, :, None]
            mask = torch.ones_like(hard[..., 0], dtype=torch.bool)
        text_mask = torch.ones_like(text[..., 0], dtype=torch.bool)
        return replace(inputs, text=text, text_mask=text_mask, hard_text=hard, hard_mask=mask)

    def inject(self, inputs: InjectedInputs) -> dict[str, Tensor]:
        """Return both losses before their weights; that of motion is left out without patch features."""
        static, dynamic = self.text_encoder(*inputs.static), self.text_encoder(*inputs.dynamic)
        texts = {"static": static, "dynamic": dynamic, "none": static}
        if self.injection.context == "query":
            texts["query"] = self.text_encoder(inputs.map.text, inputs.map.text_mask)
        frames = inputs.map.video[inputs.map.video_of]
        words, context = self.context(texts[self.injection.context], dynamic, frames)
        motion = None
        if self.dynamics is not None and inputs.seen is not None:
            motion = self.dynamics.dynamic(dynamic), self.dynamics(inputs.seen)  # [sentences, D], [videos, D]
        with torch.autocast(frames.device.type, enabled=False):
            terms = {"visual_context": context_loss(words, context, inputs.split)}
            if motion is not None and inputs.seen is not None:
                counted = inputs.split & inputs.seen.mask.any(1)[inputs.map.video_of]
                terms["spatial_dynamics"] = dynamics_loss(*motion, inputs.map.video_of, counted)
        return terms
