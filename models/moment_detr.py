"""Moment-DETR (Lei, Berg and Bansal, "QVHighlights", NeurIPS 2021), with SHINE's negatives if the inputs hold them."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from penumbra.models.grounding import Alignment, GroundingModel, Inputs, Outputs
from penumbra.models.transformer import Decoder, EncoderLayer, ModelSettings


@dataclass(frozen=True)
class MomentDETRSettings(ModelSettings):
    """Settings of Moment-DETR; `alignment` is the width of its optional alignment of moment queries and words."""

    alignment: int = 0  # published as 64, with a loss of weight 0


class MomentDETR(GroundingModel):
    """Network that encodes clips and words together; learned queries decode moments; saliency is linear in a clip."""

    def __init__(self, settings: MomentDETRSettings) -> None:
        super().__init__(settings)
        s = settings
        self.encoder = nn.ModuleList(EncoderLayer(s, "relu") for _ in range(s.encoder_layers))
        self.decoder = Decoder(s)
        self.queries = nn.Parameter(torch.randn(s.queries, s.hidden))
        self.saliency_head = nn.Linear(s.hidden, 1)
        parts = ("query", "text", "video") if s.alignment else ()
        self.align_heads = nn.ModuleDict({part: nn.Linear(s.hidden, s.alignment) for part in parts})
        self.initialise(self.encoder, self.decoder)

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        step, (batch, clips) = self.project(inputs, negative), inputs.video_mask.shape
        tokens, positions, bias = step.joined()  # [texts·batch, clips + words, hidden]
        for layer in self.encoder:
            tokens = layer(tokens, positions, bias)
        scores = self.saliency_head(tokens[:, :clips])[..., 0]  # [texts·batch, clips]
        saliency = step.by_text(scores)
        existence = self.exists(step, scores, tokens[:, :clips])
        memory = tokens[:batch]  # only the positive texts are decoded
        states = self.decoder(self.queries, memory, positions[:batch], bias[:batch])  # [layers, batch, queries, hidden]
        logits, spans = self.heads(states)
        outputs = Outputs(logits, spans, *saliency, existence=existence)
        if self.align_heads:
            parts = {"query": states, "text": memory[:, clips:], "video": memory[:, :clips]}
            vectors = (functional.normalize(self.align_heads[name](x).float(), dim=-1) for name, x in parts.items())
            outputs.align = Alignment(*vectors)
        return outputs
