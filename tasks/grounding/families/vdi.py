"""VDI: MMN on CLIP's frames, CLIP's text encoder trained beside it, and the two injections (`penumbra.models.vdi`).

Motion (`losses.spatial_dynamics`) takes `patch_features`; the frame that a patch is compared with is the clip of the
video's features that it lies in. Prediction reads no patches.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models import vdi
from penumbra.models.losses.candidates import MapTargets
from penumbra.models.losses.mmn import mmn_losses
from penumbra.models.mmn import MMNSettings
from penumbra.models.vdi import InjectedInputs, InjectionSettings, Patches, injection_losses
from penumbra.tasks.features.clip import Clip, Encoder, load, patch_sizes
from penumbra.tasks.grounding.batches.examples import Examples, FeatureError, Features
from penumbra.tasks.grounding.families.base import autocast, trained
from penumbra.tasks.grounding.families.mmn import MapConfig, MapData, MMNLosses, MMNSystem


class VDILosses(MMNLosses):
    """MMN's losses and the two injections'; the defaults are the paper's but for `spatial_dynamics`."""

    visual_context: float = Field(0.5, ge=0, description="Weight of the visual context injection.")
    spatial_dynamics: float = Field(
        0.0, ge=0, description="Weight of the spatial dynamic injection, the paper's 0.01; it needs patch_features."
    )


class VDIConfig(MapConfig):
    """VDI (Luo et al., CVPR 2023) on MMN, as wide as its CLIP: the text encoder that is trained, and the injections."""

    name: Literal["vdi"] = Field("vdi", description="Which model.")
    clip_encoder: str = Field(
        "openai/clip-vit-base-patch32",
        description="CLIP whose text encoder is trained, the same as that of the video features.",
    )
    text_rate: float = Field(0.1, ge=0, description="Its share of the learning rate; 0: it is frozen.")
    motion: Literal["transformer", "lstm"] = Field(
        "transformer", description="What reads the frames in their order, in the spatial dynamic injection."
    )
    injection_heads: int = Field(8, ge=1, description="Attention heads of the injections.")
    injection_dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of the injections.")
    fixed_target: bool = Field(False, description="Whether what is seen is a target without gradient.")
    losses: VDILosses = VDILosses()

    def of_clip(self, width: int) -> MMNSettings:
        """The map of frames of a CLIP's width, which no linear layer projects."""
        return self.sizes(width, width, hidden=width, projected=False)

    def injection(self, width: int, grid: int, patch_dim: int) -> InjectionSettings:
        """The injections' sizes; `grid` patches a frame, of `patch_dim` channels."""
        kind, heads, dropout = self.motion, self.injection_heads, self.injection_dropout
        if not self.losses.spatial_dynamics:
            grid, patch_dim = 0, 0
        return InjectionSettings(width, patch_dim, grid, kind, heads, dropout, self.fixed_target)

    @property
    def reads_parts(self) -> bool:
        """See `ModelConfig.reads_parts`."""
        return True

    @property
    def patches_of(self) -> str | None:
        """See `ModelConfig.patches_of`."""
        return self.clip_encoder if self.losses.spatial_dynamics else None


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


