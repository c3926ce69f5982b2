"""QD-DETR (Moon et al., "Query-Dependent Video Representation", CVPR 2023); with SHINE's losses it is SHINE's model."""

import math

import torch
from torch import Tensor, nn

from penumbra.models.grounding import GroundingModel
from penumbra.models.outputs import Inputs, Outputs, StackedTexts
from penumbra.models.positions import clip_positions
from penumbra.models.settings import ModelSettings
from penumbra.models.spans import inverse_sigmoid
from penumbra.models.transformer.anchor_decoder import AnchorDecoder
from penumbra.models.transformer.attention import padding_bias
from penumbra.models.transformer.encoder import EncoderLayer, TextToVideoLayer


class QDDETR(GroundingModel):
    """Clips read the text, then an encoder of clips and a global token, then anchors decode moments.

    A clip's saliency is the scaled product of its projection and the global token's.
    """

    def __init__(self, settings: ModelSettings) -> None:
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
        """See `GroundingModel.forward`."""
        texts = self.project_texts(inputs, negative)
        batch = inputs.video.shape[0]
        positions = clip_positions(inputs.video_mask, self.settings.hidden)
        whole, clips = self.encode(self.video_projection(inputs.video), inputs.video_mask, positions, texts)
        saliency = texts.split(self.saliency(whole, clips))
        bias = padding_bias(inputs.video_mask)
        decoded = self.decoder(self.anchors, clips[:batch], positions, bias)
        logits, moves = self.heads(decoded.states)
        spans = (moves + inverse_sigmoid(decoded.references)).sigmoid()
        return Outputs(logits, spans, *saliency)

    def encode(
        self, video: Tensor, video_mask: Tensor, positions: Tensor, texts: StackedTexts
    ) -> tuple[Tensor, Tensor]:
        """The global token [G·B, hidden] and the clips [G·B, Lv, hidden] of every video under every text."""
        groups, clips = texts.groups, video.shape[1]
        keys = texts.tokens + self.place_texts(texts)
        bias = self._text_bias(video_mask, texts)
        for layer in self.text_to_video:  # the first layer's videos are the same under every text
            video = layer(video, positions, texts.tokens, keys, bias)
        positions = positions.repeat(groups, 1, 1)
        tokens = torch.cat((self._each(self.global_token, video), video), dim=1)
        positions = torch.cat((self._each(self.global_position, video), positions), dim=1)
        mask = torch.cat((torch.ones_like(video_mask[:, :1]), video_mask), dim=1).repeat(groups, 1)
        bias = padding_bias(mask)
        for layer in self.encoder:
            tokens = layer(tokens, positions, bias)
        whole, memory = torch.split(tokens, [1, clips], dim=1)
        return whole[:, 0], memory

    def saliency(self, whole: Tensor, clips: Tensor) -> Tensor:
        """Saliency [N, Lv] of the clips [N, Lv, hidden]: <W1 m + b1, W2 g + b2> / sqrt(hidden).

        The product with W1 is taken on the one global token's side, <m, W1' (W2 g + b2)>, and not for every clip.
        """
        seen = self.global_saliency(whole)
        direction, shift = seen @ self.clip_saliency.weight, seen @ self.clip_saliency.bias
        scores: Tensor = (clips @ direction[..., None])[..., 0] + shift[:, None]
        return scores / math.sqrt(clips.shape[-1])

    @staticmethod
    def _each(vector: Tensor, tokens: Tensor) -> Tensor:
        return vector.expand(tokens.shape[0], 1, -1)

    def _text_bias(self, video_mask: Tensor, texts: StackedTexts) -> Tensor:
        """Logits that hide padded words: [G·B, 1, 1, Lt], or [G·B, heads, Lv, Lt] with the published indexing."""
        bias = padding_bias(texts.mask)
        if self.settings.text_attention == "fixed":
            return bias
        sizes = [texts.batch] * (1 + texts.negative) + [texts.batch * texts.hard] * (texts.hard > 0)
        rows = video_mask.repeat(texts.groups, 1)[:, None, :, None]
        shared = torch.split(~rows & ~texts.mask[:, None, None], sizes)  # the three passes of the published code
        return torch.cat([self._misplaced(part) for part in shared]) + bias

    def _misplaced(self, padding: Tensor) -> Tensor:
        """Head h of sample n gets the mask of sample (n·heads + h) mod B: the published code tiles heads outermost."""
        batch, heads = padding.shape[0], self.settings.heads
        index = torch.arange(batch * heads, device=padding.device) % batch
        chosen = padding[:, 0][index].view(batch, heads, *padding.shape[2:])
        return torch.zeros(chosen.shape, device=padding.device).masked_fill_(chosen, -math.inf)
