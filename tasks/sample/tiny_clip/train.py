"""Train the shipped CLIP on rendered scenes other than the data set's, and say how well sentences find their pictures.

    python -m penumbra.tasks.sample.tiny_clip.train [--output models/tiny_clip] [--scenes N] [--steps N] [--seed S]

A real `CLIPModel` with a real `CLIPTokenizer`, small: 160 × 160 pixels in patches of 20, four layers of 96 for
pictures, three for sentences. It learns from CLIP's loss, with a moment's sentences and with others that name what is
in the picture, and from what is in each patch. Under a quarter of an hour on one core; nothing is downloaded.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel

from penumbra.tasks.features.clip import FOLDER
from penumbra.tasks.sample.scenes.scene import SIDE
from penumbra.tasks.sample.tiny_clip.moments import FRAMES, HUES, KINDS, PATCH, Moment, Pictures, caption, moments
from penumbra.tasks.sample.tiny_clip.tokenizer import END, POSITIONS, START, train_tokenizer
from penumbra.tasks.sample.tiny_clip.zero_shot import embed_moments, retrieval

WIDTH, VOCABULARY = 96, 1000
BATCH, RATE = 64, 1e-3  # moments a step, with one frame of each; highest learning rate
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's own


def new_model(tokenizer: Any) -> CLIPModel:
    """A CLIP with random weights."""
    layers = {"hidden_size": WIDTH, "num_attention_heads": 4, "projection_dim": WIDTH}
    special = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(START),
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
    }
    text = {**layers, **special, "pad_token_id": special["eos_token_id"], "vocab_size": len(tokenizer),
            "max_position_embeddings": POSITIONS, "num_hidden_layers": 3, "intermediate_size": 2 * WIDTH}  # fmt: skip
    vision = {**layers, "image_size": SIDE, "patch_size": PATCH, "num_hidden_layers": 4, "intermediate_size": 3 * WIDTH}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH))


def to_pixels(pictures: Pictures) -> torch.Tensor:
    """uint8 (…, rows, columns, 3) as CLIP wants it: float (…, 3, rows, columns), normalised."""
    mean, deviation = torch.tensor(MEAN), torch.tensor(DEVIATION)
    return ((torch.from_numpy(pictures).float() / 255 - mean) / deviation).movedim(-1, -3)


def contrastive_loss(
    images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor, same: torch.Tensor
) -> torch.Tensor:
    """CLIP's loss both ways; `same` marks pairs off the diagonal whose sentences are equal, which are left out."""
    scores = (scale.exp().clamp(max=100) * images @ texts.T).masked_fill(same, -math.inf)
    target = torch.arange(len(scores))
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2


class PatchClassifier(torch.nn.Module):
    """What is in each patch, predicted from the patch's own state: an auxiliary loss, thrown away after training."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList([torch.nn.Linear(WIDTH, len(names)) for names in (KINDS, HUES)])
        self.weights = [torch.ones(len(names)) for names in (KINDS, HUES)]
        for weight in self.weights:
            weight[0] = 0.1  # most patches show nothing

    def forward(self, patches: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of states (pictures, patches, WIDTH) against maps (pictures, patches, 2)."""
        losses = [functional.cross_entropy(head(patches).flatten(0, 1), maps[..., i].flatten(), weight)
                  for i, (head, weight) in enumerate(zip(self.heads, self.weights, strict=True))]  # fmt: skip
        return torch.stack(losses).sum()


def fit(model: Any, tokenizer: Any, several: Sequence[Moment], steps: int, seed: int) -> None:
    """Train for so many steps; half of the pairs are a moment's sentence, half name what is in the picture."""
    chance, classifier = np.random.default_rng(seed), PatchClassifier()
    parameters = [*model.parameters(), *classifier.parameters()]
    groups = [{"params": [p for p in parameters if (p.ndim > 1) == matrix], "weight_decay": 0.1 * matrix}
              for matrix in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.08)
    begun, losses = time.monotonic(), []
    for step in range(steps):
        some = [several[row] for row in chance.choice(len(several), BATCH, replace=False)]
        times = chance.integers(FRAMES, size=BATCH)
        seen = np.stack([moment.pictures[time] for moment, time in zip(some, times, strict=True)])
        maps = np.stack([moment.maps[time] for moment, time in zip(some, times, strict=True)])
        if chance.random() < 0.5:  # no sentence tells left from right
            seen, maps = seen[:, :, ::-1].copy(), maps[:, :, ::-1].copy()
        sentences = [caption(moment, chance) if row % 2 else chance.choice(moment.sentences)
                for row, moment in enumerate(some)]  # fmt: skip
        same = torch.tensor([[a == b for b in sentences] for a in sentences]) & ~torch.eye(BATCH, dtype=torch.bool)
        states = model.vision_model(to_pixels(seen))
        texts = model.get_text_features(**tokenizer(sentences, padding=True, return_tensors="pt")).pooler_output
        images, texts = (
            functional.normalize(model.visual_projection(states.pooler_output), dim=-1),
            functional.normalize(texts, dim=-1),
        )
        contrastive: Any = contrastive_loss(images, texts, model.logit_scale, same)
        named = classifier(states.last_hidden_state[:, 1:], torch.from_numpy(maps).long().flatten(1, 2))
        optimizer.zero_grad()
        (contrastive + named).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append((contrastive.item(), named.item()))
        if (step + 1) % 50 == 0:
            means = " and ".join(f"{mean:.3f}" for mean in np.mean(losses[-50:], axis=0))
            sys.stdout.write(f"step {step + 1} of {steps}: losses {means}, {time.monotonic() - begun:.0f} s\n")
            sys.stdout.flush()


def save(model: Any, tokenizer: Any, folder: Path, report: dict[str, Any]) -> None:
    """Write weights as safetensors, the tokenizer, the preprocessing, and what was measured."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = {"height": SIDE, "width": SIDE}
    processing = {"image_processor_type": "CLIPImageProcessor", "do_resize": True, "size": {"shortest_edge": SIDE},
                  "resample": 3, "do_center_crop": True, "crop_size": side, "do_rescale": True,
                  "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": MEAN, "image_std": DEVIATION,
                  "do_convert_rgb": True}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processing, indent=1) + "\n")
    (folder / "retrieval.json").write_text(json.dumps(report, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m penumbra.tasks.sample.tiny_clip.train", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="DIR")
    parser.add_argument("--scenes", type=int, default=1500, metavar="N", help="scenes to train on")
    parser.add_argument("--held-out", type=int, default=300, metavar="N", help="scenes to test on")
    parser.add_argument("--steps", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    begun = time.monotonic()
    several = list(moments(options.seed, options.scenes))
    sys.stdout.write(f"{len(several)} moments of {options.scenes} scenes, {time.monotonic() - begun:.0f} s\n")
    words = [text for moment in several for text in (*moment.sentences, *(thing.name for thing in moment.things))]
    tokenizer = train_tokenizer(words, VOCABULARY)
    model: Any = new_model(tokenizer)
    sys.stdout.write(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens\n")
    fit(model, tokenizer, several, options.steps, options.seed)
    model.eval()
    held = list(moments(options.seed + 1_000_000, options.held_out))
    sentences = [moment.sentences[0] for moment in held]
    report = retrieval(*embed_moments(model, tokenizer, to_pixels, held, sentences), sentences)
    sys.stdout.write(json.dumps(report) + "\n")
    save(model, tokenizer, options.output, {**report, "scenes": options.scenes, "steps": options.steps,
                                            "seconds": round(time.monotonic() - begun)})  # fmt: skip


if __name__ == "__main__":
    main()
