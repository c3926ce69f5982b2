"""What all DETR-style grounding models share: features projected, texts stacked, heads over moment queries."""

import torch
from torch import Tensor, nn

from penumbra.models.layers import MLP, InputProjection
from penumbra.models.outputs import Inputs, Outputs, StackedTexts, stack_texts
from penumbra.models.positions import TextPositions
from penumbra.models.settings import ModelSettings


class GroundingModel(nn.Module):
    """Input projections, text positions, class and span heads; a model adds its transformer and `forward`."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.video_projection = InputProjection(s.video_dim, s.hidden, s.projections, s.input_dropout)
        self.text_projection = InputProjection(s.text_dim, s.hidden, s.projections, s.input_dropout)
        self.text_positions = TextPositions(s.longest_text, s.hidden, s.input_dropout)
        self.text_positions.requires_grad_(s.text_positions)  # checkpoints hold them even where they are not used
        self.class_head = nn.Linear(s.hidden, 2)
        self.span_head = MLP(s.hidden, s.hidden, 2, 3)

    def forward(self, inputs: Inputs, negative: bool = False) -> Outputs:
        """Ground every text in its video.

        With `negative`, saliency under the next sample's text comes too, and under the hard negatives where the
        inputs hold any; these pass the encoder with the positives and never the decoder.
        """
        raise NotImplementedError

    def project_texts(self, inputs: Inputs, negative: bool) -> StackedTexts:
        """Project all texts of a step and stack them."""
        self._check(inputs)
        hard = None if inputs.hard_text is None else self.text_projection(inputs.hard_text.flatten(0, 1))
        return stack_texts(inputs, self.text_projection(inputs.text), hard, negative)

    def place_texts(self, texts: StackedTexts) -> Tensor:
        """Positions [G·B, Lt, hidden]: zeros, or the positive text's for every text of a sample, as published."""
        if not self.settings.text_positions:
            return torch.zeros((), device=texts.tokens.device)
        positions: Tensor = self.text_positions(texts.tokens[: texts.batch])
        return positions.repeat(texts.groups, 1, 1)

    def heads(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits and span logits [layers, B, Q, 2] of decoder states, in float32 under autocast as well.

        Half precision knows a place in a video of 150 s to 0.3 s only.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            return self.class_head(states), self.span_head(states)

    def _check(self, inputs: Inputs) -> None:
        found = inputs.video.shape[-1], inputs.text.shape[-1]
        wanted = self.settings.video_dim, self.settings.text_dim
        if found != wanted:
            raise ValueError(f"video and text features of {found} channels, but the model takes {wanted}")

    def initialise(self, transformer: list[nn.Module]) -> None:
        """Xavier-uniform for every matrix of the transformer, PyTorch's defaults elsewhere."""
        for module in transformer:
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
