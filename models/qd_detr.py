"""QD-DETR (Moon et al., "Query-Dependent Video Representation", CVPR 2023); with SHINE's losses it is SHINE's model.

The network is here, its layers are in `transformer`, its losses and the matching in `losses`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from penumbra.models.grounding import GroundingModel, Inputs, ModelSettings, Outputs, StackedTexts
from penumbra.models.spans import inverse_sigmoid
from penumbra.models.transformer import AnchorDecoder, EncoderLayer, TextToVideoLayer, clip_positions, padding_bias


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
        sizes = s.hidden, s.heads, s.feed_forward
        self.text_to_video = nn.ModuleList(TextToVideoLayer(*sizes, s.dropout) for _ in range(s.encoder_layers))
        self.encoder = nn.ModuleList(EncoderLayer(*sizes, s.dropout, "prelu") for _ in range(s.encoder_layers))
        self.decoder = AnchorDecoder(*sizes, s.decoder_layers, s.dropout)
        self.anchors = nn.Parameter(torch.randn(s.queries, 2))
        self.global_token = nn.Parameter(torch.randn(s.hidden))
        self.global_position = nn.Parameter(torch.randn(s.hidden))
        self.clip_saliency = nn.Linear(s.hidden, s.hidden)
        self.global_saliency = nn.Linear(s.hidden, s.hidden)
        self.initialise([self.text_to_video, self.encoder, self.decoder])

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        texts = self.project_texts(inputs, negative)  # tokens [groups·batch, words, hidden]
        batch = inputs.video.shape[0]
        positions = clip_positions(inputs.video_mask, self.settings.hidden)  # [batch, clips, hidden]
        whole, clips = self.encode(self.video_projection(inputs.video), inputs.video_mask, positions, texts)
        scores = self.saliency(whole, clips)  # [groups·batch, clips]
        saliency = texts.split(scores)  # positive, negative, hard negatives
        existence = self.exists(texts, inputs.video_mask, scores, clips, whole)
        bias = padding_bias(inputs.video_mask)
        states, references = self.decoder(self.anchors, clips[:batch], positions, bias)  # the positive texts alone
        logits, moves = self.heads(states)  # [layers, batch, queries, 2]
        spans = (moves + inverse_sigmoid(references)).sigmoid()
        return Outputs(logits, spans, *saliency, existence=existence)

    def encode(
        self, video: Tensor, video_mask: Tensor, positions: Tensor, texts: StackedTexts
    ) -> tuple[Tensor, Tensor]:
        """Return global tokens [groups·batch, hidden] and clips [groups·batch, clips, hidden], under every text."""
        groups, clips = texts.groups, video.shape[1]
        keys = texts.tokens + self.place_texts(texts)
        bias = self._text_bias(video_mask, texts)
        for layer in self.text_to_video:  # the first layer's videos are the same under every text
            video = layer(video, positions, texts.tokens, keys, bias)  # [groups·batch, clips, hidden]
        positions = positions.repeat(groups, 1, 1)
        whole = self.global_token.expand(len(video), 1, -1)
        tokens = torch.cat((whole, video), dim=1)  # [groups·batch, 1 + clips, hidden]
        positions = torch.cat((self.global_position.expand(len(video), 1, -1), positions), dim=1)
        mask = torch.cat((torch.ones_like(video_mask[:, :1]), video_mask), dim=1).repeat(groups, 1)
        bias = padding_bias(mask)
        for layer in self.encoder:
            tokens = layer(tokens, positions, bias)
        whole, memory = torch.split(tokens, [1, clips], dim=1)
        return whole[:, 0], memory

    def saliency(self, whole: Tensor, clips: Tensor) -> Tensor:
        """Return the saliency [n, clips] of clips [n, clips, hidden]: <W1 m + b1, W2 g + b2> / sqrt(hidden).

        The product with W1 is taken on the side of the one global token, <m, W1' (W2 g + b2)>, not for every clip.
        """
        projected = self.global_saliency(whole)  # [n, hidden]
        direction, shift = projected @ self.clip_saliency.weight, projected @ self.clip_saliency.bias
        scores: Tensor = (clips @ direction[..., None])[..., 0] + shift[:, None]
        return scores / math.sqrt(clips.shape[-1])

    def _text_bias(self, video_mask: Tensor, texts: StackedTexts) -> Tensor:
        """Return logits that hide padding: [groups·batch, 1, 1, words], or [..., heads, clips, words] as published."""
        bias = padding_bias(texts.mask)
        if self.settings.text_attention == "fixed":
            return bias
        sizes = [texts.batch] * (1 + texts.negative) + [texts.batch * texts.hard] * (texts.hard > 0)
        rows = video_mask.repeat(texts.groups, 1)[:, None, :, None]
        shared = torch.split(~rows & ~texts.mask[:, None, None], sizes)  # the three passes of the published code
        return torch.cat([self._misplaced(part) for part in shared]) + bias

    def _misplaced(self, padding: Tensor) -> Tensor:
        """Return logits in which head h of sample n has the mask of sample (n·heads + h) mod batch, as published."""
        batch, heads = padding.shape[0], self.settings.heads
        index = torch.arange(batch * heads, device=padding.device) % batch
        chosen = padding[:, 0][index].view(batch, heads, *padding.shape[2:])
        return torch.zeros(chosen.shape, device=padding.device).masked_fill_(chosen, -math.inf)
