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

BATCH_TOKENS = 2048  # that go through the model at once: 1 GB of next-token scores with Llama 3's vocabulary
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
    """A slot in a batch: the tokens that its sentences share, then each word's further tokens, side by side.

    `branches` says which word a token belongs to (0: all words, n: the n-th). The token at `sources[i]` predicts
    `targets[i]`, which counts for word `words[i]`. The first `cached` tokens are the prompt's and not in the row.
    """

    cached: int
    ids: list[int]
    branches: list[int]
    positions: list[int]
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)


def row_of(texts: list[list[int]], prompt: list[int], first: int) -> Row:
    """Return the row of a slot, whose words have the numbers `first`, `first + 1`, and so on."""
    common = _common_prefix(texts)
    cached = min(_common_prefix([texts[0], prompt]), common - 1, len(prompt) - 1)
    shared = common - cached
    row = Row(cached, texts[0][cached:common], [0] * shared, list(range(cached, common)))
    for number, text in enumerate(texts):
        start, rest = len(row.ids), text[common:]
        row.ids += rest[:-1]  # the last one is predicted but not read
        row.branches += [number + 1] * (len(rest) - 1)
        row.positions += range(common, len(text) - 1)
        row.sources += [shared - 1, *range(start, len(row.ids))]
        row.targets += rest
        row.words += [first + number] * len(rest)
    return row


def _common_prefix(texts: list[list[int]]) -> int:
    """Return how many tokens the texts share at their beginning."""
    columns = enumerate(zip(*texts, strict=False))
    return next((index for index, ids in columns if len(set(ids)) > 1), min(map(len, texts)))


class WordScorer:
    """Log-probabilities of sentences that differ in a word, under a causal transformer."""

    def __init__(self, model: Any, tokenizer: Any, prompt: Prompt) -> None:
        import torch
        from transformers import DynamicCache

        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.device: device = model.device
        self.batch_tokens = BATCH_TOKENS
        self.begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.static = [self.begin, *self._tokenize([prompt.static])[0]]
        cache: Any = DynamicCache()
        with torch.inference_mode():
            model(input_ids=torch.tensor([self.static], device=self.device), past_key_values=cache, use_cache=True)
        self.layers = [(layer.keys, layer.values) for layer in cache.layers]  # (1, heads, tokens, head dimension) each

    def score(self, choices: Sequence[Sequence[str]]) -> list[tuple[Scores, int]]:
        """Return each choice's scores of its sentences, up to a constant log P(sentence | prompt).

        With them comes the number of tokens read: those that the sentences share once, and the rest of each.
        """
        # each text: the prompt, the sentence and the sentence's end
        filled = [f"{self.prompt.static}\n{self.prompt.fill(sentence=s)}" for choice in choices for s in choice]
        texts = [[self.begin, *ids, self.tokenizer.eos_token_id] for ids in self._tokenize(filled)]
        ends = np.cumsum([len(choice) for choice in choices])
        spans = [(end - len(choice), end) for choice, end in zip(choices, ends.tolist(), strict=True)]
        rows = {start: row_of(texts[start:end], self.static, start) for start, end in spans if end - start > 1}
        scores = self._scores(list(rows.values()), len(texts))
        return [(scores[start:end], len(rows[start].ids) if start in rows else 0) for start, end in spans]

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
        from transformers import DynamicCache

        width, cached, cache = len(rows[0].ids), rows[0].cached, DynamicCache()
        for layer, states in enumerate(self.layers):
            keys, values = (part[:, :, :cached].expand(len(rows), -1, -1, -1) for part in states)
            cache.update(keys, values, layer)
        logits = self.model(
            input_ids=self._padded([row.ids for row in rows], width, 0),
            position_ids=self._padded([row.positions for row in rows], width, 0),
            attention_mask=self._mask(self._padded([row.branches for row in rows], width, -1), cached),
            past_key_values=cache,
            use_cache=True,
        ).logits.flatten(0, 1)  # (rows * width, vocabulary)
        sources = np.concatenate([np.array(row.sources) + i * width for i, row in enumerate(rows)])
        needed, which = (torch.from_numpy(it).to(self.device) for it in np.unique(sources, return_inverse=True))
        targets = torch.tensor([target for row in rows for target in row.targets], device=self.device)
        logits = logits[needed].float()
        log_probabilities: Tensor = logits[which, targets] - logits.logsumexp(dim=-1)[which]
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

        padded = [[*values, *[padding] * (width - len(values))] for values in lists]
        return torch.tensor(padded, device=self.device)


def load(name: str, device_name: str) -> tuple[Any, Any]:
    """Return model and tokenizer, from a folder without access to the hub; raise `PenumbraError` with the remedy."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = device_of(device_name)
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
