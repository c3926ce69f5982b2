"""BM-DETR (Jung et al., "Background-aware Moment Detection for Video Moment Retrieval", WACV 2025).

A negative query of the same video, whose moment is another one, tells which clips are background: a clip's joint
probability is that it fits the query and does not fit the negative query (Eq. 1 to 5).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.grounding import GroundingModel, Inputs, ModelSettings, Outputs, StackedTexts
from penumbra.models.spans import inverse_sigmoid
from penumbra.models.transformer import MLP, AnchorDecoder, Decoder, EncoderLayer, clip_positions, padding_bias


@dataclass(frozen=True)
class BMDETRSettings(ModelSettings):
    """Settings of BM-DETR: the paper's components, which can be left out, as in its Table 7, and temporal shifting.

    The published code gives padding a share of the clips' weights (`frame_weights` "official"), and its decoder sees
    the clips unweighted; with `weighted_decoder` it sees the weighted clips, as in the paper.
    """

    frame_matcher: bool = True  # clips are weighted by how probably they fit the query
    learnable_spans: bool = True  # moment queries are anchors; otherwise plain vectors
    alignment: int = 256  # width of the semantic alignment; 0: without it
    weighted_decoder: bool = False
    frame_weights: Literal["fixed", "official"] = "fixed"
    shifting: bool = False  # a second branch whose moments are moved within their videos
    shift_below: float | None = 60.0  # only videos shorter than so many seconds are shifted; None: all
    shift_endpoints: bool = False  # temporal endpoints move with the clips, as published


class Scorer(nn.Module):
    """Score of each token: w2 · tanh(W1 x), without biases."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., L, width] to [..., L], in float32."""
        scores: Tensor = self.score(self.hidden(tokens).tanh())[..., 0]
        return scores.float()


class AttentivePooling(nn.Module):
    """One vector for many tokens (Eq. 9): their sum, weighted by a softmax over scores, through a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scorer = Scorer(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Pool the valid tokens [batch, length, hidden] of a mask [batch, length] to [batch, hidden]."""
        weights = self.scorer(tokens).masked_fill(~mask, -1e9).softmax(1)
        return self.out((weights[:, None].to(tokens.dtype) @ tokens)[:, 0])


