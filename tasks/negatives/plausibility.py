"""How natural a text reads: the mean natural log-probability of its tokens.

Two Kneser-Ney trigram models, each of the training queries of one half of the videos, score every text, and the lower
score counts: the sentence that a candidate was drawn from, which is in one half, can't vouch for it. A causal language
model of transformers may take their place.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.devices import device_of
from penumbra.tasks.negatives.providers.kneser_ney import KneserNey, Trigrams
from penumbra.tasks.text.relations import Tokens

BATCH = 256
Floats = NDArray[np.float64]


class Plausibility:
    """Scores texts by the trigram models, or by a causal language model (a name on the hub, or a folder)."""

    def __init__(self, causal_model: str = "") -> None:
        self.causal_model, self.halves = causal_model, (Trigrams(), Trigrams())

    def add(self, vid: str, tokens: Tokens) -> None:
        """Add a human sentence: a query of a video, to the half of that video."""
        half = self.halves[blake2b(vid.encode(), digest_size=1).digest()[0] % 2]
        half.add([token["text"].lower() for token in tokens])

    @cached_property
    def models(self) -> list[KneserNey]:
        """The models of both halves; they are fitted at first use, when all sentences are added."""
        return [KneserNey(half) for half in self.halves if half.sentences]

    def score(self, texts: Sequence[str], words: Sequence[Sequence[str]]) -> Floats:
        """Return the mean log-probability of the tokens of each text; `words` are its lower-cased tokens."""
        if self.causal_model:
            return causal_log_probability(texts, self.causal_model)
        least: Floats = np.min([model.log_probability(words) for model in self.models], axis=0)
        return least


@cache
def _load(name: str) -> tuple[Any, Any]:
    """Return tokenizer and model, on a GPU if there is one; raise `PenumbraError` if they can't be loaded."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise PenumbraError(
            f"causal model {name!r} can't be loaded ({type(error).__name__}): give a folder with safetensors weights "
            "or leave choosing.causal_model empty"
        ) from None
    return tokenizer, model.train(False).to(device_of("auto"))


def causal_log_probability(texts: Sequence[str], name: str) -> Floats:
    """Return the mean log-probability of the tokens of each text, given those before and the model's first token."""
    tokenizer, _ = _load(name)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = [[start, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    scores = np.empty(len(texts))
    order = sorted(range(len(texts)), key=lambda i: (len(ids[i]), texts[i]))  # by length: there is little padding
    for begin in range(0, len(order), BATCH):
        batch = order[begin : begin + BATCH]
        scores[batch] = _score_batch([ids[i] for i in batch], name)
    return scores


def _score_batch(ids: Sequence[Sequence[int]], name: str) -> Floats:
    import torch

    _, model = _load(name)
    width = max(map(len, ids))
    tokens = torch.zeros((len(ids), width), dtype=torch.long)
    real = torch.zeros((len(ids), width), dtype=torch.bool)
    for row, text in enumerate(ids):
        tokens[row, : len(text)] = torch.tensor(text)
        real[row, : len(text)] = True
    tokens, real = tokens.to(model.device), real.to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens, attention_mask=real.long()).logits.float()
    each = torch.log_softmax(logits[:, :-1], -1).gather(2, tokens[:, 1:, None])[..., 0]
    sums = (each * real[:, 1:]).sum(1) / real[:, 1:].sum(1).clamp(min=1)
    mean: Floats = sums.cpu().double().numpy()
    return mean
