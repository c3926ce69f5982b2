"""Train the shipped CLIP on rendered scenes that are not in the data set, and measure retrieval.

    python -m workshop.tiny_clip.train [--output models/tiny_clip] [--scenes N] [--steps N] [--seed S]

The model is a `CLIPModel` with a `CLIPTokenizer`: three frames of a clip, 160 × 160 pixels in patches of 20, five
layers of width 192 for clips and three of 128 for sentences. It is trained with CLIP's loss, with labels of the events
in a clip, and with labels of the contents and motion of each patch. The training takes about an hour of one core that
has matrix units for bfloat16, and 6 GB of memory. Nothing is downloaded.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from penumbra.tasks.features.clip import FOLDER
from workshop.scenes.script import write_script
from workshop.tiny_clip import clips as data
from workshop.tiny_clip import model as network
from workshop.tiny_clip.clips import Batch, Batches, Clip, Moment, clips, moments, sentences_of
from workshop.tiny_clip.model import look_closely, new_model, see, to_patches, to_pixels, train_tokenizer

RESTING = 0.1  # weight of empty patches
SMALLEST = 0.03  # added to the deviation of a state's number
LARGEST = 6.0  # deviations; larger values are clamped
STIRRING = 0.5  # change of a thing, in deviations, from which it moves


class Lessons(nn.Module):
    """Losses of clips: their labels, the kinds and colours of patches, and the states of the patches' owners."""

    def __init__(self, deviations: Tensor) -> None:
        super().__init__()
        self.deviations = deviations
        self.attributes = nn.ModuleList(nn.Linear(network.SHARED, len(names)) for names in data.GROUPS.values())
        self.stirring = nn.Sequential(nn.LayerNorm(network.WIDTH), nn.Linear(network.WIDTH, network.SHARED))
        self.patches = nn.ModuleList(nn.Linear(network.WIDTH, len(names)) for names in (data.KINDS, data.HUES))
        self.states, self.liveliest = nn.Linear(network.WIDTH, data.NUMBERS), nn.Linear(network.SHARED, data.NUMBERS)
        weights = [torch.ones(len(names)) for names in (data.KINDS, data.HUES)]
        for weight in weights:
            weight[0] = RESTING
        self.weights = weights

    def attributes_loss(self, clips: Tensor, attributes: Tensor) -> Tensor:
        """Return the cross-entropy of clips [B, SHARED] and labels [B, events, groups], summed over the groups."""
        losses = []
        for group, head in enumerate(self.attributes):
            scores = functional.log_softmax(head(clips).float(), -1)
            losses.append(-scores.gather(1, attributes[:, :, group]).mean())
        return torch.stack(losses).sum()

    def stirring_loss(self, patches: Tensor, stirs: Tensor, attributes: Tensor) -> Tensor:
        """Return the same loss of the mean of the patches [B, K, WIDTH] with motion [B, K]."""
        some = stirs.any(1)
        share = stirs[some].float() / stirs[some].sum(1, keepdim=True)
        means = (patches[some] * share[..., None]).sum(1)
        return self.attributes_loss(self.stirring(means), attributes[some])

    def names_loss(self, patches: Tensor, maps: Tensor) -> Tensor:
        """Return the cross-entropy of patches [B, K, WIDTH] and their kinds and colours [B, K, 2]."""
        losses = [
            functional.cross_entropy(head(patches).flatten(0, 1).float(), maps[..., i].flatten(), weight)
            for i, (head, weight) in enumerate(zip(self.patches, self.weights, strict=True))
        ]
        return torch.stack(losses).sum()

    def states_loss(self, patches: Tensor, clips: Tensor, owners: Tensor, numbers: Tensor) -> Tensor:
        """Return the error of the owners' states [B, K, NUMBERS] and of those that change most in a clip."""
        true = (numbers.float() / self.deviations).clamp(-LARGEST, LARGEST)
        known = _known(owners == data.AGENT, owners == data.THING)
        of_patches = _mean_error(self.states(patches), true, known)
        rows = torch.arange(len(true))
        agents = (true[..., data.POSTURE : data.OF_AGENT].abs().sum(-1) + 1e-3) * (owners == data.AGENT)
        things = (true[..., -data.CHANGING :].abs().sum(-1) + 1e-3) * (owners == data.THING)
        agent, thing = agents.argmax(1), things.argmax(1)
        liveliest = torch.cat([true[rows, agent, : data.OF_AGENT], true[rows, thing, data.OF_AGENT :]], 1)
        known = _known(agents.amax(1) > 0, things.amax(1) > STIRRING)
        return of_patches + _mean_error(self.liveliest(clips), liveliest, known)


