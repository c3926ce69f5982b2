"""The model and the tokenizer of the tiny CLIP."""

import json
import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from workshop.scenes.drawing import SIDE

SPREAD = (0, 2, 4)  # frames of a clip, at the middles of its thirds
FRAMES = len(SPREAD)
PATCH = 20  # pixels of a patch, in both directions
GRID = SIDE // PATCH
Pictures = npt.NDArray[np.uint8]  # (…, FRAMES, SIDE, SIDE, 3)
START, END = "<|startoftext|>", "<|endoftext|>"
POSITIONS = 77


def train_tokenizer(sentences: Iterable[str], size: int) -> Any:
    """Return a `CLIPTokenizer` of at most `size` tokens: bytes, bytes that end a word, and common pairs."""
    alphabet = ByteLevel.alphabet()
    pattern = CLIPTokenizer().backend_tokenizer
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix=""))
    learner.normalizer, learner.pre_tokenizer = pattern.normalizer, pattern.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False, min_frequency=2
    )
    learner.train_from_iterator(sentences, trainer)
    learned = learner.get_vocab()
    letters = sorted(alphabet)
    merges: Any = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    tokens = [*letters, *(letter + "</w>" for letter in letters)]
    tokens += [token for token, _ in sorted(learned.items(), key=lambda pair: pair[1]) if token not in set(tokens)]
    vocabulary = {token: index for index, token in enumerate([*tokens, START, END])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=POSITIONS)


WIDTH, TEXT_WIDTH, SHARED = 192, 128, 192  # of the vision tower, the text tower, and the shared space
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's own
SLOW = 12  # frequencies of the filters along each side of a patch
STIRS = 25  # change of a pixel, of 255, that counts as motion

Patches = npt.NDArray[np.uint8]  # (…, GRID · GRID, FRAMES · 3 · PATCH · PATCH)


def tower(width: int, *, layers: int, heads: int, inner: int, **others: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {"intermediate_size": inner * width, "projection_dim": SHARED, "hidden_act": "relu", **sizes, **others}


def new_model(tokenizer: Any) -> Any:
    """Return a `CLIPModel` with random weights and FRAMES frames as input."""
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    text = tower(TEXT_WIDTH, layers=3, heads=4, inner=2, vocab_size=len(tokenizer), max_position_embeddings=POSITIONS)
    text |= {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    vision = tower(WIDTH, layers=5, heads=3, inner=3, num_channels=3 * FRAMES, image_size=SIDE, patch_size=PATCH)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=SHARED))
    model.set_attn_implementation("eager")  # its bfloat16 products are fast on a CPU
    rates = 1.5 / 32 ** (torch.arange(WIDTH // 4) / (WIDTH // 4))
    rows, columns = torch.meshgrid(torch.arange(GRID).float(), torch.arange(GRID).float(), indexing="ij")
    angles = torch.cat([side.flatten()[:, None] * rates for side in (columns, rows)], 1)
    with torch.no_grad():
        places = 0.3 * torch.cat([angles.sin(), angles.cos()], 1)
        model.vision_model.embeddings.position_embedding.weight[1:] = places
    return model


def to_pixels(pictures: Pictures) -> torch.Tensor:
    """Return uint8 (…, FRAMES, rows, columns, 3) as normalised float (…, 3 · FRAMES, rows, columns)."""
    normalised = (torch.from_numpy(pictures).float() / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return normalised.movedim(-1, -3).flatten(-4, -3)


def to_patches(pictures: Pictures) -> Patches:
    """Return frames (clips, FRAMES, SIDE, SIDE, 3) as patches in the order of the patch embedding's weights."""
    grid = pictures.reshape(len(pictures), FRAMES, GRID, PATCH, GRID, PATCH, 3)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 6, 3, 5)).reshape(len(pictures), GRID * GRID, -1)


def stirring(patches: Patches) -> npt.NDArray[np.bool_]:
    frames = patches.reshape(*patches.shape[:-1], FRAMES, -1).astype(np.int16)
    return np.abs(frames[..., 1:, :] - frames[..., :1, :]).max((-2, -1)) > STIRS


def see(model: Any, patches: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the vision tower to some patches (clips, some, …), bytes, at their places (clips, some).

    Return the patches' last states (clips, some, WIDTH) and the clips' states in the shared space (clips, SHARED).
    """
    tower = model.vision_model
    embeddings = tower.embeddings
    mean, deviation = _levels()
    filters = embeddings.patch_embedding.weight.flatten(1) / deviation
    seen = (patches.bfloat16() - 128) @ filters.T.bfloat16() + (128 - mean) @ filters.T  # bfloat16 is exact for bytes
    positions = embeddings.position_embedding.weight
    whole = (embeddings.class_embedding + positions[0]).expand(len(patches), 1, -1)
    states = torch.cat([whole, seen.float() + positions[1 + places]], 1)
    states = tower.encoder(inputs_embeds=tower.pre_layrnorm(states)).last_hidden_state
    return states[:, 1:], model.visual_projection(tower.post_layernorm(states[:, 0]))


def _levels() -> tuple[torch.Tensor, torch.Tensor]:
    both = 255 * torch.tensor((MEAN, DEVIATION))
    mean, deviation = both.repeat(1, FRAMES).repeat_interleave(PATCH**2, dim=1)
    return mean, deviation


@torch.no_grad()
def look_closely(model: Any, patches: Patches) -> None:
    """Initialise the filters with low-frequency cosines of brightness and colours, of the middle frame and of changes.

    Each filter is scaled to a standard deviation of 1 over these patches (patches, …), as in a whitened first layer.
    """
    steps = torch.arange(PATCH)
    cosines = torch.stack([torch.cos(math.pi * rate * (steps + 0.5) / PATCH) for rate in range(SLOW)])
    cosines /= cosines.norm(dim=1, keepdim=True)
    colours = torch.tensor([[1, 1, 1], [1, -1, 0], [0.5, 0.5, -1]])
    colours /= colours.norm(dim=1, keepdim=True)
    times = torch.tensor([[0, 1, 0], [-1, 1, 0], [0, -1, 1]], dtype=torch.float32)
    order = sorted(
        (down + across + 4.5 * (colour > 0) + 1.2 * (time > 0), time, colour, down, across)
        for time, colour, down, across in product(range(3), range(3), range(SLOW), range(SLOW))
    )
    parts = ((times[i], colours[j], cosines[down], cosines[across]) for _, i, j, down, across in order[:WIDTH])
    filters = torch.stack([torch.einsum("t,c,y,x->tcyx", *vectors) for vectors in parts])
    mean, deviation = _levels()
    found = ((torch.from_numpy(patches).float() - mean) / deviation) @ filters.flatten(1).T
    filters /= (found.std(0) + 1e-3)[:, None, None, None, None]
    model.vision_model.embeddings.patch_embedding.weight.copy_(filters.flatten(1, 2))
