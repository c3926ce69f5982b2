"""VDI: MMN on CLIP's frames, a trained CLIP text encoder, and the two injections (`penumbra.models.vdi`).

The motion loss (`losses.spatial_dynamics`) reads `patch_features`. Prediction reads no patches.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models import vdi
from penumbra.models.losses import Losses
from penumbra.models.map_losses import MapTargets, mmn_losses
from penumbra.models.mmn import MapOutputs
from penumbra.models.vdi import Patches, VDIInputs, VDILosses, VDISettings
from penumbra.tasks.devices import attention_implementation, device_of
from penumbra.tasks.features.clip import Clip, Encoder, load, patch_sizes
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Examples, Features, features_of
from penumbra.tasks.grounding.configs import BaseSettings
from penumbra.tasks.grounding.families.base import LossConfig, Objective, trained
from penumbra.tasks.grounding.families.mmn import MapConfig, MapData, MMNSystem


class VDILossConfig(LossConfig):
    """SHINE's losses, and the weight of VDI's motion."""

    spatial_dynamics: float = Field(
        0.0, ge=0, description="Weight of the spatial dynamic injection, 0.01 in the paper; it needs patch_features."
    )


class VDIConfig(MapConfig):
    """VDI (Luo et al., CVPR 2023) on MMN, as wide as its CLIP, whose text encoder is trained."""

    options, loss_options = VDISettings, VDILosses

    name: Literal["vdi"] = Field("vdi", description="Name of the model.")
    clip_encoder: str = Field(
        "openai/clip-vit-base-patch32",
        description="CLIP whose text encoder is trained; the video features must be of the same CLIP.",
    )
    losses: VDILossConfig = VDILossConfig()

    @property
    def reads(self) -> set[str]:
        patches = {"patch_features"} if self.losses.spatial_dynamics else set[str]()
        return {"visual_dynamic_queries"} | patches | super().reads

    @property
    def frames_of(self) -> str | None:
        return self.clip_encoder


class ClipText(nn.Module):
    """CLIP's text encoder: token ids and mask [sentences, tokens] to features [sentences, D] in the space of frames."""

    def __init__(self, encoder: str) -> None:
        super().__init__()
        from transformers import CLIPTextModelWithProjection

        whole = load(Clip(encoder=encoder), on_cpu=True).model
        config = deepcopy(whole.config.text_config)  # `load` caches its model
        config._attn_implementation = attention_implementation(device_of()) or "sdpa"  # eager is for CPUs
        self.model: Any = CLIPTextModelWithProjection(config)
        self.model.text_model.load_state_dict(whole.text_model.state_dict())
        self.model.text_projection.load_state_dict(whole.text_projection.state_dict())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return features [sentences, D]; tokens after the end token have no effect."""
        return self.model(input_ids=ids, attention_mask=mask.long()).text_embeds


def token_ids(texts: Iterable[str], encoder: Encoder) -> Features:
    """Return the token ids of texts, with start and end token, cut to the encoder's longest text."""
    names = list(texts)
    limit = encoder.model.config.text_config.max_position_embeddings
    whole: list[list[int]] = encoder.tokenizer(names, truncation=False, verbose=False)["input_ids"]
    ids = [text if len(text) <= limit else [*text[: limit - 1], text[-1]] for text in whole]
    return features_of(names, [np.array(text, np.int64) for text in ids])


class VDIData(MapData):
    """Queries by video, with texts as token ids; a batch also holds the static and dynamic parts of its queries."""

    def __init__(self, examples: Examples, device: torch.device, settings: BaseSettings) -> None:
        super().__init__(examples, device, settings)
        rows = [[self.texts.index[text] for text in pair] for pair in self.examples.parts]
        self.parts = torch.tensor(rows, dtype=torch.long).view(-1, 2)
        self.patches = self.videos.patches if self.losses.spatial_dynamics else None

    def batch(self, rows: Tensor) -> tuple[VDIInputs, MapTargets]:
        inputs, targets = super().batch(rows)
        host = np.concatenate([self.labelled[n][1] for n in rows.tolist()])
        parts = self.parts[host]
        words = self.texts.longest(parts.numpy())
        on_device = parts.to(self.device, non_blocking=True)
        static, dynamic = (self.text(on_device[:, column], words) for column in (0, 1))
        split = on_device[:, 0] != on_device[:, 1]
        videos = np.array([self.labelled[n][0] for n in rows.tolist()])
        seen = None if self.patches is None else Patches(*self.patches.gather(videos))
        return VDIInputs(**vars(inputs), static=static, dynamic=dynamic, split=split, seen=seen), targets


class VDISystem(MMNSystem[VDIConfig]):
    models = (VDIConfig,)

    def build(self, video_dim: int, text_dim: int) -> vdi.VDI:
        """See `System.build`; raise `FeatureError` if the frames have another width than the encoder's features."""
        encoder, text = self.config.clip_encoder, ClipText(self.config.clip_encoder)
        width = text.model.config.projection_dim
        if video_dim != width:
            raise FeatureError(f"vdi needs video features of {encoder}, which have {width} channels, not {video_dim}")
        side, patch_dim = patch_sizes(load(Clip(encoder=encoder), on_cpu=True))
        text.requires_grad_(self.config.network_options.text_rate > 0)
        losses = self.config.losses
        sizes = {"video_dim": width, "text_dim": width, "hidden": width, "projected": False}  # no layer projects CLIP's
        sizes |= {"grid": side**2, "patch_dim": patch_dim if losses.spatial_dynamics else 0}
        return vdi.VDI(replace(self.config.network_options, **sizes, existence=losses.existence > 0), text)

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        width, hidden = weights["text_encoder.model.text_projection.weight"].shape
        return width, hidden

    def data(self, examples: Examples, device: torch.device) -> VDIData:
        """See `System.data`; texts are token ids. Raise `FeatureError` for another CLIP's patches."""
        videos, texts = examples.videos, examples.texts
        encoder = load(Clip(encoder=self.config.clip_encoder), on_cpu=True)
        side, width = patch_sizes(encoder)
        if videos.patches is not None and videos.patches.states.values.shape[1:] != (side**2, width):
            raise FeatureError(f"patch_features are of another CLIP than {encoder.name}: {side}² patches of {width}")
        names: Sequence[str] = sorted(texts.index, key=texts.index.__getitem__)
        parts = sorted({part for pair in examples.parts for part in pair} - texts.index.keys())
        ids = token_ids([*names, *parts], encoder)
        return VDIData(replace(examples, texts=ids), device, self.settings)

    def objective(self, model: nn.Module) -> Objective:
        net, weights = cast(vdi.VDI, model), self.config.loss_settings

        def losses(outputs: tuple[MapOutputs, dict[str, Tensor]], targets: MapTargets) -> Losses:
            mapped, terms = mmn_losses(outputs[0], targets, weights), outputs[1]
            total = sum((getattr(weights, name) * value for name, value in terms.items()), mapped.total)
            return Losses(total, mapped.terms | {name: value.detach() for name, value in terms.items()})

        return Objective(model, lambda inputs: (net(inputs), net.inject(inputs)), losses, self.bf16)

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        net = cast(vdi.VDI, model)
        text = list(trained(net.text_encoder))
        of_text = {id(weight) for weight in text}
        groups = [{"params": [w for w in trained(net) if id(w) not in of_text], "scale": 1.0}]
        return [*groups, {"params": text, "scale": self.config.network_options.text_rate}] if text else groups