def _known(agents: Tensor, things: Tensor) -> Tensor:
    """Return which numbers [..., NUMBERS] are known, given whether an agent's and a thing's are [...]."""
    known_agents = agents[..., None].expand(*agents.shape, data.OF_AGENT)
    known_things = things[..., None].expand(*things.shape, data.NUMBERS - data.OF_AGENT)
    return torch.cat([known_agents, known_things], -1)


def _mean_error(found: Tensor, true: Tensor, known: Tensor) -> Tensor:
    errors = functional.smooth_l1_loss(found.float(), true, reduction="none") * known
    parts = [
        (errors[..., part].sum(), known[..., part].sum()) for part in (slice(data.OF_AGENT), slice(data.OF_AGENT, None))
    ]
    return torch.stack([total / count.clamp(min=1) for total, count in parts]).sum()


def deviations(clips: list[Clip]) -> Tensor:
    owners = np.stack([clip.states.owners for clip in clips])
    numbers = np.stack([clip.states.numbers for clip in clips]).astype(np.float32)
    parts = [
        numbers[owners == data.AGENT][:, : data.OF_AGENT].std(0),
        numbers[owners == data.THING][:, data.OF_AGENT :].std(0),
    ]
    return torch.from_numpy(np.concatenate(parts) + np.float32(SMALLEST))


MOMENTS_AT_ONCE = 32


@torch.inference_mode()
def embed_moments(
    model: Any, tokenizer: Any, several: Sequence[Moment], texts: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    images = []
    for start in range(0, len(several), MOMENTS_AT_ONCE):
        some = np.stack([moment.pictures for moment in several[start : start + MOMENTS_AT_ONCE]])
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
STEADY = 0.3  # share of the steps before the rates decrease
LOOKED_AT = 8000  # patches that initialise the filters


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    images, texts = functional.normalize(images.float(), dim=-1), functional.normalize(texts.float(), dim=-1)
    scores = scale.exp().clamp(max=100) * images @ texts.T
    target = torch.arange(len(scores))
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2


class Training:
    """A model, its losses and optimisers: Muon for the vision tower's matrices, AdamW for the rest."""

    def __init__(self, model: Any, tokenizer: Any, lessons: Lessons) -> None:
        self.model, self.tokenizer, self.lessons = model, tokenizer, lessons
        tower = model.vision_model
        matrices = [weight for weight in tower.encoder.parameters() if weight.ndim == 2]
        filters = tower.embeddings.patch_embedding.weight
        known = {id(weight) for weight in (*matrices, filters)}
        self.weights = [*model.parameters(), *lessons.parameters()]
        others = [weight for weight in self.weights if id(weight) not in known]
        groups = [{"params": [filters], "weight_decay": 0.0, "scale": FILTERS}]
        for many in (True, False):
            some = [weight for weight in others if (weight.ndim > 1) == many]
            groups.append({"params": some, "weight_decay": 0.05 * many, "scale": 1.0})
        muon = torch.optim.Muon(matrices, TURN, weight_decay=0.02, adjust_lr_fn="original", ns_steps=4)
        self.optimisers = {RATE: torch.optim.AdamW(groups, RATE, (0.9, 0.98)), TURN: muon}

    def step(self, batch: Batch, share: float, warm: float) -> tuple[float, ...]:
        """Make a step after `share` of the training; return the losses: contrastive, labels, names, states."""
        with torch.autocast("cpu", torch.bfloat16):
            losses = self._losses(batch)
        contrastive, attributes, names, states = losses
        (contrastive + 0.5 * attributes + (0.5 - 0.35 * share) * names + 2 * states).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.weights, 5.0)
        falling = 1.0 if share < STEADY else max(0.02, (1 - share) / (1 - STEADY))
        for rate, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, warm) * falling * group.get("scale", 1.0)
            optimiser.step()
            optimiser.zero_grad()
        return tuple(loss.item() for loss in losses)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lessons = self.lessons
        states, seen = see(self.model, batch.patches, batch.places)
        tokens = self.tokenizer(batch.sentences, padding=True, return_tensors="pt")
        texts = self.model.get_text_features(**tokens).pooler_output
        attributes = lessons.attributes_loss(seen, batch.attributes)
        attributes = attributes + lessons.stirring_loss(states, batch.stirs, batch.attributes)
        return (
            contrastive_loss(seen[batch.busy], texts, self.model.logit_scale),
            attributes,
            lessons.names_loss(states, batch.maps),
            lessons.states_loss(states, seen, batch.owners, batch.numbers),
        )


