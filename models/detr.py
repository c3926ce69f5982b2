"""Moment-DETR, QD-DETR, and the parts shared with BM-DETR: inputs and outputs, projections, positions, and heads.

Moment-DETR: Lei, Berg and Bansal, "QVHighlights", NeurIPS 2021. QD-DETR: Moon et al., "Query-Dependent Video
Representation", CVPR 2023; with SHINE's losses it is SHINE's model. The layers of both are in `transformer`, their
losses and the matching in `losses`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.spans import inverse_sigmoid
from penumbra.models.transformer import (
    MLP,
    AnchorDecoder,
    Decoder,
    Dropout,
    EncoderLayer,
    ModelSettings,
    TextToVideoLayer,
    clip_positions,
    padding_bias,
)


@dataclass
class Inputs:
    """A batch of videos and texts. Masks are False for padding."""

    video: Tensor  # [batch, clips, video_dim], features followed by the two temporal endpoint channels
    video_mask: Tensor  # [batch, clips]
    text: Tensor  # [1 + levels, batch, words, text_dim], the queries, then their hard negatives, level 1 first
    text_mask: Tensor  # [1 + levels, batch, words]


@dataclass
class Outputs:
    logits: Tensor  # [layers, batch, queries, 2], class 0 is foreground; the last layer's are the answer
    spans: Tensor  # [layers, batch, queries, 2] as (centre, width)
    saliency: Tensor  # [batch, clips]
    saliency_negative: Tensor | None = None  # [batch, clips] for the negative query, the next sample's, if requested
    saliency_hard: Tensor | None = None  # [levels, batch, clips] for the hard negatives, if the inputs hold any
    # Moment-DETR's alignment: unit vectors of queries [layers, batch, queries, C], words and clips [batch, length, C]
    align: tuple[Tensor, Tensor, Tensor] | None = None
    probability: Tensor | None = None  # [batch, clips], BM-DETR's joint probability of each clip
    pooled: Tensor | None = None  # [2, batch, channels], BM-DETR's unit vectors of clips and of words
    existence: Tensor | None = None  # [texts, batch] logits of the query, the negative query and the hard negatives

    def split(self, branches: int) -> list["Outputs"]:
        """Split BM-DETR's outputs along the batch into equal parts, one for each branch of temporal shifting."""
        batch_dims = {"logits": 1, "spans": 1, "saliency": 0, "probability": 0, "pooled": 1, "existence": 1}
        present = {name: dim for name, dim in batch_dims.items() if getattr(self, name) is not None}
        parts = {name: getattr(self, name).chunk(branches, dim) for name, dim in present.items()}
        return [Outputs(**{name: chunks[branch] for name, chunks in parts.items()}) for branch in range(branches)]


@dataclass
class Projected:
    """The videos of a batch and all their texts, stacked along the batch and projected to the model's width.

    The texts of a video are its query, the negative query if it is requested, and `hard` hard negatives.
    """

    video: Tensor  # [batch, clips, hidden]
    video_mask: Tensor  # [batch, clips]
    positions: Tensor  # [batch, clips, hidden]
    text: Tensor  # [texts·batch, words, hidden]
    text_mask: Tensor  # [texts·batch, words]
    text_positions: Tensor  # [texts·batch, words, hidden]
    hard: int

    @property
    def texts(self) -> int:
        """Number of texts for each video."""
        return len(self.text) // len(self.video)

    @property
    def has_negative(self) -> bool:
        return self.texts > 1 + self.hard

    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return clips followed by words [texts·batch, clips + words, hidden], positions, and the padding bias."""
        texts = self.texts
        tokens = torch.cat((self.video.repeat(texts, 1, 1), self.text), dim=1)
        positions = torch.cat((self.positions.repeat(texts, 1, 1), self.text_positions), dim=1)
        return tokens, positions, padding_bias(torch.cat((self.video_mask.repeat(texts, 1), self.text_mask), dim=1))

    def by_text(self, saliency: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Split saliency [texts·batch, clips] into that of the queries, negative queries and hard negatives."""
        each = saliency.view(self.texts, *self.video_mask.shape)  # [texts, batch, clips]
        negative = each[1] if self.has_negative else None
        return each[0], negative, each[1 + self.has_negative :] if self.hard else None


