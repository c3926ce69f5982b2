"""Train the shipped CLIP on rendered scenes other than the data set's, and say how well sentences find their clips.

    python -m workshop.tiny_clip.train [--output models/tiny_clip] [--scenes N] [--steps N] [--seed S]

A real `CLIPModel` with a real `CLIPTokenizer`, small: three frames of a clip at once, 160 × 160 pixels in patches of
20, five layers of 192 for clips, three of 128 for sentences. It learns from CLIP's loss and, as encoders of video that
were trained on actions did, from what goes on in a clip; its patches learn what is in them and how that moves. About
an hour of one core that has matrix units for bfloat16, with 6 GB of memory; nothing is downloaded.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.tasks.features.clip import FOLDER
from workshop.scenes.drawing import SIDE
from workshop.scenes.script import write_script
from workshop.tiny_clip.clips import (
    AGENT,
    BATCH,
    CHANGING,
    GROUPS,
    HUES,
    KINDS,
    NOVEL,
    NUMBERS,
    OF_AGENT,
    POSTURE,
    THING,
    Batch,
    Batches,
    Clip,
    Moment,
    clips,
    moments,
    sentences_of,
)
from workshop.tiny_clip.model import (
    DEVIATION,
    GRID,
    MEAN,
    SHARED,
    WIDTH,
    look_closely,
    new_model,
    see,
    to_patches,
    to_pixels,
    train_tokenizer,
)

RESTING = 0.1  # weight of patches that show nothing, as most do
SMALLEST = 0.03  # added to what a state's number deviates by
LARGEST = 6.0  # deviations; what is further off is taken to be that far
STIRRING = 0.5  # change of a thing, in deviations, from which it counts as moving


class Lessons(nn.Module):
    """Losses of clips: attributes, kinds and colours of patches, and the states of what is there.

    `deviations` [NUMBERS] are those of the states' numbers.
    """

    def __init__(self, deviations: Tensor) -> None:
        super().__init__()
        self.deviations = deviations
        self.attributes = nn.ModuleList(nn.Linear(SHARED, len(names)) for names in GROUPS.values())
        self.stirring = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SHARED))
        self.patches = nn.ModuleList(nn.Linear(WIDTH, len(names)) for names in (KINDS, HUES))
        self.states, self.liveliest = nn.Linear(WIDTH, NUMBERS), nn.Linear(SHARED, NUMBERS)
        weights = [torch.ones(len(names)) for names in (KINDS, HUES)]
        for weight in weights:
            weight[0] = RESTING
        self.weights = weights

    def attributes_loss(self, clips: Tensor, attributes: Tensor) -> Tensor:
        """Cross-entropy of clips [B, SHARED] against what they show [B, events, groups], summed over the groups."""
        losses = []
        for group, head in enumerate(self.attributes):
            scores = functional.log_softmax(head(clips).float(), -1)
            losses.append(-scores.gather(1, attributes[:, :, group]).mean())
        return torch.stack(losses).sum()

    def stirring_loss(self, patches: Tensor, stirs: Tensor, attributes: Tensor) -> Tensor:
        """The same of the mean of the patches [B, K, WIDTH] that stir [B, K]: a short way to where things happen."""
        some = stirs.any(1)
        share = stirs[some].float() / stirs[some].sum(1, keepdim=True)
        means = (patches[some] * share[..., None]).sum(1)
        return self.attributes_loss(self.stirring(means), attributes[some])

    def names_loss(self, patches: Tensor, maps: Tensor) -> Tensor:
        """Cross-entropy of patches [B, K, WIDTH] against kinds and colours [B, K, 2]."""
        losses = [
            functional.cross_entropy(head(patches).flatten(0, 1).float(), maps[..., i].flatten(), weight)
            for i, (head, weight) in enumerate(zip(self.patches, self.weights, strict=True))
        ]
        return torch.stack(losses).sum()

    def states_loss(self, patches: Tensor, clips: Tensor, owners: Tensor, numbers: Tensor) -> Tensor:
        """Errors of the states [B, K, NUMBERS] of those in the patches, and of a clip's liveliest agent and thing."""
        true = (numbers.float() / self.deviations).clamp(-LARGEST, LARGEST)
        known = _known(owners == AGENT, owners == THING)
        of_patches = _mean_error(self.states(patches), true, known)
        rows = torch.arange(len(true))
        agents = (true[..., POSTURE:OF_AGENT].abs().sum(-1) + 1e-3) * (owners == AGENT)
        things = (true[..., -CHANGING:].abs().sum(-1) + 1e-3) * (owners == THING)
        agent, thing = agents.argmax(1), things.argmax(1)
        liveliest = torch.cat([true[rows, agent, :OF_AGENT], true[rows, thing, OF_AGENT:]], 1)
        known = _known(agents.amax(1) > 0, things.amax(1) > STIRRING)
        return of_patches + _mean_error(self.liveliest(clips), liveliest, known)


def _known(agents: Tensor, things: Tensor) -> Tensor:
    """Which numbers [..., NUMBERS] are known, where an agent's and where a thing's are [...]."""
    return torch.cat(
        [
            agents[..., None].expand(*agents.shape, OF_AGENT),
            things[..., None].expand(*things.shape, NUMBERS - OF_AGENT),
        ],
        -1,
    )


def _mean_error(found: Tensor, true: Tensor, known: Tensor) -> Tensor:
    errors = functional.smooth_l1_loss(found.float(), true, reduction="none") * known
    parts = [(errors[..., part].sum(), known[..., part].sum()) for part in (slice(OF_AGENT), slice(OF_AGENT, None))]
    return torch.stack([total / count.clamp(min=1) for total, count in parts]).sum()


