"""VDI: MMN on CLIP's frames, CLIP's text encoder trained beside it, and the two injections (`penumbra.models.vdi`).

Motion (`injection.dynamic`) takes `patch_features`; the frame that a patch is compared with is the clip of the video's
features that it lies in. Prediction reads no patches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from penumbra.models.losses.candidates import MapTargets
from penumbra.models.losses.mmn import MMNLossSettings, mmn_losses
from penumbra.models.vdi import VDI, InjectedInputs, InjectionSettings, Patches, injection_losses
from penumbra.tasks.features.clip import Clip, Encoder, load, patch_sizes
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import FeatureError, Features
from penumbra.tasks.grounding.batches.map_data import MapData
from penumbra.tasks.grounding.families.base import trained
from penumbra.tasks.grounding.families.mmn import MapSystem
from penumbra.tasks.grounding.families.step import autocast
from penumbra.tasks.grounding.map_settings import Injection
from penumbra.tasks.grounding.training.settings import Settings
from torch import Tensor, nn


class ClipText(nn.Module):
    """CLIP's text encoder: token ids [S, L] and their mask to features [S, D] in the space of its frames."""

    def __init__(self, encoder: str) -> None:
        super().__init__()
        from transformers import CLIPTextModelWithProjection

        whole = load(Clip(encoder=encoder, device="cpu")).model
        self.model: Any = CLIPTextModelWithProjection(whole.config.text_config)
        self.model.text_model.load_state_dict(whole.text_model.state_dict())
        self.model.text_projection.load_state_dict(whole.text_projection.state_dict())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """See the class; what follows the end token changes nothing."""
        found: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).text_embeds
        return found


def token_ids(texts: Iterable[str], encoder: Encoder) -> Features:
    """Token ids of texts, start and end token among them, cut to the encoder's longest."""
    names = list(texts)
    limit = encoder.model.config.text_config.max_position_embeddings
    whole: list[list[int]] = encoder.tokenizer(names, truncation=False, verbose=False)["input_ids"]
    ids = [text if len(text) <= limit else [*text[: limit - 1], text[-1]] for text in whole]
    offsets = torch.tensor([0, *np.cumsum([len(text) for text in ids])], dtype=torch.long)
    values = torch.tensor([token for text in ids for token in text], dtype=torch.long)
    return Features(values, offsets, {name: row for row, name in enumerate(names)})


@dataclass
class InjectedBatch:
    """What a step takes; see `MapBatch`."""

    inputs: InjectedInputs
    targets: MapTargets
    late: bool


class InjectedData(MapData):
    """Queries by video, texts as token ids; a batch has the parts of its queries as well."""

    def __init__(self, examples: Examples, videos: Features, ids: Features, device: torch.device, settings: Settings,
                 hard: bool) -> None:  # fmt: skip
        s = settings
        super().__init__(
            examples, videos, ids, device, s.map, batch_size=s.training.batch_size, full_epochs=s.mutual.full_epochs,
            most_sentences=s.mutual.most_sentences, hard=hard, in_video=s.mutual.in_video,
        )  # fmt: skip
        rows = [[ids.index[text] for text in pair] for pair in examples.parts]
        self.parts = torch.tensor(rows, dtype=torch.long).view(-1, 2)
        self.patches, self.clip_length = videos.patches if s.patches_of else None, videos.clip_length

    def batch(self, rows: Tensor) -> InjectedBatch:  # type: ignore[override]
        """Videos `rows` with their sentences, these sentences' parts, and the truth."""
        found = super().batch(rows)
        host = np.concatenate([self.chosen[n] for n in rows.tolist()])
        parts = self.parts[host]
        words = self.texts.longest(parts.numpy())
        on_device = parts.to(self.device, non_blocking=True)
        static, dynamic = (self.text(on_device[:, column], words) for column in (0, 1))
        split = on_device[:, 0] != on_device[:, 1]
        seen = self.seen([self.taught[n][0] for n in rows.tolist()])
        return InjectedBatch(InjectedInputs(found.inputs, static, dynamic, split, seen), found.targets, found.late)

    def seen(self, videos: list[int]) -> Patches | None:
        """Patches and frames of videos [B]; None where the motion takes no part."""
        if self.patches is None:
            return None
        host = torch.tensor(videos)
        states, seconds, mask = self.patches.gather(host, self.device)
        index = host.to(self.device, non_blocking=True)
        clip = (seconds / self.clip_length).long().minimum(self.videos.lengths[index][:, None] - 1)
        return Patches(self.videos.values[self.videos.starts[index][:, None] + clip].float(), states, mask)