class InputProjection(nn.Module):
    """Projection to the model's width: stages of LayerNorm, dropout and a linear layer, with ReLU between them."""

    def __init__(self, width: int, s: ModelSettings) -> None:
        super().__init__()
        widths = [width, *[s.hidden] * (s.projections - 1)]
        self.stages = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(inner), "linear": nn.Linear(inner, s.hidden)}) for inner in widths
        )
        self.dropout = Dropout(s.input_dropout)

    def forward(self, features: Tensor) -> Tensor:
        """[..., length, width] to [..., length, hidden]."""
        for number, stage in enumerate(self.stages):
            features = features.relu() if number else features
            features = stage["linear"](self.dropout(stage["norm"](features)))  # type: ignore[index]
        return features


class TextPositions(nn.Module):
    """Learned positions of words: LayerNorm(text + table). As in the published models, they include the text itself."""

    def __init__(self, s: ModelSettings) -> None:
        super().__init__()
        self.table = nn.Embedding(s.longest_text, s.hidden)
        self.norm = nn.LayerNorm(s.hidden)
        self.dropout = Dropout(s.input_dropout)

    def forward(self, text: Tensor) -> Tensor:
        """Return positions [batch, words, hidden] of a text [batch, words, hidden]; raise `ValueError` if too long."""
        length = text.shape[1]
        if length > self.table.num_embeddings:
            raise ValueError(f"a text has {length} tokens, but the model has {self.table.num_embeddings} positions")
        return self.dropout(self.norm(text + self.table.weight[:length]))


class ExistenceHead(nn.Module):
    """Logit of a text's moment being in a video, linear in a vector of text and video and in the highest saliency."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vector = nn.Linear(hidden, 1)
        self.saliency = nn.Parameter(torch.ones(()))

    def forward(self, step: Projected, saliency: Tensor, clips: Tensor, whole: Tensor | None) -> Tensor:
        """Return logits [texts, batch], always in float32.

        saliency [texts·batch, clips], clips [texts·batch, clips, hidden]; `whole` [texts·batch, hidden] is the vector
        of text and video, by default the mean of the clips, weighted by a softmax over their saliency.
        """
        mask = step.video_mask.repeat(step.texts, 1)
        with torch.autocast(clips.device.type, enabled=False):
            saliency = saliency.float().masked_fill(~mask, -torch.inf)
            if whole is None:
                whole = (saliency.softmax(1)[:, None] @ clips.float())[:, 0]
            logits: Tensor = self.vector(whole.float())[:, 0] + self.saliency * saliency.amax(1)
        return logits.view(step.texts, -1)


class GroundingModel(nn.Module):
    """Base class with input projections, text positions and heads; a subclass adds its transformer and `forward`."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.video_projection = InputProjection(s.video_dim, s)
        self.text_projection = InputProjection(s.text_dim, s)
        self.text_positions = TextPositions(s)
        self.text_positions.requires_grad_(s.text_positions)  # checkpoints hold them even if they are not used
        self.class_head = nn.Linear(s.hidden, 2)
        self.span_head = MLP(s.hidden, s.hidden, 2, 3)
        self.existence_head = ExistenceHead(s.hidden) if s.existence else None

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        """Predict the windows and the saliency of each query in its video.

        Saliency is also predicted for the hard negatives that the inputs hold and, with `negative`, for the query of
        the next sample. These negatives pass through the encoder, together with the queries, but not the decoder.
        """
        raise NotImplementedError

    def project(self, inputs: Inputs, negative: bool) -> Projected:
        """Project videos and texts, and stack all texts of the batch.

        The negative query of a sample is the query of the next sample (`apart` orders the batch); a batch of one has
        none. Positions of words are zeros or, as published, those of the query for all texts.
        """
        widths = inputs.video.shape[-1], inputs.text.shape[-1]
        expected = self.settings.video_dim, self.settings.text_dim
        if widths != expected:
            raise ValueError(f"video and text features have {widths} channels, but the model takes {expected}")
        text, mask = self.text_projection(inputs.text), inputs.text_mask  # [1 + levels, batch, words, hidden]
        hard, batch = len(text) - 1, text.shape[1]
        if negative and batch > 1:
            text = torch.cat((text[:1], text[:1].roll(-1, 1), text[1:]))
            mask = torch.cat((mask[:1], mask[:1].roll(-1, 1), mask[1:]))
        video, texts = self.video_projection(inputs.video), text.flatten(0, 1)
        placed = texts.new_zeros(()).expand(texts.shape)
        if self.settings.text_positions:
            placed = self.text_positions(texts[:batch]).repeat(len(text), 1, 1)
        positions = clip_positions(inputs.video_mask, self.settings.hidden)
        return Projected(video, inputs.video_mask, positions, texts, mask.flatten(0, 1), placed, hard)

    def exists(self, step: Projected, saliency: Tensor, clips: Tensor, whole: Tensor | None = None) -> Tensor | None:
        """Return the logits of the existence head (`ExistenceHead.forward`); None without a head."""
        return None if self.existence_head is None else self.existence_head(step, saliency, clips, whole)

    def heads(self, states: Tensor, references: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return class logits and spans [layers, batch, queries, 2] of states; with references, spans are offsets.

        Both are computed in float32, because the resolution of bf16 is 0.3 s in a video of 150 s.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            logits, moves = self.class_head(states), self.span_head(states)
            return logits, (moves if references is None else moves + inverse_sigmoid(references)).sigmoid()

    def initialise(self, *transformer: nn.Module) -> None:
        """Draw every matrix of the transformer Xavier-uniformly; the rest keeps PyTorch's defaults."""
        for module in transformer:
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)


