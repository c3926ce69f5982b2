"""Parts of all DETR-style grounding models: settings, inputs and outputs, projections, and heads."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from penumbra.models.transformer import MLP, Dropout


@dataclass(frozen=True)
class ModelSettings:
    """Sizes that all DETR-style models share; the defaults are the papers'.

    `video_dim` counts the two temporal endpoint channels. `longest_text` is the size of the text position table, which
    official checkpoints hold even if `text_positions` leaves it unused. `existence` adds a head that says whether a
    text's moment is in the video.
    """

    video_dim: int = 1
    text_dim: int = 1
    longest_text: int = 32
    existence: bool = False
    hidden: int = 256
    heads: int = 8  # attention heads
    feed_forward: int = 1024  # width of the feed-forward layers
    encoder_layers: int = 2  # QD-DETR has as many from text to video
    decoder_layers: int = 2
    queries: int = 10  # moment queries
    projections: int = 2  # layers of the input projections, 1 to 3
    dropout: float = 0.1  # inside the transformer
    input_dropout: float = 0.5  # of the input projections
    text_positions: bool = False  # learned positions of words

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.hidden % 4:
            raise ValueError(f"hidden {self.hidden} must be a multiple of 4 and of heads {self.heads}")
        if not 1 <= self.projections <= 3:
            raise ValueError(f"projections is 1, 2 or 3, not {self.projections}")
        if min(self.video_dim, self.text_dim, self.encoder_layers, self.decoder_layers, self.queries) < 1:
            raise ValueError("dimensions, layers and queries are at least 1")


# -- inputs and outputs -----------------------------------------------------------------------------------------------


@dataclass
class Inputs:
    """A batch of videos and texts. Masks are True where a clip or token is no padding."""

    video: Tensor  # [batch, clips, video_dim], features followed by the two temporal endpoint channels
    video_mask: Tensor  # [batch, clips]
    text: Tensor  # [1 + levels, batch, words, text_dim], the queries, then their hard negatives, level 1 first
    text_mask: Tensor  # [1 + levels, batch, words]


class Alignment(NamedTuple):
    """Unit vectors: moment queries [layers, batch, queries, C], words [batch, words, C], clips [batch, clips, C]."""

    queries: Tensor
    words: Tensor
    clips: Tensor


@dataclass
class Outputs:
    logits: Tensor  # [layers, batch, queries, 2], class 0 is foreground; the last layer's are the answer
    spans: Tensor  # [layers, batch, queries, 2] as (centre, width)
    saliency: Tensor  # [batch, clips]
    saliency_negative: Tensor | None = None  # [batch, clips] under the next sample's text, if it was asked for
    saliency_hard: Tensor | None = None  # [levels, batch, clips] under the hard negatives, if the inputs hold any
    align: Alignment | None = None  # Moment-DETR's alignment, if it has one
    probability: Tensor | None = None  # [batch, clips], BM-DETR's joint probability of each clip
    pooled: tuple[Tensor, Tensor] | None = None  # [batch, channels], BM-DETR's unit vectors of clips and of words
    existence: Tensor | None = None  # [texts, batch] logits: the query, then the next sample's text and the hard ones

    def split(self, branches: int) -> list["Outputs"]:
        """Return BM-DETR's outputs for each of the equal batches that the rows hold."""
        none = (None,) * branches
        probability = none if self.probability is None else self.probability.chunk(branches)
        pooled = none if self.pooled is None else zip(*(part.chunk(branches) for part in self.pooled), strict=True)
        exists = none if self.existence is None else self.existence.chunk(branches, 1)
        rows = (self.logits.chunk(branches, 1), self.spans.chunk(branches, 1), self.saliency.chunk(branches))
        return [
            Outputs(logits, spans, saliency, probability=p, pooled=vectors, existence=logit)
            for logits, spans, saliency, p, vectors, logit in zip(*rows, probability, pooled, exists, strict=True)
        ]

    @property
    def scores(self) -> Tensor:
        """Foreground probability [batch, queries] of the last layer."""
        return self.logits[-1].float().softmax(-1)[..., 0]


@dataclass
class StackedTexts:
    """All texts of a step stacked along the batch: the positives, the batch's negatives, the hard negatives.

    tokens [groups·batch, words, hidden] and mask [groups·batch, words]; each group has a text for every video.
    """

    tokens: Tensor
    mask: Tensor
    negative: bool
    hard: int
    batch: int

    @property
    def groups(self) -> int:
        """Number of texts for each video."""
        return 1 + self.negative + self.hard

    def split(self, saliency: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return saliency [groups·batch, clips] as that of positives, negatives and hard negatives."""
        each = saliency.view(self.groups, self.batch, -1)  # [groups, batch, clips]
        negative = each[1] if self.negative else None
        return each[0], negative, each[1 + self.negative :] if self.hard else None


# -- projections and the base class -----------------------------------------------------------------------------------


class InputProjection(nn.Module):
    """Stages of LayerNorm, dropout and a linear layer, with ReLU between them, to the model's width."""

    def __init__(self, width: int, hidden: int, stages: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *[hidden] * (stages - 1)]
        self.stages = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(inner), "linear": nn.Linear(inner, hidden)}) for inner in widths
        )
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """[..., length, width] to [..., length, hidden]."""
        for number, stage in enumerate(self.stages):
            features = features.relu() if number else features
            features = stage["linear"](self.dropout(stage["norm"](features)))  # type: ignore[index]
        return features


