"""Provider `llama`: local weights score the words on offer for a slot in their sentence; nothing is generated.

A word's score is log P(the rest of the sentence from the first token in which the words differ, up to the sentence's
end | the tokens that they share). So words of several tokens are scored correctly, and even a tiny model can only give
a word on offer. Slots are filled one after the other in the masking order: slots that are filled hold their new words,
later ones their own, so each level reads as it will be written and keeps the level before.

Sharing makes it fast: the prompt's keys and values are computed once, a slot's words lie side by side in one row after
the tokens that they share (each attends to those and to itself alone), and rows of many queries form a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.tasks.devices import device_of
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot
from penumbra.tasks.negatives.providers.questions import Prompt, WordLists
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text.masks import render

if TYPE_CHECKING:
    from torch import Tensor, device

ROW_TOKENS = 512  # attention is quadratic in a row: longer lists of words are split into several rows
BATCH_TOKENS = 8192  # tokens that go through the model at once
LOGITS = 1 << 26  # next-token scores held at once: 256 MB in float32
QUERIES = 1024  # queries filled at once: bounds the memory whatever the size of a part

Scores = NDArray[np.float64]


class LlamaProvider:
    """Fills slots with words that a local language model finds likely; the same seed gives the same fills.

    Raises `PenumbraError` if the model cannot be loaded or there is no such device.
    """

    name = "llama"

    def __init__(self, lists: WordLists, model: str, device: str, prompt: Prompt, temperature: float) -> None:
        self.lists, self.temperature, self.prompt = lists, temperature, prompt.label
        loaded, tokenizer = load(model, device)
        self.model = weights_name(model, loaded)
        self.scorer = WordScorer(loaded, tokenizer, prompt)

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills candidate after candidate; `prompt_tokens` of a level are those of its new slots."""
        chains = [chain for query in queries for chain in query.chains()]
        for candidate in range(candidates):
            for start in range(0, len(chains), QUERIES):
                yield from self._fill(chains[start : start + QUERIES], candidate)

    def _fill(self, queries: Sequence[MaskedQuery], candidate: int) -> Iterator[Fill]:
        """Yield one candidate of every query and level: first every query's first slot, then every second."""
        offers = self.lists.draw(queries, candidate)
        states = [FillState(query, lists) for query, lists in zip(queries, offers, strict=True)]
        for turn in range(max((len(state.turns) for state in states), default=0)):
            active = [state for state in states if turn < len(state.turns)]
            scored = self.scorer.score([state.sentences(turn) for state in active])
            for state, (scores, tokens) in zip(active, scored, strict=True):
                # "llama" separates these draws from those of the words on offer
                qid, first, token = f"llama {state.query.qid}", state.query.first, state.turns[turn].slot.token
                seed = row_seed(self.lists.seed, qid, candidate, first, token)
                draw = float(uniform(np.array([seed], np.uint64), 0)[0])
                state.take(turn, choose(scores, self.temperature, draw), tokens)
        for state in states:
            yield from state.fills()


def choose(scores: Scores, temperature: float, draw: float) -> int | None:
    """Return the index of the best score, or at a temperature that of `draw` in [0, 1); None without finite scores."""
    if not np.isfinite(scores).all():
        return None
    if temperature == 0:
        return int(scores.argmax())
    with np.errstate(over="ignore"):  # at the lowest temperatures, exp(-inf) is 0
        mass = np.cumsum(np.exp((scores - scores.max()) / temperature))
    return min(int(np.searchsorted(mass, draw * mass[-1], side="right")), len(mass) - 1)


class Turn(NamedTuple):
    """A slot to fill, the first level that has it, and its words on offer."""

    level: int
    slot: Slot
    words: tuple[str, ...]