def deviations(clips: list[Clip]) -> Tensor:
    """How much each number of a state deviates over some clips [NUMBERS]."""
    owners = np.stack([clip.states.owners for clip in clips])
    numbers = np.stack([clip.states.numbers for clip in clips]).astype(np.float32)
    parts = [numbers[owners == AGENT][:, :OF_AGENT].std(0), numbers[owners == THING][:, OF_AGENT:].std(0)]
    return torch.from_numpy(np.concatenate(parts) + np.float32(SMALLEST))


MOMENTS_AT_ONCE = 32


@torch.inference_mode()
def embed_moments(
    model: Any, tokenizer: Any, several: Sequence[Moment], texts: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of moments (mean of their clips') and of sentences, each (moments, dimension)."""
    images = []
    for start in range(0, len(several), MOMENTS_AT_ONCE):
        some = np.stack([moment.pictures for moment in several[start : start + MOMENTS_AT_ONCE]])
        vectors = model.get_image_features(to_pixels(some).flatten(0, 1)).pooler_output
        images.append(functional.normalize(vectors, dim=-1).view(len(some), -1, vectors.shape[-1]).mean(1))
    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
    encoded = model.get_text_features(**tokens).pooler_output
    return functional.normalize(torch.cat(images), dim=-1), functional.normalize(encoded, dim=-1)


def retrieval(images: torch.Tensor, texts: torch.Tensor, sentences: Sequence[str]) -> dict[str, float]:
    """R@1 and R@5 in per cent, moment → sentence and back, among all moments, with chance beside them.

    A sentence that is equal to the right one is right as well.
    """
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


VOCABULARY, SCRIPTS = 1000, 2500  # tokens, and scripts whose sentences they are learned from
KEPT = 24  # patches of a clip that are seen: all that stir, if possible
WHOLE = 0.15  # share of the training, its end, in which all patches are seen
RATE, TURN, FILTERS = 1e-3, 0.02, 0.02  # AdamW's rate, Muon's, and the patch embedding's share of the first
STEADY = 0.3  # share of the training before the rates fall
LOOKED_AT = 8000  # patches that the first filters are made for


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """CLIP's loss both ways, of vectors of any length."""
    images, texts = functional.normalize(images.float(), dim=-1), functional.normalize(texts.float(), dim=-1)
    scores = scale.exp().clamp(max=100) * images @ texts.T
    target = torch.arange(len(scores))
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2


class Training:
    """One model, its lessons and their optimisers: Muon for the vision tower's matrices, AdamW for the rest."""

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
        """Learn from a batch after `share` of the training; the losses: contrastive, attributes, names, states."""
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
    """Train for so many steps."""
    batches = Batches(several, to_patches(np.stack([clip.pictures for clip in several])), seed)
    lively = batches.patches[batches.stirs]
    look_closely(model, lively[batches.chance.permutation(len(lively))[:LOOKED_AT]])
    training = Training(model, tokenizer, Lessons(deviations(list(several[: 10 * BATCH]))))
    begun, losses = time.monotonic(), []
    for step in range(steps):
        share = step / steps
        batch = batches.draw(KEPT if share < 1 - WHOLE else GRID * GRID)
        losses.append(training.step(batch, share, (step + 1) / 60))
        if (step + 1) % 50 == 0:
            means = " ".join(f"{mean:.3f}" for mean in np.mean(losses[-50:], axis=0))
            sys.stdout.write(f"step {step + 1} of {steps}: losses {means}, {time.monotonic() - begun:.0f} s\n")
            sys.stdout.flush()


def sentences_of_scripts(seed: int, scripts: int) -> Iterator[str]:
    """Sentences that the tokenizer is learned from."""
    chance = random.Random(seed)
    for _ in range(scripts):
        novel = chance.random() < NOVEL
        for several in sentences_of(write_script(chance, novel=novel), chance, novel=novel):
            yield from several


def save(model: Any, tokenizer: Any, folder: Path, report: dict[str, Any]) -> None:
    """Write weights as safetensors in half precision, the tokenizer, the preprocessing, and what was measured."""
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = {"height": SIDE, "width": SIDE}
    processing = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": SIDE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": side,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": DEVIATION,
        "do_convert_rgb": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processing, indent=1) + "\n")
    (folder / "retrieval.json").write_text(json.dumps(report, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workshop.tiny_clip.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="DIR")
    parser.add_argument("--scenes", type=int, default=1800, metavar="N", help="scenes to train on")
    parser.add_argument("--held-out", type=int, default=300, metavar="N", help="scenes to test on")
    parser.add_argument("--steps", type=int, default=3000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    begun = time.monotonic()
    several = list(clips(options.seed, options.scenes))
    sys.stdout.write(f"{len(several)} clips of {options.scenes} scenes, {time.monotonic() - begun:.0f} s\n")
    tokenizer = train_tokenizer(sentences_of_scripts(options.seed, SCRIPTS), VOCABULARY)
    model = new_model(tokenizer)
    sys.stdout.write(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens\n")
    fit(model, tokenizer, several, options.steps, options.seed)
    model.eval()
    held = list(moments(options.seed + 1_000_000, options.held_out))
    sentences = [moment.sentence for moment in held]
    report = retrieval(*embed_moments(model, tokenizer, held, sentences), sentences)
    sys.stdout.write(json.dumps(report) + "\n")
    save(
        model,
        tokenizer,
        options.output,
        {**report, "scenes": options.scenes, "steps": options.steps, "seconds": round(time.monotonic() - begun)},
    )


if __name__ == "__main__":
    main()
