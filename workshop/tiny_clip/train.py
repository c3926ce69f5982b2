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
from torch import Tensor
from torch.nn import functional

from penumbra.tasks.features.clip import FOLDER
from workshop.scenes.scene import SIDE
from workshop.scenes.script import write_script
from workshop.tiny_clip.batches import BATCH, Batch, Batches
from workshop.tiny_clip.clips import NOVEL, Clip, clips, moments, told
from workshop.tiny_clip.lessons import Lessons, deviations
from workshop.tiny_clip.model import DEVIATION, MEAN, look_closely, new_model, see, to_patches
from workshop.tiny_clip.patches import GRID
from workshop.tiny_clip.tokenizer import train_tokenizer
from workshop.tiny_clip.zero_shot import embed_moments, retrieval

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
        for several in told(write_script(chance, novel=novel), chance, novel=novel):
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
    """The command line."""
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