class FillState:
    """The filling of one query: `turns` are its slots in the order of filling, `chosen` the words so far, by token."""

    def __init__(self, query: MaskedQuery, offers: Sequence[tuple[str, ...]]) -> None:
        self.query = query
        self.turns: list[Turn] = []
        self.chosen: dict[int, str] = {}
        self.problems: dict[int, str] = {}
        self.tokens = dict.fromkeys(range(query.first, query.first + len(query.levels)), 0)
        self.slots = {slot.token: slot for slot in query.levels[-1]}
        offered = {slot.token: words for slot, words in zip(query.levels[-1], offers, strict=True)}
        known: set[int] = set()
        for level, slots in enumerate(query.levels, query.first):
            empty = next((slot for slot in slots if not offered[slot.token]), None)
            if empty:
                self.problems[level] = empty.no_word_problem()
            else:
                self.turns += [Turn(level, s, offered[s.token]) for s in slots if s.token not in known]
                known.update(slot.token for slot in slots)

    def sentences(self, turn: int) -> list[str]:
        """Return the query with each word of a turn in its slot, one sentence a word."""
        shown = {token: self.slots[token].surface(word) for token, word in self.chosen.items()}
        slot = self.turns[turn].slot
        return [render(self.query.tokens, shown | {slot.token: slot.surface(word)}) for word in self.turns[turn].words]

    def take(self, turn: int, index: int | None, tokens: int) -> None:
        """Put the index-th word into the turn's slot; without an index, all levels from here on fail."""
        level, slot, words = self.turns[turn].level, self.turns[turn].slot, self.turns[turn].words
        self.tokens[level] += tokens
        if index is None:
            problem = f"the model gives no finite likelihood to the words for {slot.word!r}"
            self.problems |= dict.fromkeys((later for later in self.tokens if later >= level), problem)
            del self.turns[turn:]
        else:
            self.chosen[slot.token] = words[index]

    def fills(self) -> Iterator[Fill]:
        """Yield the fill of each level, or its problem."""
        for level, slots in enumerate(self.query.levels, self.query.first):
            problem = self.problems.get(level, "")
            words = () if problem else tuple(self.chosen[slot.token] for slot in slots)
            yield Fill(self.query.qid, level, words, problem, prompt_tokens=self.tokens[level])


