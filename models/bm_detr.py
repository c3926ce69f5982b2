"""BM-DETR (Jung et al., "Background-aware Moment Detection for Video Moment Retrieval", WACV 2025).

A negative query describes another moment of the same video, and so helps to find background clips: the joint
probability of a clip is that it matches the query and does not match the negative query (Eq. 1 to 5).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.detr import GroundingModel, Inputs, Outputs, Projected
from penumbra.models.losses import LossSettings, Targets, masked_mean
from penumbra.models.matcher import MatchingCosts
from penumbra.models.transformer import MLP, AnchorDecoder, Decoder, EncoderLayer, ModelSettings


@dataclass(frozen=True)
class BMDETRSettings(ModelSettings):
    """Settings of BM-DETR: the components of the paper's Table 7, each of which can be switched off.

    In the published code, padding takes part in the softmax over clips (`frame_weights` "official"), and the decoder
    reads unweighted clips. With `weighted_decoder` it reads the weighted clips, as in the paper.
    """

    frame_matcher: bool = True  # weight clips by their joint probability
    learnable_spans: bool = True  # moment queries are anchors; otherwise learned vectors
    alignment: int = 256  # width of the semantic alignment; 0 switches it off
    weighted_decoder: bool = False
    frame_weights: Literal["fixed", "official"] = "fixed"
    shifting: bool = False  # temporal shifting: a second branch with moments moved within their videos
    shift_below: float | None = 60.0  # shift only videos shorter than this, in seconds; None: all videos
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
    """Attentive pooling (Eq. 9): a linear layer on the sum of tokens, weighted by a softmax over their scores."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scorer = Scorer(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Pool tokens [batch, length, hidden] to [batch, hidden], without padding (False in mask [batch, length])."""
        weights = self.scorer(tokens).masked_fill(~mask, -1e9).softmax(1)
        return self.out((weights[:, None].to(tokens.dtype) @ tokens)[:, 0])


