"""Train the shipped CLIP on rendered scenes that are not in the data set, and measure retrieval.

    python -m workshop.tiny_clip.train [--output models/tiny_clip] [--scenes N] [--steps N] [--seed S]

The model is a `CLIPModel` with a `CLIPTokenizer`: three frames of a clip, 160 × 160 pixels in patches of 20, five
layers of width 192 for clips and three of 128 for sentences. It is trained with CLIP's loss, with labels of the events
in a clip, and with labels of the contents and motion of each patch. The training takes about an hour of one core that
has matrix units for bfloat16, and 6 GB of memory. Nothing is downloaded.
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from penumbra.tasks.features.clip import FOLDER
from workshop.tiny_clip import clips as data
from workshop.tiny_clip import model as network
from workshop.tiny_clip.clips import Batch, Batches, Clip, clips, moments
from workshop.tiny_clip.model import Pictures, look_closely, new_model, see, to_patches, to_pixels, train_tokenizer

RESTING = 0.1  # weight of empty patches
SMALLEST = 0.03  # added to the deviation of a state's number
LARGEST = 6.0  # deviations; larger values are clamped
STIRRING = 0.5  # change of a thing, in deviations, that counts as motion


class Lessons(nn.Module):
    """Losses of clips: their labels, the kinds and colours of patches, and the states of the patches' owners."""

    def __init__(self, clips: Sequence[Clip]) -> None:
        super().__init__()
        owners = np.stack([clip.owners for clip in clips])
        numbers = np.stack([clip.numbers for clip in clips]).astype(np.float32)
        agents, things = numbers[owners == data.AGENT], numbers[owners == data.THING]
        both = [agents[:, : data.OF_AGENT].std(0), things[:, data.OF_AGENT :].std(0)]
        self.deviations = torch.from_numpy(np.concatenate(both) + np.float32(SMALLEST))
        self.attributes = nn.ModuleList(nn.Linear(network.SHARED, len(names)) for names in data.GROUPS.values())
        self.stirring = nn.Sequential(nn.LayerNorm(network.WIDTH), nn.Linear(network.WIDTH, network.SHARED))
        self.patches = nn.ModuleList(nn.Linear(network.WIDTH, len(names)) for names in (data.KINDS, data.HUES))
        self.states, self.liveliest = nn.Linear(network.WIDTH, data.NUMBERS), nn.Linear(network.SHARED, data.NUMBERS)
        self.weights = [torch.tensor([RESTING] + [1.0] * (len(names) - 1)) for names in (data.KINDS, data.HUES)]

    def attributes_loss(self, clips: Tensor, attributes: Tensor) -> Tensor:
        """Return the cross-entropy of clips [B, SHARED] and labels [B, events, groups], summed over the groups."""
        scores = [functional.log_softmax(head(clips).float(), -1) for head in self.attributes]
        losses = [-one.gather(1, attributes[:, :, group]).mean() for group, one in enumerate(scores)]
        return torch.stack(losses).sum()

    def stirring_loss(self, patches: Tensor, stirs: Tensor, attributes: Tensor) -> Tensor:
        """Return the same loss of the mean of the patches [B, K, WIDTH] with motion [B, K]."""
        some = stirs.any(1)
        share = stirs[some].float() / stirs[some].sum(1, keepdim=True)
        means = (patches[some] * share[..., None]).sum(1)
        return self.attributes_loss(self.stirring(means), attributes[some])

    def names_loss(self, patches: Tensor, maps: Tensor) -> Tensor:
        """Return the cross-entropy of patches [B, K, WIDTH] and their kinds and colours [B, K, 2]."""
        scores = [head(patches).flatten(0, 1).float() for head in self.patches]
        labels = maps.flatten(0, 1).unbind(-1)
        return torch.stack([*map(functional.cross_entropy, scores, labels, self.weights)]).sum()

    def states_loss(self, patches: Tensor, clips: Tensor, owners: Tensor, numbers: Tensor) -> Tensor:
        """Return the error of the owners' states [B, K, NUMBERS] and of those that change most in a clip."""
        true = (numbers.float() / self.deviations).clamp(-LARGEST, LARGEST)
        of_agents, of_things = owners == data.AGENT, owners == data.THING
        of_patches = _mean_error(self.states(patches), true, of_agents, of_things)
        rows = torch.arange(len(true))
        agents = (true[..., data.POSTURE : data.OF_AGENT].abs().sum(-1) + 1e-3) * of_agents
        things = (true[..., -data.CHANGING :].abs().sum(-1) + 1e-3) * of_things
        agent, thing = agents.argmax(1), things.argmax(1)
        liveliest = torch.cat([true[rows, agent, : data.OF_AGENT], true[rows, thing, data.OF_AGENT :]], 1)
        known = agents.amax(1) > 0, things.amax(1) > STIRRING
        return of_patches + _mean_error(self.liveliest(clips), liveliest, *known)


def _mean_error(found: Tensor, true: Tensor, of_agents: Tensor, of_things: Tensor) -> Tensor:
    """Return the mean error of states [..., NUMBERS] where they are of agents [...], and where they are of things."""
    errors = functional.smooth_l1_loss(found.float(), true, reduction="none")
    agents, things = errors[..., : data.OF_AGENT][of_agents], errors[..., data.OF_AGENT :][of_things]
    return torch.stack([part.sum() / max(part.numel(), 1) for part in (agents, things)]).sum()


MOMENTS_AT_ONCE = 32


