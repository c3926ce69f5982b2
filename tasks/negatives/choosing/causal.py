"""How natural a text reads to a causal language model: mean natural log-probability a token.

Any transformers causal model, by its name on the hub or a folder with safetensors weights. Texts go through it by
length, so that little is padding.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.devices import device_of
from penumbra.tasks.negatives.choosing.plausibility import Floats, Scorer

BATCH = 256


class CausalModelError(PenumbraError):
    """The causal language model can't be loaded."""


def scorer(model: str) -> Scorer | None:
    """What scores texts by this model; None where none is named."""
    return (lambda texts: log_probability(texts, model)) if model else None


@cache
def load(name: str) -> tuple[Any, Any]:
    """The tokenizer and the model, on a GPU where there is one; raises `CausalModelError` with the remedy."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise CausalModelError(
            f"causal model {name!r} can't be loaded ({type(error).__name__}): give a folder with safetensors weights "
            "or leave choosing.causal_model empty"
        ) from None
    return tokenizer, model.train(False).to(device_of("auto"))


def log_probability(texts: Sequence[str], name: str) -> Floats:
    """Mean natural log-probability a token of each text, given those before it and the model's first token."""
    tokenizer, _ = load(name)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = [[start, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    scores = np.empty(len(texts))
    order = sorted(range(len(texts)), key=lambda i: (len(ids[i]), texts[i]))
    for begin in range(0, len(order), BATCH):
        some = order[begin : begin + BATCH]
        scores[some] = _batch([ids[i] for i in some], name)
    return scores


def _batch(several: Sequence[Sequence[int]], name: str) -> Floats:
    import torch

    _, model = load(name)
    width = max(map(len, several))
    tokens = torch.zeros((len(several), width), dtype=torch.long)
    real = torch.zeros((len(several), width), dtype=torch.bool)
    for row, ids in enumerate(several):
        tokens[row, : len(ids)] = torch.tensor(ids)
        real[row, : len(ids)] = True
    tokens, real = tokens.to(model.device), real.to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens, attention_mask=real.long()).logits.float()
    each = torch.log_softmax(logits[:, :-1], -1).gather(2, tokens[:, 1:, None])[..., 0]
    sums = (each * real[:, 1:]).sum(1) / real[:, 1:].sum(1).clamp(min=1)
    mean: Floats = sums.cpu().double().numpy()
    return mean
