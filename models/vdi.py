"""VDI (Luo et al., "Towards Generalisable Video Moment Retrieval: Visual-Dynamic Injection", CVPR 2023), on MMN.

There is no published code; section numbers are the paper's. MMN without its linear layer takes CLIP's frame features,
and CLIP's text encoder, which is trained, gives the query's feature and those of its static and dynamic part
(`penumbra.tasks.text.visual_dynamic_queries`). Two losses inject what frames show into the dynamic part; prediction
needs neither.

What the paper leaves open, and is chosen here:

- Words are dropped, not masked: CLIP has no mask token. A query that can't be split takes no part in either loss.
- Both transformers have one layer, 8 heads and dropout 0.1, post-norm, as the other models' layers are.
- A frame is one of MMN's segments: there are always as many, so that no frame is padding. Patch
  features are of frames of their own, with a mask.
- The linear layer on the dynamic query is not shared between the two losses.
- Neither side is a fixed target, as the equations have it. `fixed_target` stops the gradient of the visual side: the
  decoder then stays as it was drawn, and can't be trained towards the text.
- Patch features are the vision model's last hidden states before its projection (768 wide for ViT-B/32).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from penumbra.models.losses.injection import context_loss, dynamics_loss
from penumbra.models.mmn import MMN, MapInputs, MapOutputs, MMNSettings

Sequence = Literal["lstm", "transformer"]


@dataclass(frozen=True)
class InjectionSettings:
    """The injections' sizes; `grid` patches of `patch_dim` channels a frame, 0 for none: then there is no motion."""

    width: int
    patch_dim: int = 0
    grid: int = 49
    sequence: Sequence = "transformer"
    heads: int = 8
    dropout: float = 0.1
    fixed_target: bool = False


@dataclass
class Patches:
    """features [B, F, D] and patches [B, F, grid, patch_dim] of F frames, mask [B, F]: True where a frame is there."""

    frames: Tensor
    patches: Tensor
    mask: Tensor


@dataclass
class Injected:
    """What VDI's losses compare: dynamic queries [S, D] and visual contexts [S, D]; the same for motion [B, D]."""

    dynamic: Tensor
    context: Tensor
    dynamic_motion: Tensor | None = None
    motion: Tensor | None = None


class VisualContext(nn.Module):
    """A static query finds in the frames what it speaks of (section 3.3, Eq. 1)."""

    def __init__(self, settings: InjectionSettings) -> None:
        super().__init__()
        s = settings
        self.decoder = nn.TransformerDecoderLayer(s.width, s.heads, 4 * s.width, s.dropout, batch_first=True)
        self.dynamic = nn.Linear(s.width, s.width)

    def forward(self, static: Tensor, dynamic: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Dynamic queries and visual contexts [S, D] of queries [S, D] and their videos' frames [S, F, D]."""
        return self.dynamic(dynamic), self.decoder(static[:, None], frames)[:, 0]


class SpatialDynamics(nn.Module):
    """How the place of what a frame is about moves from frame to frame (section 3.4, Eq. 3 and 4)."""

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
        """How alike each patch is to its frame [B, F, grid]."""
        frames, patches = self.frame(seen.frames), self.patch(seen.patches)
        found: Tensor = (patches @ frames[..., None])[..., 0] / math.sqrt(frames.shape[-1])
        return found

    def forward(self, seen: Patches) -> Tensor:
        """The motion [B, D] of each video: mean over its frames."""
        places = self.place(self.heat(seen))
        nothing = ~seen.mask.any(1, keepdim=True)  # a video without frames: `injection_losses` leaves it out
        if isinstance(self.sequence, nn.LSTM):
            states = self.sequence(places)[0]  # frames that are not there come last and change nothing before
        else:
            states = self.sequence(places, src_key_padding_mask=~(seen.mask | nothing))
        weight = seen.mask[..., None].to(states.dtype)
        mean: Tensor = (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean


@dataclass
class InjectedInputs:
    """Videos and sentences as MMN takes them, but texts as token ids: text [S, Lt] with text_mask [S, Lt].

    `static` and `dynamic` are the ids and masks [S, L] of the sentences' two parts, `split` [S] says who has them.
    """

    map: MapInputs
    static: tuple[Tensor, Tensor]
    dynamic: tuple[Tensor, Tensor]
    split: Tensor
    seen: Patches | None = None


class VDI(nn.Module):
    """MMN on frame features, a text encoder from ids [S, L] and their mask to features [S, D], and the injections."""

    def __init__(self, settings: MMNSettings, injection: InjectionSettings, text_encoder: nn.Module) -> None:
        super().__init__()
        self.grounding, self.text_encoder, self.injection = MMN(settings), text_encoder, injection
        self.context = VisualContext(injection)
        self.dynamics = SpatialDynamics(injection) if injection.patch_dim else None

    def forward(self, inputs: MapInputs) -> MapOutputs:
        """Candidates and sentences in both spaces, for prediction; texts are ids."""
        found: MapOutputs = self.grounding(self.encoded(inputs))
        return found

    def encoded(self, inputs: MapInputs) -> MapInputs:
        """The inputs with every text as one feature."""
        text = self.text_encoder(inputs.text, inputs.text_mask)[:, None]
        hard = mask = None
        if inputs.hard_text is not None and inputs.hard_mask is not None:
            levels = inputs.hard_text.shape[0]
            flat = self.text_encoder(inputs.hard_text.flatten(0, 1), inputs.hard_mask.flatten(0, 1))
            hard = flat.unflatten(0, (levels, -1))[:, :, None]
            mask = torch.ones_like(hard[..., 0], dtype=torch.bool)
        there = torch.ones_like(text[..., 0], dtype=torch.bool)
        return replace(inputs, text=text, text_mask=there, hard_text=hard, hard_mask=mask)

    def inject(self, inputs: InjectedInputs) -> Injected:
        """What the two losses compare."""
        static, dynamic = self.text_encoder(*inputs.static), self.text_encoder(*inputs.dynamic)
        words, context = self.context(static, dynamic, inputs.map.video[inputs.map.video_of])
        found = Injected(words, context)
        if self.dynamics is not None and inputs.seen is not None:
            found.dynamic_motion, found.motion = self.dynamics.dynamic(dynamic), self.dynamics(inputs.seen)
        if self.injection.fixed_target:
            found.context = found.context.detach()
            found.motion = None if found.motion is None else found.motion.detach()
        return found


def injection_losses(found: Injected, inputs: InjectedInputs) -> dict[str, Tensor]:
    """Both losses before their weights; that of motion is left out where no patch features are there."""
    terms = {"visual_context": context_loss(found.dynamic, found.context, inputs.split)}
    if found.motion is not None and found.dynamic_motion is not None and inputs.seen is not None:
        video_of = inputs.map.video_of
        counted = inputs.split & inputs.seen.mask.any(1)[video_of]
        terms["spatial_dynamics"] = dynamics_loss(found.dynamic_motion, found.motion, video_of, counted)
    return terms