@dataclass(frozen=True)
class MomentDETRSettings(ModelSettings):
    """Settings of Moment-DETR; `alignment` is the width of its optional alignment of moment queries and words."""

    alignment: int = 0  # published as 64, with a loss of weight 0


class MomentDETR(GroundingModel):
    """Moment-DETR: joint encoder of clips and words, decoder of learned queries, linear saliency head on clips."""

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
        memory = tokens[:batch]  # only the queries are decoded, not the negatives
        states = self.decoder(self.queries, memory, positions[:batch], bias[:batch])  # [layers, batch, queries, hidden]
        logits, spans = self.heads(states)
        outputs = Outputs(logits, spans, *saliency, existence=existence)
        if self.align_heads:
            parts = {"query": states, "text": memory[:, clips:], "video": memory[:, :clips]}
            vectors = {name: self.align_heads[name](x).float() for name, x in parts.items()}
            query, text, video = (functional.normalize(values, dim=-1) for values in vectors.values())
            outputs.align = query, text, video
        return outputs


@dataclass(frozen=True)
class QDDETRSettings(ModelSettings):
    """Settings of QD-DETR.

    The published code masks head h of sample n with the padding of sample (n·heads + h) mod batch, so that the output
    of a sample depends on other samples. `text_attention` "official" does the same, for checkpoints of that code.
    """

    text_attention: Literal["fixed", "official"] = "fixed"


class QDDETR(GroundingModel):
    """QD-DETR: cross-attention from clips to words, encoder of clips and a global token, decoder of anchors."""

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
        bias = padding_bias(inputs.video_mask)  # only the queries are decoded, not the negatives
        logits, spans = self.heads(*self.decoder(self.anchors, clips[:batch], step.positions, bias))
        return Outputs(logits, spans, *saliency, existence=existence)

    def encode(self, step: Projected) -> tuple[Tensor, Tensor]:
        """Return global tokens [texts·batch, hidden] and clips [texts·batch, clips, hidden] for every text."""
        keys, video, bias = step.text + step.text_positions, step.video, self._text_bias(step)
        for layer in self.text_to_video:  # the input of the first layer is the same for every text
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

        W1 is applied to the global token, <m, W1' (W2 g + b2)>, once per video instead of once per clip.
        """
        projected = self.global_saliency(whole)  # [n, hidden]
        direction, shift = projected @ self.clip_saliency.weight, projected @ self.clip_saliency.bias
        scores: Tensor = (clips @ direction[..., None])[..., 0] + shift[:, None]
        return scores / math.sqrt(clips.shape[-1])

    def _text_bias(self, step: Projected) -> Tensor:
        """Return the padding bias [texts·batch, 1, 1, words], or [texts·batch, heads, clips, words] as published."""
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