class TextPositions(nn.Module):
    """Learned positions of words: LayerNorm(text + table). They hold the text itself, as in the published models."""

    def __init__(self, longest: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, text: Tensor) -> Tensor:
        """Return positions [batch, words, hidden] of a text of that shape; raise `ValueError` if it is too long."""
        length = text.shape[1]
        if length > self.table.num_embeddings:
            raise ValueError(f"a text of {length} tokens, but positions for {self.table.num_embeddings}")
        return self.dropout(self.norm(text + self.table.weight[:length]))


class ExistenceHead(nn.Module):
    """Logit of whether a text's moment is in a video, linear in one vector of the pair and the highest saliency."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vector = nn.Linear(hidden, 1)
        self.saliency = nn.Parameter(torch.ones(()))

    def forward(self, saliency: Tensor, mask: Tensor, clips: Tensor, whole: Tensor | None = None) -> Tensor:
        """Return logits [n], always in float32.

        saliency and mask [n, clips], clips [n, clips, hidden]; `whole` [n, hidden] is the vector of the pair. Without
        one it is the mean of the clips, weighted by a softmax over their saliency.
        """
        with torch.autocast(clips.device.type, enabled=False):
            saliency = saliency.float().masked_fill(~mask, -torch.inf)
            if whole is None:
                whole = (saliency.softmax(1)[:, None] @ clips.float())[:, 0]
            return self.vector(whole.float())[:, 0] + self.saliency * saliency.amax(1)


class GroundingModel(nn.Module):
    """Input projections, text positions, class and span heads; a model adds its transformer and `forward`."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.video_projection = InputProjection(s.video_dim, s.hidden, s.projections, s.input_dropout)
        self.text_projection = InputProjection(s.text_dim, s.hidden, s.projections, s.input_dropout)
        self.text_positions = TextPositions(s.longest_text, s.hidden, s.input_dropout)
        self.text_positions.requires_grad_(s.text_positions)  # checkpoints hold them even if they are not used
        self.class_head = nn.Linear(s.hidden, 2)
        self.span_head = MLP(s.hidden, s.hidden, 2, 3)
        self.existence_head = ExistenceHead(s.hidden) if s.existence else None

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        """Ground every text in its video.

        With `negative`, the outputs hold saliency under the next sample's text, too, and under the hard negatives if
        the inputs hold any; these pass the encoder with the positives and never the decoder.
        """
        raise NotImplementedError

    def project_texts(self, inputs: Inputs, negative: bool) -> StackedTexts:
        """Project and stack all texts of a step.

        A sample's negative is the text of the next one of the batch, which `apart` ordered for that (`device_data`).
        In a batch of one there is none.
        """
        widths = inputs.video.shape[-1], inputs.text.shape[-1]
        expected = self.settings.video_dim, self.settings.text_dim
        if widths != expected:
            raise ValueError(f"video and text features of {widths} channels, but the model takes {expected}")
        text, mask = self.text_projection(inputs.text), inputs.text_mask  # [1 + levels, batch, words, hidden]
        levels, batch = len(text) - 1, text.shape[1]
        negative = negative and batch > 1
        if negative:
            text = torch.cat((text[:1], text[:1].roll(-1, 1), text[1:]))
            mask = torch.cat((mask[:1], mask[:1].roll(-1, 1), mask[1:]))
        return StackedTexts(text.flatten(0, 1), mask.flatten(0, 1), negative, levels, batch)

    def place_texts(self, texts: StackedTexts) -> Tensor:
        """Return positions [groups·batch, words, hidden]: zeros, or the positive text's for all, as published."""
        if not self.settings.text_positions:
            return torch.zeros((), device=texts.tokens.device)
        positions: Tensor = self.text_positions(texts.tokens[: texts.batch])
        return positions.repeat(texts.groups, 1, 1)

    def exists(
        self, texts: StackedTexts, mask: Tensor, saliency: Tensor, clips: Tensor, whole: Tensor | None = None
    ) -> Tensor | None:
        """Return existence logits [groups, batch] of saliency [groups·batch, clips]; None without a head."""
        if self.existence_head is None:
            return None
        logits: Tensor = self.existence_head(saliency, mask.repeat(texts.groups, 1), clips, whole)
        return logits.view(texts.groups, texts.batch)

    def heads(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return class and span logits [layers, batch, queries, 2], in float32: bf16 resolves 150 s to 0.3 s."""
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            return self.class_head(states), self.span_head(states)

    def initialise(self, transformer: list[nn.Module]) -> None:
        """Draw every matrix of the transformer Xavier-uniformly; the rest keeps PyTorch's defaults."""
        for module in transformer:
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