@torch.inference_mode()
def embed(model: Any, tokenizer: Any, pictures: Sequence[Pictures], texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the normalised vectors of moments, the means over their clips, and those of texts."""
    images = []
    for start in range(0, len(pictures), MOMENTS_AT_ONCE):
        some = np.stack(pictures[start : start + MOMENTS_AT_ONCE])
        vectors = model.get_image_features(to_pixels(some).flatten(0, 1)).pooler_output
        images.append(functional.normalize(vectors, dim=-1).view(len(some), -1, vectors.shape[-1]).mean(1))
    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
    encoded = model.get_text_features(**tokens).pooler_output
    return functional.normalize(torch.cat(images), dim=-1), functional.normalize(encoded, dim=-1)


def retrieval(images: torch.Tensor, texts: torch.Tensor, sentences: Sequence[str]) -> dict[str, float]:
    """Return R@1 and R@5 in percent between moments and sentences, both ways, and those of chance."""
    scores = (images @ texts.T).numpy()
    right = np.array([[a == b for b in sentences] for a in sentences])
    figures: dict[str, float] = {"moments": len(sentences)}
    for name, table, correct in (("moment_to_sentence", scores, right), ("sentence_to_moment", scores.T, right.T)):
        order = np.argsort(-table, axis=1, kind="stable")
        for depth in (1, 5):
            hits = [correct[row, order[row, :depth]].any() for row in range(len(order))]
            figures[f"{name}_r{depth}"] = round(100 * float(np.mean(hits)), 2)
    share = right.sum(1) / len(right)
    figures |= {f"chance_r{depth}": round(100 * float(np.mean(1 - (1 - share) ** depth)), 2) for depth in (1, 5)}
    return figures


VOCABULARY, SCRIPTS = 1000, 2500  # tokens, and scripts whose sentences train the tokenizer
KEPT = 24  # patches of a clip in a step
WHOLE = 0.15  # share of the steps, at the end, with all patches
RATE, TURN, FILTERS = 1e-3, 0.02, 0.02  # rates of AdamW and Muon, and the patch embedding's share of AdamW's
WARM = 60  # steps in which the rates increase
STEADY = 0.3  # share of the steps before the rates decrease
LOOKED_AT = 8000  # patches that initialise the filters


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    images, texts = functional.normalize(images.float(), dim=-1), functional.normalize(texts.float(), dim=-1)
    scores = scale.exp().clamp(max=100) * images @ texts.T
    target = torch.arange(len(scores))
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2


def optimisers_of(model: Any, weights: Sequence[nn.Parameter]) -> dict[float, torch.optim.Optimizer]:
    """Return Muon for the vision tower's matrices and AdamW for the other weights, with their highest rates."""
    tower = model.vision_model
    matrices = [weight for weight in tower.encoder.parameters() if weight.ndim == 2]
    filters = tower.embeddings.patch_embedding.weight
    known = {id(weight) for weight in (*matrices, filters)}
    others = [weight for weight in weights if id(weight) not in known]
    groups = [
        {"params": [filters], "weight_decay": 0.0, "scale": FILTERS},
        {"params": [weight for weight in others if weight.ndim > 1], "weight_decay": 0.05},
        {"params": [weight for weight in others if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(matrices, TURN, weight_decay=0.02, adjust_lr_fn="original", ns_steps=4)
    return {RATE: torch.optim.AdamW(groups, RATE, (0.9, 0.98)), TURN: muon}


def loss_of(model: Any, tokenizer: Any, lessons: Lessons, batch: Batch, share: float) -> Tensor:
    """Return the loss of a batch after `share` of the training."""
    states, seen = see(model, batch.patches, batch.places)
    tokens = tokenizer(batch.sentences, padding=True, return_tensors="pt")
    texts = model.get_text_features(**tokens).pooler_output
    attributes = lessons.attributes_loss(seen, batch.attributes)
    attributes = attributes + lessons.stirring_loss(states, batch.stirs, batch.attributes)
    contrastive = contrastive_loss(seen[batch.busy], texts, model.logit_scale)
    names = lessons.names_loss(states, batch.maps)
    changes = lessons.states_loss(states, seen, batch.owners, batch.numbers)
    return contrastive + 0.5 * attributes + (0.5 - 0.35 * share) * names + 2 * changes


def fit(model: Any, tokenizer: Any, several: Sequence[Clip], steps: int, seed: int) -> None:
    batches = Batches(several, to_patches(np.stack([clip.pictures for clip in several])), seed)
    lively = batches.patches[batches.stirs]
    look_closely(model, lively[batches.chance.permutation(len(lively))[:LOOKED_AT]])
    lessons = Lessons(several[: 10 * data.BATCH])
    weights = [*model.parameters(), *lessons.parameters()]
    optimisers = optimisers_of(model, weights)
    for step in range(steps):
        share = step / steps
        batch = batches.draw(KEPT if share < 1 - WHOLE else network.GRID * network.GRID)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, tokenizer, lessons, batch, share)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        falling = 1.0 if share < STEADY else max(0.02, (1 - share) / (1 - STEADY))
        for rate, optimiser in optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / WARM) * falling * group.get("scale", 1.0)
            optimiser.step()
            optimiser.zero_grad()


def sentences_of_scripts(seed: int) -> Iterator[str]:
    for _, several in data.scripts(random.Random(seed), SCRIPTS):
        yield from chain.from_iterable(several)


def main(output: Path = FOLDER, scenes: int = 1800, held_out: int = 300, steps: int = 3000, seed: int = 1) -> None:
    torch.manual_seed(seed)
    several = list(clips(seed, scenes))
    tokenizer = train_tokenizer(sentences_of_scripts(seed), VOCABULARY)
    model = new_model(tokenizer)
    fit(model, tokenizer, several, steps, seed)
    model.eval()
    sentences, pictures = zip(*moments(seed + 1_000_000, held_out), strict=True)
    report = retrieval(*embed(model, tokenizer, pictures, sentences), sentences)
    report["scenes"] = scenes
    model.half().save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "retrieval.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