class VDIData(MapData):
    """Queries by video, texts as token ids; a batch has the parts of its queries as well."""

    def __init__(
        self,
        examples: Examples,
        videos: Features,
        ids: Features,
        device: torch.device,
        config: VDIConfig,
        batch_size: int,
    ) -> None:
        losses = config.losses
        super().__init__(
            examples,
            videos,
            ids,
            device,
            config.of_clip(videos.channels),
            batch_size=batch_size,
            full_epochs=losses.full_epochs,
            most_sentences=losses.most_sentences,
            hard=config.loss_settings.needs_hard,
            in_video=losses.in_video,
        )
        rows = [[ids.index[text] for text in pair] for pair in examples.parts]
        self.parts = torch.tensor(rows, dtype=torch.long).view(-1, 2)
        self.patches, self.clip_length = videos.patches if config.patches_of else None, videos.clip_length

    def batch(self, rows: Tensor) -> tuple[InjectedInputs, MapTargets]:  # type: ignore[override]
        """Videos `rows` with their sentences, these sentences' parts, and the truth."""
        inputs, targets = super().batch(rows)
        host = np.concatenate([self.chosen[n] for n in rows.tolist()])
        parts = self.parts[host]
        words = self.texts.longest(parts.numpy())
        on_device = parts.to(self.device, non_blocking=True)
        static, dynamic = (self.text(on_device[:, column], words) for column in (0, 1))
        split = on_device[:, 0] != on_device[:, 1]
        seen = self.seen([self.taught[n][0] for n in rows.tolist()])
        return InjectedInputs(inputs, static, dynamic, split, seen), targets

    def seen(self, videos: list[int]) -> Patches | None:
        """Patches and frames of videos [B]; None where the motion takes no part."""
        if self.patches is None:
            return None
        host = torch.tensor(videos)
        states, seconds, mask = self.patches.gather(host, self.device)
        index = host.to(self.device, non_blocking=True)
        clip = (seconds / self.clip_length).long().minimum(self.videos.lengths[index][:, None] - 1)
        return Patches(self.videos.values[self.videos.starts[index][:, None] + clip].float(), states, mask)


class VDIObjective(nn.Module):
    """Model and losses as one module."""

    def __init__(self, model: vdi.VDI, losses: VDILosses, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: tuple[InjectedInputs, MapTargets]) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        inputs, targets = batch
        with autocast(inputs.map.video.device, self.bf16):
            outputs = self.model(inputs.map)
            injected = self.model.inject(inputs)
        found = mmn_losses(outputs, targets, self.losses.settings())
        terms = injection_losses(injected, inputs)
        total = found.total + self.losses.visual_context * terms["visual_context"]
        if "spatial_dynamics" in terms:
            total = total + self.losses.spatial_dynamics * terms["spatial_dynamics"]
        return total, found.terms | {name: value.detach() for name, value in terms.items()}


class VDISystem(MMNSystem[VDIConfig]):
    """VDI under given settings."""

    models = (VDIConfig,)

    def build(self, video_dim: int, text_dim: int) -> vdi.VDI:
        """See `System.build`; raises `FeatureError` where the frames are not of the encoder's space."""
        encoder, text = self.config.clip_encoder, ClipText(self.config.clip_encoder)
        width = text.model.config.projection_dim
        if video_dim != width:
            raise FeatureError(f"vdi takes frames of CLIP's space: {width} channels of {encoder}, not {video_dim}")
        side, patch_dim = patch_sizes(load(Clip(encoder=encoder, device="cpu")))
        text.requires_grad_(self.config.text_rate > 0)
        return vdi.VDI(self.config.of_clip(width), self.config.injection(width, side**2, patch_dim), text)

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        width, hidden = weights["text_encoder.model.text_projection.weight"].shape
        return width, hidden

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> VDIData:
        """See `System.data`; of `texts` the strings alone are used. Raises `FeatureError` for foreign patches."""
        encoder = load(Clip(encoder=self.config.clip_encoder, device="cpu"))
        side, width = patch_sizes(encoder)
        if videos.patches is not None and videos.patches.values.shape[1:] != (side**2, width):
            raise FeatureError(f"patch_features are of another CLIP than {encoder.name}: {side}² patches of {width}")
        names: Sequence[str] = sorted(texts.index, key=texts.index.__getitem__)
        parts = sorted({part for pair in examples.parts for part in pair} - texts.index.keys())
        ids = token_ids([*names, *parts], encoder)
        return VDIData(examples, videos, ids, device, self.config, self.settings.training.batch_size)

    def objective(self, model: nn.Module) -> VDIObjective:
        """See `System.objective`."""
        return VDIObjective(cast(vdi.VDI, model), self.config.losses, self.bf16)

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """The text encoder learns more slowly than all else."""
        net = cast(vdi.VDI, model)
        text = list(trained(net.text_encoder))
        own = {id(weight) for weight in text}
        groups = [{"params": [w for w in trained(net) if id(w) not in own], "scale": 1.0}]
        return [*groups, {"params": text, "scale": self.config.text_rate}] if text else groups