def fit(model: Any, tokenizer: Any, several: Sequence[Clip], steps: int, seed: int) -> None:
    batches = Batches(several, to_patches(np.stack([clip.pictures for clip in several])), seed)
    lively = batches.patches[batches.stirs]
    look_closely(model, lively[batches.chance.permutation(len(lively))[:LOOKED_AT]])
    training = Training(model, tokenizer, Lessons(deviations(list(several[: 10 * data.BATCH]))))
    begun, losses = time.monotonic(), []
    for step in range(steps):
        share = step / steps
        batch = batches.draw(KEPT if share < 1 - WHOLE else network.GRID * network.GRID)
        losses.append(training.step(batch, share, (step + 1) / 60))
        if (step + 1) % 50 == 0:
            means = " ".join(f"{mean:.3f}" for mean in np.mean(losses[-50:], axis=0))
            sys.stdout.write(f"step {step + 1} of {steps}: losses {means}, {time.monotonic() - begun:.0f} s\n")
            sys.stdout.flush()


def sentences_of_scripts(seed: int, scripts: int) -> Iterator[str]:
    chance = random.Random(seed)
    for _ in range(scripts):
        novel = chance.random() < data.NOVEL
        for several in sentences_of(write_script(chance, novel=novel), chance, novel=novel):
            yield from several


def save(model: Any, tokenizer: Any, folder: Path, report: dict[str, Any]) -> None:
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "retrieval.json").write_text(json.dumps(report, indent=1) + "\n")


def main(output: Path = FOLDER, scenes: int = 1800, held_out: int = 300, steps: int = 3000, seed: int = 1) -> None:
    torch.manual_seed(seed)
    begun = time.monotonic()
    several = list(clips(seed, scenes))
    sys.stdout.write(f"{len(several)} clips of {scenes} scenes, {time.monotonic() - begun:.0f} s\n")
    tokenizer = train_tokenizer(sentences_of_scripts(seed, SCRIPTS), VOCABULARY)
    model = new_model(tokenizer)
    sys.stdout.write(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens\n")
    fit(model, tokenizer, several, steps, seed)
    model.eval()
    held = list(moments(seed + 1_000_000, held_out))
    sentences = [moment.sentence for moment in held]
    report = retrieval(*embed_moments(model, tokenizer, held, sentences), sentences)
    sys.stdout.write(json.dumps(report) + "\n")
    run = {"scenes": scenes, "steps": steps, "seconds": round(time.monotonic() - begun)}
    save(model, tokenizer, output, {**report, **run})


if __name__ == "__main__":
    typer.run(main)