class BMDETR(GroundingModel):
    """BM-DETR: joint encoder of clips and words, frame matcher that weights the clips, decoder of anchors."""

    settings: BMDETRSettings

    def __init__(self, settings: BMDETRSettings) -> None:
        super().__init__(settings)
        s = settings
        self.encoder = nn.ModuleList(EncoderLayer(s, "prelu") for _ in range(s.encoder_layers))
        self.position_scale = MLP(s.hidden, s.hidden, s.hidden, 2)
        self.decoder = AnchorDecoder(s, bm_detr=True) if s.learnable_spans else Decoder(s)
        queries = nn.Parameter(torch.randn(s.queries, 2 if s.learnable_spans else s.hidden))
        self.register_parameter("anchors" if s.learnable_spans else "queries", queries)
        self.saliency_head = nn.Linear(s.hidden, 1)
        self.frame_matcher = Scorer(s.hidden, s.hidden // 2) if s.frame_matcher else None
        parts = ("video", "text") if s.alignment else ()
        self.pooling = nn.ModuleDict({part: AttentivePooling(s.hidden) for part in parts})
        self.align_heads = nn.ModuleDict({part: nn.Linear(s.hidden, s.alignment) for part in parts})
        self.initialise(self.encoder, self.position_scale, self.decoder)

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        """Predict the windows and the saliency of each query; `inputs.text` also holds K negative queries of each.

        A negative query whose mask is all False is ignored. `negative` only adds the text of another video to
        `existence`, because it can't show which clips of this video are background.
        """
        step = self.project(inputs, negative and self.existence_head is not None)
        mask, (batch, clips) = inputs.video_mask, inputs.video_mask.shape
        memory, background, positions, bias = self.encode(step)
        seen, probability, pooled = memory[:, :clips], None, None
        encoded = torch.cat((seen, background))  # [texts·batch, clips, hidden]
        matching = self.saliency_head(encoded)[..., 0] if self.frame_matcher is None else self.frame_matcher(encoded)
        existence = self.exists(step, matching, encoded)
        if self.frame_matcher is not None:  # p(query) times 1 - p of each negative, 0 for padding (Eq. 5)
            each = matching.sigmoid().view(step.texts, batch, -1)
            present = step.text_mask.view(step.texts, batch, -1).any(-1, keepdim=True)
            own = slice(1 + step.has_negative, None)  # the negative queries of the video
            probability = each[0] * (1 - each[own].masked_fill(~present[own], 0.0)).prod(0) * mask  # [batch, clips]
            official = self.settings.frame_weights == "official"  # softmax over padding, too (Eq. 8)
            weights = (probability if official else probability.masked_fill(~mask, -torch.inf)).softmax(1)
            seen = seen * weights[..., None].to(seen.dtype)
            if self.settings.weighted_decoder:
                memory = torch.cat((seen, memory[:, clips:]), dim=1)
        if self.settings.learnable_spans:  # earlier layers have no loss
            states, references = self.decoder(self.anchors, memory, positions, bias)
            logits, spans = self.heads(states[-1:], references[-1:])
        else:
            logits, spans = self.heads(self.decoder(self.queries, memory, positions, bias)[-1:])
        if self.settings.alignment:  # of the weighted clips and of the words (Eq. 9 to 11)
            parts = {"video": (seen, mask), "text": (memory[:, clips:], step.text_mask[:batch])}
            vectors = [self.align_heads[name](self.pooling[name](*part)).float() for name, part in parts.items()]
            pooled = functional.normalize(torch.stack(vectors), dim=-1)
        saliency = self.saliency_head(seen)[..., 0]
        return Outputs(logits, spans, saliency, probability=probability, pooled=pooled, existence=existence)

    def encode(self, step: Projected) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, the clips encoded with each negative text, unscaled positions and the padding bias.

        Tokens and positions are [batch, clips + words, hidden], the clips [(texts - 1)·batch, clips, hidden]. The
        tokens scale the positions before each layer; words have positions only with `text_positions`. The last layer
        does not compute the words of negative texts, because they are not used.
        """
        tokens, positions, bias = step.joined()
        batch, clips = step.video_mask.shape
        *layers, last = self.encoder
        for layer in layers:
            tokens = layer(tokens, self._scaled(positions, tokens, clips), bias)
        scaled, background = self._scaled(positions, tokens, clips), tokens[:0, :clips]
        if step.texts > 1:
            background = last(tokens[batch:], scaled[batch:], bias[batch:], clips)
        return last(tokens[:batch], scaled[:batch], bias[:batch]), background, positions[:batch], bias[:batch]

    def _scaled(self, positions: Tensor, tokens: Tensor, clips: int) -> Tensor:
        """Return positions multiplied by `position_scale` of the tokens; zeros for words without positions."""
        if self.settings.text_positions:
            return positions * self.position_scale(tokens)
        scaled = positions[:, :clips] * self.position_scale(tokens[:, :clips])
        return functional.pad(scaled, (0, 0, 0, tokens.shape[1] - clips))


COSTS = MatchingCosts(span=1.0, giou=8.0, label=8.0)


@dataclass(frozen=True)
class BMDETRLosses(LossSettings):
    """Losses of BM-DETR: no auxiliary losses, more weight on GIoU than on L1, `pair_hinge` as the frame margin loss.

    The published code adds the class error, a percentage without gradient, to the total (`class_error` 1). Here it is
    left out by default. `negatives` are other queries of the video, generated hard negatives, both, or none.
    """

    span: float = 1.0
    giou: float = 8.0
    label: float = 8.0
    auxiliary: bool = False
    costs: MatchingCosts = COSTS
    saliency: float = 4.0
    pair_hinge: bool | None = True
    probability: float = 2.0  # weight of the frame probability loss
    semantic: float = 1.0  # weight of the semantic alignment
    align_temperature: float = 0.07
    class_error: float = 0.0
    negatives: Literal["in_video", "generated", "both", "none"] = "in_video"

    def own_terms(self, outputs: Outputs, targets: Targets, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `LossSettings.own_terms`."""
        own = {"class_error": terms["class_error"]} if self.class_error else {}
        if self.probability and outputs.probability is not None:
            own["probability"] = frame_probability(outputs.probability, targets)
        if self.semantic and outputs.pooled is not None:
            own["semantic"] = semantic_alignment(outputs.pooled, self.align_temperature)
        return own


def frame_probability(probability: Tensor, targets: Targets) -> Tensor:
    """Return the mean over samples of 1 - mean p inside the moment + mean p outside (Eq. 16), p [batch, clips].

    As published, padding with a clip score counts as inside; shifting gives it one if the moment covers the video.
    """
    inside = masked_mean(probability, targets.clip_scores > 0, 1)
    return (1 - inside + masked_mean(probability, targets.outside, 1)).mean()


def semantic_alignment(pooled: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each video over the texts of the batch (Eq. 17).

    pooled [2, batch, channels] are unit vectors of videos and texts. The denominator includes the sample's own text, as
    in the published code; the paper leaves it out.
    """
    scores = pooled[0] @ pooled[1].T / temperature  # [videos, texts]
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
