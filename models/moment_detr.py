"""Moment-DETR (Lei, Berg and Bansal, "QVHighlights", NeurIPS 2021), with SHINE's negatives if the inputs hold them."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from penumbra.models.grounding import Alignment, GroundingModel, Inputs, ModelSettings, Outputs
from penumbra.models.transformer import Decoder, EncoderLayer, clip_positions, padding_bias


@dataclass(frozen=True)
class MomentDETRSettings(ModelSettings):
    """Settings of Moment-DETR; `alignment` is the width of its optional alignment of moment queries and words."""

    alignment: int = 0  # published as 64, with a loss of weight 0


class MomentDETR(GroundingModel):
    """Network that encodes clips and words together; learned queries decode moments; saliency is linear in a clip."""

    def __init__(self, settings: MomentDETRSettings) -> None:
        super().__init__(settings)
        s = settings
        self.encoder = nn.ModuleList(
            EncoderLayer(s.hidden, s.heads, s.feed_forward, s.dropout, "relu") for _ in range(s.encoder_layers)
        )
        self.decoder = Decoder(s.hidden, s.heads, s.feed_forward, s.decoder_layers, s.dropout)
        self.queries = nn.Parameter(torch.randn(s.queries, s.hidden))
        self.saliency_head = nn.Linear(s.hidden, 1)
        self.align_heads = (
            nn.ModuleDict({part: nn.Linear(s.hidden, s.alignment) for part in ("query", "text", "video")})
            if s.alignment
            else None
        )
        self.initialise([self.encoder, self.decoder])

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        texts = self.project_texts(inputs, negative)
        video = self.video_projection(inputs.video)
        batch, clips, groups = *inputs.video.shape[:2], texts.groups
        places = clip_positions(inputs.video_mask, video.shape[-1])
        tokens = torch.cat((video.repeat(groups, 1, 1), texts.tokens), dim=1)  # [groups·batch, clips + words, hidden]
        words = self.place_texts(texts).expand(texts.tokens.shape)
        positions = torch.cat((places.repeat(groups, 1, 1), words), dim=1)
        bias = padding_bias(torch.cat((inputs.video_mask.repeat(groups, 1), texts.mask), dim=1))
        for layer in self.encoder:
            tokens = layer(tokens, positions, bias)
        scores = self.saliency_head(tokens[:, :clips])[..., 0]  # [groups·batch, clips]
        saliency = texts.split(scores)  # positive, negative, hard negatives
        existence = self.exists(texts, inputs.video_mask, scores, tokens[:, :clips])
        memory = tokens[:batch]  # only the positive texts are decoded
        states = self.decoder(self.queries, memory, positions[:batch], bias[:batch])  # [layers, batch, queries, hidden]
        logits, spans = self.heads(states)
        outputs = Outputs(logits, spans.sigmoid(), *saliency, existence=existence)
        if self.align_heads is not None:
            parts = {"query": states, "text": memory[:, clips:], "video": memory[:, :clips]}
            vectors = (functional.normalize(self.align_heads[name](x).float(), dim=-1) for name, x in parts.items())
            outputs.align = Alignment(*vectors)
        return outputs