class BMDETR(GroundingModel):
    """Network that encodes clips and words together, weights clips by their probability, and decodes anchors."""

    settings: BMDETRSettings

    def __init__(self, settings: BMDETRSettings) -> None:
        super().__init__(settings)
        s = settings
        sizes = s.hidden, s.heads, s.feed_forward
        self.encoder = nn.ModuleList(EncoderLayer(*sizes, s.dropout, "prelu") for _ in range(s.encoder_layers))
        self.position_scale = MLP(s.hidden, s.hidden, s.hidden, 2)
        if s.learnable_spans:
            self.decoder: AnchorDecoder | Decoder = AnchorDecoder(*sizes, s.decoder_layers, s.dropout, bm_detr=True)
            self.anchors = nn.Parameter(torch.randn(s.queries, 2))
        else:
            self.decoder = Decoder(*sizes, s.decoder_layers, s.dropout)
            self.queries = nn.Parameter(torch.randn(s.queries, s.hidden))
        self.saliency_head = nn.Linear(s.hidden, 1)
        self.frame_matcher = Scorer(s.hidden, s.hidden // 2) if s.frame_matcher else None
        parts = ("video", "text") if s.alignment else ()
        self.pooling = nn.ModuleDict({part: AttentivePooling(s.hidden) for part in parts})
        self.align_heads = nn.ModuleDict({part: nn.Linear(s.hidden, s.alignment) for part in parts})
        self.initialise([self.encoder, self.position_scale, self.decoder])

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        """Ground every text in its video; `inputs.text` holds K negative queries of each, too.

        A negative query without a token (its mask is all False) counts as none. `negative` changes nothing but
        `existence`: a text of another video says nothing about this video's background.
        """
        texts = self.project_texts(inputs, negative and self.existence_head is not None)
        batch, clips = inputs.video.shape[:2]
        positions = clip_positions(inputs.video_mask, self.settings.hidden)
        video, mask = self.video_projection(inputs.video), inputs.video_mask
        memory, background, placed, bias = self.encode(video, mask, positions, texts)
        seen = memory[:, :clips]
        probability = None
        under = torch.cat((seen, background))  # [groups·batch, clips, hidden]
        matching = None if self.frame_matcher is None else self.frame_matcher(under)  # [groups·batch, clips]
        existence = self.exists(texts, mask, self.saliency_head(under)[..., 0] if matching is None else matching, under)
        if matching is not None:  # p(query) times 1 - p of each negative, 0 for padding (Eq. 5)
            each = matching.sigmoid().view(texts.groups, batch, -1)
            present = texts.mask.view(texts.groups, batch, -1).any(-1, keepdim=True)
            own = slice(1 + texts.negative, None)  # the negative queries of the video
            probability = each[0] * (1 - each[own].masked_fill(~present[own], 0.0)).prod(0) * mask  # [batch, clips]
            official = self.settings.frame_weights == "official"  # the published code gives padding a share (Eq. 8)
            weights = (probability if official else probability.masked_fill(~mask, -torch.inf)).softmax(1)
            seen = seen * weights[..., None].to(seen.dtype)
            if self.settings.weighted_decoder:
                memory = torch.cat((seen, memory[:, clips:]), dim=1)
        logits, spans = self._decode(memory, placed, bias)
        pooled = self._pool({"video": (seen, mask), "text": (memory[:, clips:], texts.mask[:batch])})
        saliency = self.saliency_head(seen)[..., 0]
        return Outputs(logits, spans, saliency, probability=probability, pooled=pooled, existence=existence)

    def encode(
        self, video: Tensor, video_mask: Tensor, positions: Tensor, texts: StackedTexts
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, the clips under the negative texts, unscaled positions and the padding bias.

        Tokens and positions are [batch, clips + words, hidden], the clips [(groups - 1)·batch, clips, hidden]. Before
        each layer the positions are scaled by the tokens; words have positions only if they are learned. The last layer
        does not compute the words of negative texts, which nothing reads.
        """
        groups, (batch, clips) = texts.groups, video.shape[:2]
        tokens = torch.cat((video.repeat(groups, 1, 1), texts.tokens), dim=1)
        placed = functional.pad(positions.repeat(groups, 1, 1), (0, 0, 0, texts.tokens.shape[1]))
        if self.settings.text_positions:
            placed = torch.cat((placed[:, :clips], self.place_texts(texts)), dim=1)
        bias = padding_bias(torch.cat((video_mask.repeat(groups, 1), texts.mask), dim=1))
        *layers, last = self.encoder
        for layer in layers:
            tokens = layer(tokens, self._scaled(placed, tokens, clips), bias)
        scaled, background = self._scaled(placed, tokens, clips), tokens.new_empty(0, *video.shape[1:])
        if groups > 1:
            background = last(tokens[batch:], scaled[batch:], bias[batch:], clips)
        return last(tokens[:batch], scaled[:batch], bias[:batch]), background, placed[:batch], bias[:batch]

    def _scaled(self, placed: Tensor, tokens: Tensor, clips: int) -> Tensor:
        """Return positions times a small network's output for the tokens; words may have no positions."""
        if self.settings.text_positions:
            return placed * self.position_scale(tokens)
        scaled = placed[:, :clips] * self.position_scale(tokens[:, :clips])
        return functional.pad(scaled, (0, 0, 0, tokens.shape[1] - clips))

    def _decode(self, memory: Tensor, positions: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits and spans [1, batch, queries, 2] of the last layer: earlier layers have no loss."""
        if isinstance(self.decoder, Decoder):
            logits, moves = self.heads(self.decoder(self.queries, memory, positions, bias)[-1:])
            return logits, moves.sigmoid()
        states, references = self.decoder(self.anchors, memory, positions, bias)
        logits, moves = self.heads(states[-1:])
        return logits, (moves + inverse_sigmoid(references[-1:])).sigmoid()

    def _pool(self, parts: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        """Return unit vectors [batch, alignment] of the weighted clips and of the words (Eq. 9 to 11)."""
        if not self.settings.alignment:
            return None
        video, text = (
            functional.normalize(self.align_heads[name](self.pooling[name](*part)).float(), dim=-1)
            for name, part in parts.items()
        )
        return video, text
