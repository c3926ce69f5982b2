"""QD-DETR (Moon et al., "Query-Dependent Video Representation", CVPR 2023); with SHINE's losses it is SHINE's model.

The network is here, its layers are in `transformer`, its losses and the matching in `losses`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.grounding import GroundingModel, Inputs, Outputs, Projected
from penumbra.models.transformer import AnchorDecoder, EncoderLayer, ModelSettings, TextToVideoLayer, padding_bias


@dataclass(frozen=True)
class QDDETRSettings(ModelSettings):
    """Settings of QD-DETR.

    Its published code masks head h of sample n with the padding of sample (n·heads + h) mod batch, so that a sample's
    output depends on its neighbours. `text_attention` "official" does the same, for checkpoints that were trained so.
    """

    text_attention: Literal["fixed", "official"] = "fixed"


class QDDETR(GroundingModel):
    """Network in which clips read the text, clips and a global token are encoded, and anchors decode moments."""

    settings: QDDETRSettings

    def __init__(self, settings: QDDETRSettings) -> None:
        super().__init__(settings)
        s = settings
        self.text_to_video = nn.ModuleList(TextToVideoLayer(s, "prelu") for _ in range(s.encoder_layers))
        self.encoder = nn.ModuleList(EncoderLayer(s, "prelu") for _ in range(s.encoder_layers))
        self.decoder = AnchorDecoder(s)
        self.anchors = nn.Parameter(torch.randn(s.queries, 2))
        self.global_token = nn.Parameter(torch.randn(s.hidden))
        self.global_position = nn.Parameter(torch.randn(s.hidden))
        self.clip_saliency = nn.Linear(s.hidden, s.hidden)
        self.global_saliency = nn.Linear(s.hidden, s.hidden)
        self.initialise(self.text_to_video, self.encoder, self.decoder)

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        step, batch = self.project(inputs, negative), len(inputs.video)
        whole, clips = self.encode(step)
        scores = self.saliency(whole, clips)  # [texts·batch, clips]
        saliency = step.by_text(scores)
        existence = self.exists(step, scores, clips, whole)
        bias = padding_bias(inputs.video_mask)  # the positive texts alone are decoded
        logits, spans = self.heads(*self.decoder(self.anchors, clips[:batch], step.positions, bias))
        return Outputs(logits, spans, *saliency, existence=existence)

    def encode(self, step: Projected) -> tuple[Tensor, Tensor]:
        """Return global tokens [texts·batch, hidden] and clips [texts·batch, clips, hidden], under every text."""
        keys, video, bias = step.text + step.text_positions, step.video, self._text_bias(step)
        for layer in self.text_to_video:  # the first layer's videos are the same under every text
            video = layer(video, step.positions, bias, step.text, keys)  # [texts·batch, clips, hidden]
        tokens = torch.cat((self.global_token.expand(len(video), 1, -1), video), dim=1)  # [..., 1 + clips, hidden]
        positions = step.positions.repeat(step.texts, 1, 1)
        positions = torch.cat((self.global_position.expand(len(video), 1, -1), positions), dim=1)
        bias = padding_bias(functional.pad(step.video_mask, (1, 0), value=True).repeat(step.texts, 1))
        for layer in self.encoder:
            tokens = layer(tokens, positions, bias)
        return tokens[:, 0], tokens[:, 1:]

    def saliency(self, whole: Tensor, clips: Tensor) -> Tensor:
        """Return the saliency [n, clips] of clips [n, clips, hidden]: <W1 m + b1, W2 g + b2> / sqrt(hidden).

        The product with W1 is taken on the side of the one global token, <m, W1' (W2 g + b2)>, not for every clip.
        """
        projected = self.global_saliency(whole)  # [n, hidden]
        direction, shift = projected @ self.clip_saliency.weight, projected @ self.clip_saliency.bias
        scores: Tensor = (clips @ direction[..., None])[..., 0] + shift[:, None]
        return scores / math.sqrt(clips.shape[-1])

    def _text_bias(self, step: Projected) -> Tensor:
        """Return logits that hide padding: [texts·batch, 1, 1, words], or [..., heads, clips, words] as published."""
        bias, heads = padding_bias(step.text_mask), self.settings.heads
        if self.settings.text_attention == "fixed":
            return bias
        batch, misplaced = len(step.video), []
        sizes = [batch] * (1 + step.has_negative) + [batch * step.hard] * (step.hard > 0)
        padding = ~step.video_mask.repeat(step.texts, 1)[:, :, None] & ~step.text_mask[:, None]
        for part in torch.split(padding, sizes):  # the three passes of the published code
            index = torch.arange(len(part) * heads, device=part.device) % len(part)
            misplaced.append(part[index].view(len(part), heads, *part.shape[1:]))
        return bias.masked_fill(torch.cat(misplaced), -math.inf)