# -- scores -----------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A row of a batch: tokens that a slot's words share, then each word's further tokens, side by side.

    `branches` says which word a token belongs to (0: all words, n: the n-th). The token at `sources[i]` predicts
    `targets[i]`, which counts for word `words[i]`. The first `cached` tokens are the prompt's and not in the row.
    """

    cached: int
    shared: int
    ids: list[int]
    branches: list[int]
    positions: list[int]
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)

    def add(self, word: int, rest: list[int]) -> None:
        """Append the further tokens of one word; the last one is predicted but not read."""
        start, more = len(self.ids), len(rest) - 1
        first_position = self.cached + self.shared
        self.ids += rest[:-1]
        self.branches += [self.branches[-1] + 1] * more
        self.positions += range(first_position, first_position + more)
        self.sources += [self.shared - 1, *range(start, start + more)]
        self.targets += rest
        self.words += [word] * len(rest)


def rows_of(texts: list[list[int]], prompt: list[int], first: int) -> list[Row]:
    """Return the rows of one slot, whose words have the numbers `first`, `first + 1`, …; none for a single word."""
    common = _common_prefix(texts)
    cached = min(_common_prefix([texts[0], prompt]), common - 1, len(prompt) - 1)
    rows: list[Row] = []
    for word, text in enumerate(texts, first):
        rest = text[common:]
        if rest and (not rows or len(rows[-1].ids) + len(rest) > ROW_TOKENS):
            shared = text[cached:common]
            rows.append(Row(cached, len(shared), [*shared], [0] * len(shared), [*range(cached, common)]))
        if rest:
            rows[-1].add(word, rest)
    return rows


def _common_prefix(texts: list[list[int]]) -> int:
    """Return how many tokens the texts share at their beginning."""
    columns = enumerate(zip(*texts, strict=False))
    return next((index for index, ids in columns if len(set(ids)) > 1), min(map(len, texts)))


class PromptCache:
    """The cache of transformers' attention: the prompt's keys and values, followed by each row's own.

    Unlike a `DynamicCache` it does not keep a layer's keys and values of the rows once the layer has run.
    """

    def __init__(self, layers: "list[tuple[Tensor, Tensor]]") -> None:
        self.layers = layers  # (1, heads, tokens, head dimension) each

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.layers[layer_idx][0].shape[-2])

    def update(self, keys: "Tensor", values: "Tensor", layer_idx: int, *_: Any, **__: Any) -> "tuple[Tensor, Tensor]":
        """Return keys and values (rows, heads, prompt + row, head dimension) of a layer."""
        import torch

        prompt = (part.expand(len(keys), -1, -1, -1) for part in self.layers[layer_idx])
        first, second = (torch.cat(pair, dim=-2) for pair in zip(prompt, (keys, values), strict=True))
        return first, second


class WordScorer:
    """Log-probabilities of sentences that differ in a word, under a causal transformer."""

    def __init__(self, model: Any, tokenizer: Any, prompt: Prompt) -> None:
        import torch
        from transformers import DynamicCache

        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.base, self.head = model.base_model, model.get_output_embeddings()
        self.device: device = model.device
        self.batch_tokens = BATCH_TOKENS
        self.begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.static = [self.begin, *self._tokenize([prompt.static])[0]]
        with torch.inference_mode():
            cache: Any = DynamicCache()
            ids = torch.tensor([self.static], device=self.device)
            hidden = self.base(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
            logits, published = self.head(hidden).float(), model(input_ids=ids).logits.float()
            self.layers = [(layer.keys, layer.values) for layer in cache.layers]
        if not torch.allclose(logits, published, rtol=0.02, atol=0.1):  # soft caps or scales after the linear layer
            kind = model.config.model_type
            raise PenumbraError(f"models of type {kind!r} cannot be scored by their output layer: choose a Llama")

    def score(self, choices: Sequence[Sequence[str]]) -> list[tuple[Scores, int]]:
        """Return each choice's scores of its sentences, up to a constant log P(sentence | prompt).

        With them comes the number of tokens read: those that the sentences share once, and the rest of each.
        """
        # each text: the prompt, the sentence and the sentence's end
        filled = [f"{self.prompt.static}\n{self.prompt.fill(sentence=s)}" for choice in choices for s in choice]
        texts = [[self.begin, *ids, self.tokenizer.eos_token_id] for ids in self._tokenize(filled)]
        rows, tokens, first = [], [], 0
        for choice in choices:
            made = rows_of(texts[first : first + len(choice)], self.static, first)
            tokens.append(sum(len(row.ids) for row in made) - sum(row.shared for row in made[1:]))
            rows += made
            first += len(choice)
        scores = self._scores(rows, len(texts))
        edges = np.cumsum([len(choice) for choice in choices])[:-1]
        return list(zip(np.split(scores, edges), tokens, strict=True)) if choices else []

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return ids

    def _scores(self, rows: list[Row], words: int) -> Scores:
        """Return the scores (words) from all rows, run in batches of similar length, the longest rows first."""
        import torch

        rows = sorted(rows, key=lambda row: (row.cached, -len(row.ids)))
        parts: list[Tensor] = []  # stay on the device until the last batch is submitted
        with torch.inference_mode():
            for _, same in groupby(rows, key=lambda row: row.cached):
                group = list(same)
                while group:
                    count = max(1, self.batch_tokens // len(group[0].ids))
                    try:
                        parts.append(self._run(group[:count]))
                        del group[:count]
                    except torch.OutOfMemoryError:
                        if count == 1:
                            raise PenumbraError(f"{self.device} has too little memory for one sentence") from None
                        self.batch_tokens //= 2
        scores = np.zeros(words)
        if parts:
            numbers = [word for row in rows for word in row.words]
            np.add.at(scores, numbers, torch.cat(parts).cpu().double().numpy())
        return scores

    def _run(self, rows: list[Row]) -> "Tensor":
        """Return the log-probability of each target of each row, one after the other."""
        import torch

        width, cached = len(rows[0].ids), rows[0].cached
        branches = self._padded([row.branches for row in rows], width, -1)
        hidden = self.base(
            input_ids=self._padded([row.ids for row in rows], width, 0),
            position_ids=self._padded([row.positions for row in rows], width, 0),
            attention_mask=self._mask(branches, cached),
            past_key_values=PromptCache([(keys[:, :, :cached], values[:, :, :cached]) for keys, values in self.layers]),
            use_cache=True,
        ).last_hidden_state.flatten(0, 1)  # (rows * width, hidden)
        sources = np.concatenate([np.array(row.sources) + i * width for i, row in enumerate(rows)])
        targets = torch.tensor([target for row in rows for target in row.targets], device=self.device)
        needed, which = np.unique(sources, return_inverse=True)
        return self._log_probabilities(hidden[torch.from_numpy(needed).to(self.device)], which, targets)

    def _log_probabilities(self, hidden: "Tensor", which: NDArray[np.intp], targets: "Tensor") -> "Tensor":
        """Return log-softmax in float32 of `targets[i]` after `hidden[which[i]]` (states, hidden), some at a time."""
        import torch

        step = max(1, LOGITS // int(self.model.config.vocab_size))
        log_probabilities = torch.empty(len(which), device=self.device)
        for start in range(0, len(hidden), step):
            indices = np.flatnonzero((which >= start) & (which < start + step))
            own = torch.from_numpy(indices).to(self.device)
            states = torch.from_numpy(which[indices] - start).to(self.device)
            logits = self.head(hidden[start : start + step]).float()
            log_probabilities[own] = logits[states, targets[own]] - logits.logsumexp(dim=-1)[states]
        return log_probabilities

    def _mask(self, branches: "Tensor", cached: int) -> "Tensor":
        """Return the attention mask (rows, 1, width, cached + width): 0, or the lowest number where softmax gives 0.

        A token attends to the prompt and to earlier tokens of the row that are shared or of its own word.
        """
        import torch

        rows, width = branches.shape
        earlier = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        seen = earlier & ((branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None]))
        mask = torch.zeros(rows, 1, width, cached + width, dtype=self.model.dtype, device=self.device)
        mask[:, 0, :, cached:].masked_fill_(~seen, torch.finfo(self.model.dtype).min)
        return mask

    def _padded(self, lists: list[list[int]], width: int, padding: int) -> "Tensor":
        """Return lists of different lengths as a tensor (lists, width), padded on the right."""
        import torch

        padded = np.full((len(lists), width), padding, dtype=np.int64)
        for i, values in enumerate(lists):
            padded[i, : len(values)] = values
        return torch.from_numpy(padded).to(self.device)


def load(name: str, device_name: str) -> tuple[Any, Any]:
    """Return model and tokenizer, from a folder without access to the hub; raise `PenumbraError` with the remedy."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        target = torch.empty(0, device=device_of(device_name)).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise PenumbraError(
            f"there is no device {device_name!r}: filling.llama.device=auto takes a GPU or the CPU"
        ) from None
    options: dict[str, Any] = {"local_files_only": Path(name).is_dir(), "trust_remote_code": False}
    dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        # without the hub's own message, which is long and may repeat the request
        raise PenumbraError(
            f"language model {name!r} cannot be loaded ({type(error).__name__}): set filling.llama.model to a folder "
            "with config.json, a tokenizer and weights as *.safetensors, or download a model of the hub first with "
            f"`hf download {name}` (a gated model needs its licence accepted and HF_TOKEN set)"
        ) from None
    model, report = loaded
    if report["missing_keys"]:  # transformers would use random numbers in their place
        raise PenumbraError(f"model {name!r} lacks {len(report['missing_keys'])} of its weights: download it again")
    if tokenizer.eos_token_id is None:
        raise PenumbraError(f"model {name!r} has no token for the end of a text: choose another")
    try:
        return model.eval().to(target), tokenizer
    except torch.OutOfMemoryError:
        raise PenumbraError(f"model {name!r} does not fit into the memory of {target}") from None


def weights_name(name: str, model: Any) -> str:
    """Return the name of the weights: the hub's with its commit, or a folder's with a digest of its files."""
    folder = Path(name)
    if folder.is_dir():
        return f"{folder.resolve().name}@{file_digest(folder)[:12]}"
    commit = getattr(model.config, "_commit_hash", None)
    return f"{name}@{commit}" if commit else name