class InjectedObjective(nn.Module):
    """Model and losses as one module."""

    def __init__(self, model: VDI, losses: MMNLossSettings, injection: Injection, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.injection, self.bf16 = model, losses, injection, bf16

    def forward(self, batch: InjectedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        inputs = batch.inputs
        with autocast(inputs.map.video.device, self.bf16):
            outputs = self.model(inputs.map)
            injected = self.model.inject(inputs)
        found = mmn_losses(outputs, batch.targets, self.losses, batch.late)
        terms = injection_losses(injected, inputs)
        total = found.total + self.injection.context * terms["visual_context"]
        if "spatial_dynamics" in terms:
            total = total + self.injection.dynamic * terms["spatial_dynamics"]
        return total, found.terms | {name: value.detach() for name, value in terms.items()}


class InjectedSystem(MapSystem):
    """VDI under given settings."""

    def build(self, video_dim: int, text_dim: int) -> VDI:
        """See `System.build`; raises `FeatureError` where the frames are not of the encoder's space."""
        s, text = self.settings.injection, ClipText(self.settings.injection.encoder)
        clip = load(Clip(encoder=s.encoder, device="cpu"))
        width = text.model.config.projection_dim
        if video_dim != width:
            raise FeatureError(f"vdi takes frames of CLIP's space: {width} channels of {s.encoder}, not {video_dim}")
        shape = replace(self.settings.map.settings(width, width), hidden=width, projected=False)
        side, patch_dim = patch_sizes(clip) if s.dynamic else (0, 0)
        sizes = InjectionSettings(width, patch_dim, side**2, s.sequence, s.heads, s.dropout, s.fixed_target)
        text.requires_grad_(s.text_rate > 0)
        return VDI(shape, sizes, text)

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        width, hidden = weights["text_encoder.model.text_projection.weight"].shape
        return width, hidden

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> InjectedData:
        """See `System.data`; of `texts` the strings alone are used. Raises `FeatureError` for foreign patches."""
        encoder = load(Clip(encoder=self.settings.injection.encoder, device="cpu"))
        side, width = patch_sizes(encoder)
        if videos.patches is not None and videos.patches.values.shape[1:] != (side**2, width):
            raise FeatureError(f"patch_features are of another CLIP than {encoder.name}: {side}² patches of {width}")
        names: Sequence[str] = sorted(texts.index, key=texts.index.__getitem__)
        parts = sorted({part for pair in examples.parts for part in pair} - texts.index.keys())
        ids = token_ids([*names, *parts], encoder)
        return InjectedData(examples, videos, ids, device, self.settings, self.losses.needs_hard)

    def objective(self, model: nn.Module) -> InjectedObjective:
        """See `System.objective`."""
        return InjectedObjective(cast(VDI, model), self.losses, self.settings.injection, self.bf16)

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """The text encoder learns more slowly than all else."""
        net = cast(VDI, model)
        text = list(trained(net.text_encoder))
        own = {id(weight) for weight in text}
        groups = [{"params": [w for w in trained(net) if id(w) not in own], "scale": 1.0}]
        return [*groups, {"params": text, "scale": self.settings.injection.text_rate}] if text else groups
