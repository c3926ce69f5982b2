"""A causal language model on this machine: the likelihood of sentences, and of a sentence's next word.

All texts follow the same prefix, whose keys and values are computed once. A row of a batch holds several texts as a
tree: a shared beginning is computed once, and a token attends only to the tokens before it in its own texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.language_model_weights import SMALL_MODEL, load, load_once, weights_digest, weights_name

if TYPE_CHECKING:
    from torch import Tensor, device

# tokens that go through the model at once: 1 or 4 GB of next-token scores with Llama 3's vocabulary
BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
TOTALLED = {"cpu": 16, "cuda": 1024}  # nodes whose scores are summed at once: as many as fit a CPU's cache
ROW_TOKENS = 96  # a row of this length takes no more texts: longer rows share more tokens, but cost more attention

Scores = NDArray[np.float64]
Numbers = NDArray[np.int64]


def _same(lines: Sequence[Sequence[int]]) -> int:
    """Return the length of the longest common prefix of lines of tokens."""
    return len([*takewhile(lambda ids: len(set(ids)) == 1, zip(*lines, strict=False))])


@dataclass
class Row:
    """A tree of tokens, which is a row of a batch: texts that begin alike share the nodes of these tokens.

    Node 0 is the last token before all texts. `nodes` has the others by parent and token, in their order, and `paths`
    the nodes of each text by its number, node 0 first.
    """

    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    paths: dict[int, Numbers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nodes) + 1

    def add(self, number: int, text: Sequence[int]) -> None:
        path = [0]
        for token in text:
            path.append(self.nodes.setdefault((path[-1], token), len(self)))
        self.paths[number] = np.array(path)

    def seen(self) -> NDArray[np.bool_]:
        """Return for each node which nodes it attends to: itself and those before it in its texts."""
        seen = np.eye(len(self), dtype=np.bool_)
        for (parent, _), node in self.nodes.items():
            seen[node] |= seen[parent]
        return seen


OfNodes = Callable[[Sequence[Row], Numbers, Numbers], Scores]  # one score for each node and token


class LanguageModel:
    """A language model that gives natural log-probabilities of sentences, each a line after the lines `before`."""

    def __init__(self, model: Any, tokenizer: Any, name: str, before: str = "") -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(attention.__name__, attention)
        model.set_attn_implementation(attention.__name__)
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.device: device = model.device
        self.batch_tokens = BATCH_TOKENS[self.device.type]
        begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.prefix = [begin, *self.tokens([before])[0]] if before else [begin]

    @classmethod
    def load(cls, name: str = SMALL_MODEL, before: str = "") -> "LanguageModel":
        """Load a folder, a GGUF file or a model of the hub; the small model is read once in a process."""
        model, tokenizer = load_once(name, weights_digest(name)) if name == SMALL_MODEL else load(name)
        return cls(model, tokenizer, weights_name(name, model), before)

    def after(self, before: str) -> "LanguageModel":
        """Return a model with the same weights and other lines before each sentence."""
        return LanguageModel(self.model, self.tokenizer, self.name, before)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        if not self.tokenizer.is_fast:
            ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
            return ids
        backend = self.tokenizer.backend_tokenizer  # a quarter of the time, without masks and offsets
        return [one.ids for one in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a sentence."""
        return int(getattr(self.model.config, "max_position_embeddings", 1 << 20)) - len(self.prefix) - 1

    def log_probabilities(self, texts: Sequence[str]) -> list[float]:
        """Return log P(sentence and end of line | the lines before) of each sentence; NaN if it is too long."""
        return self._of_lines(texts, lambda line: (np.arange(len(line)), np.array(line)), self._log_probabilities)

    def plausibilities(self, texts: Sequence[str]) -> list[float]:
        """Return the log-odds that a strict reader would call each sentence natural, by the adapter's head.

        The head reads the end of the line. The value is NaN where the sentence is longer than the model can read.
        """
        return self._of_lines(texts, lambda line: (np.array([len(line)]), np.array([0])), self._plausibilities)

    def _of_lines(
        self, texts: Sequence[str], asked_of: Callable[[list[int]], tuple[Numbers, Numbers]], of_nodes: OfNodes
    ) -> list[float]:
        """Return the sum of each line's scores by `of_nodes`; NaN where the line is longer than the model can read."""
        lines = self.tokens([f"{text}\n" for text in texts])
        known = [i for i, line in enumerate(lines) if len(line) <= self.longest]
        totals = np.full(len(texts), np.nan)
        asked = [(lines[i], *asked_of(lines[i])) for i in known]
        totals[known] = [scores.sum() for scores in self._read(asked, of_nodes)]
        return [*totals.tolist()]

    def compare(self, choices: Sequence[Sequence[str]]) -> list[tuple[Scores, Scores]]:
        """Return, for each choice, log P of its second and further texts minus log P of its first text.

        The second array has the lowest difference of one token, of the last tokens that all texts share; at most 0.
        """
        several = iter(self.tokens([text for choice in choices for text in choice]))
        asked, ends = [], []
        for choice in choices:
            lines = [next(several) for _ in choice]
            same = _same(lines)
            ends.append(_same([line[:same:-1] for line in lines]))
            asked += [(line, np.arange(same, len(line)), np.array(line[same:], np.int64)) for line in lines]
        scores, changes = iter(self._read(asked, self._log_probabilities)), []
        for choice, end in zip(choices, ends, strict=True):
            first, *others = [next(scores) for _ in choice]
            totals = np.array([own.sum() for own in others]) - first.sum()
            falls = [own[len(own) - end :] - first[len(first) - end :] for own in others]
            changes.append((totals, np.array([fall.min(initial=0) for fall in falls])))
        return changes

    def next_tokens(self, asked: Sequence[tuple[str, Numbers]]) -> list[Scores]:
        """Return log P(token | text) of the wanted tokens after each text; equal requests are computed once."""
        distinct = {(text, id(wanted)): (text, wanted) for text, wanted in asked}
        lines = zip(self.tokens([text for text, _ in distinct]), distinct.values(), strict=True)
        asked_once = [(line, np.full(len(own), len(line)), own) for line, (_, own) in lines]
        scores = self._read(asked_once, self._log_probabilities)
        answers = dict(zip(distinct, scores, strict=True))
        return [answers[text, id(wanted)] for text, wanted in asked]

    def _read(self, asked: Sequence[tuple[list[int], Numbers, Numbers]], of_nodes: OfNodes) -> list[Scores]:
        """Return the scores by `of_nodes` of tokens, each after the first n tokens of a text: (text, each n, tokens).

        Texts are added to rows in the order of their tokens, so that texts with a common prefix share a row. Rows are
        about equally long (`ROW_TOKENS` nodes and a text at most), as shorter ones are padded. The longest come first.
        """
        import torch

        texts = sorted((text[: counts.max(initial=0)], i) for i, (text, counts, _) in enumerate(asked))
        whole = Row()
        for text, i in texts:
            whole.add(i, text)
        length = len(whole) / ceil(len(whole) / ROW_TOKENS)
        left = list[Row]()
        for text, i in texts:
            if not left or len(left[-1]) >= length:
                left.append(Row())
            left[-1].add(i, text)
        left.sort(key=len, reverse=True)
        scores: list[Scores] = [np.zeros(0)] * len(asked)
        while left:
            batch = left[: max(1, self.batch_tokens // len(left[0]))]
            numbers = [i for row in batch for i in row.paths]
            starts = np.arange(len(batch)) * len(batch[0])
            nodes = [
                start + row.paths[i][asked[i][1]] for start, row in zip(starts, batch, strict=True) for i in row.paths
            ]
            tokens = [asked[i][2] for i in numbers]
            try:
                with torch.inference_mode():
                    values = of_nodes(batch, np.concatenate(nodes), np.concatenate(tokens))
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise PenumbraError(f"{self.device} has too little memory for one sentence") from None
                self.batch_tokens //= 2
                continue
            for i, own in zip(numbers, np.split(values, np.cumsum([*map(len, tokens)])[:-1]), strict=True):
                scores[i] = own
            del left[: len(batch)]
        return scores

    def _plausibilities(self, rows: Sequence[Row], nodes: Numbers, _: Numbers) -> Scores:
        """Return the head's logits at nodes, counted as for `_log_probabilities`."""
        import torch

        hidden = self._hidden(rows).flatten(0, 1)[torch.from_numpy(nodes).to(self.device)]
        values: Scores = self.model.plausibility(hidden.float()).squeeze(-1).cpu().double().numpy()
        return values

    def _log_probabilities(self, rows: Sequence[Row], nodes: Numbers, tokens: Numbers) -> Scores:
        """Return log P of tokens, each after a node; nodes are numbered through all rows, padded to the first one."""
        import torch

        needed, which = (torch.from_numpy(it).to(self.device) for it in np.unique(nodes, return_inverse=True))
        logits = self.model.lm_head(self._hidden(rows).flatten(0, 1)[needed])
        # in groups: all at once would take as long as the matrix product on a CPU
        totals = torch.cat([some.float().logsumexp(-1) for some in logits.split(TOTALLED[self.device.type])])
        own = logits[which, torch.from_numpy(tokens).to(self.device)]
        values: Scores = (own.float() - totals[which]).cpu().double().numpy()
        return values

    @cached_property
    def _layers(self) -> list[tuple["Tensor", "Tensor"]]:
        """Keys and values of the prefix without its last token, by layer: (heads, tokens, head dimension) each."""
        import torch
        from transformers import DynamicCache

        if len(self.prefix) == 1:
            return []
        cache: Any = DynamicCache()
        ids = torch.tensor([self.prefix[:-1]], device=self.device)
        mask = self._mask([np.tri(ids.shape[1], dtype=np.bool_)])
        self.model.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        return [(layer.keys[0], layer.values[0]) for layer in cache.layers]

    def _hidden(self, rows: Sequence[Row]) -> "Tensor":
        """Return the last hidden states (rows, nodes of the first row, dimension)."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        seen = [row.seen() for row in rows]
        ids = [torch.tensor([self.prefix[-1], *(token for _, token in row.nodes)]) for row in rows]
        positions = [torch.from_numpy(own.sum(1) + len(self.prefix) - 2) for own in seen]  # a node sees itself, too
        hidden: Tensor = self.model.model(
            input_ids=pad_sequence(ids, batch_first=True).to(self.device),
            position_ids=pad_sequence(positions, batch_first=True).to(self.device),
            attention_mask=self._mask(seen),
            before=self._layers,
            use_cache=False,
        ).last_hidden_state
        return hidden

    def _mask(self, several: Sequence[NDArray[np.bool_]]) -> "Tensor":
        """Return the attention mask (rows, 1, width, width): 0, or the lowest number where softmax gives 0."""
        import torch

        width = len(several[0])
        mask = torch.full((len(several), 1, width, width), torch.finfo(self.model.dtype).min, dtype=self.model.dtype)
        for own, seen in zip(mask, several, strict=True):
            own[0, : len(seen), : len(seen)].masked_fill_(torch.from_numpy(seen), 0)
        return mask.to(self.device)


def attention(
    module: Any, query: "Tensor", key: "Tensor", value: "Tensor", mask: "Tensor", scaling: float, **options: Any
) -> tuple["Tensor", None]:
    """Return the attention output (rows, width, heads, head dimension) over a row's own tokens and the shared prefix.

    `options["before"]` has the keys and values of the prefix, by layer. One matrix product multiplies them with the
    queries of all rows, as in Hydragen (Juravsky et al., 2024); a cache would copy them to every row.
    """
    import torch

    rows, heads, width, size = query.shape
    kv = key.shape[1]  # key-value heads, each shared by several query heads (grouped-query attention)
    query = query.reshape(rows, kv, -1, size) * scaling
    scores = (query @ key.transpose(-1, -2)).view(rows, kv, -1, width, width) + mask[:, :, None]
    scores = scores.view(rows, kv, -1, width)
    if not (before := options.get("before")):
        found = scores.float().softmax(-1).to(value.dtype) @ value
        return found.view(rows, heads, width, size).transpose(1, 2), None
    keys, values = before[module.layer_idx]
    shared = query.transpose(0, 1).reshape(kv, -1, size) @ keys.transpose(-1, -2)  # (kv, rows · …, prefix tokens)
    # in float32: a CPU takes ten times as long for the maximum of bfloat16
    highest = torch.maximum(scores.float().amax(-1), shared.float().amax(-1).view(kv, rows, -1).transpose(0, 1))
    scores = scores.sub_(highest[..., None]).exp_()
    shared = shared.sub_(highest.transpose(0, 1).reshape(kv, -1, 1)).exp_()
    total = scores.sum(-1) + shared.sum(-1).view(kv, rows, -1).transpose(0, 1)
    found = (shared @ values).view(kv, rows, -1, size).transpose(0, 1) + scores @ value
    return (found / total[..., None]).reshape(rows, heads, width, size).transpose(1, 2), None
