"""Provider `llama`: local weights score the words on offer for a slot in their sentence; nothing is ever generated.

Constrained decoding: a word's score is log P(the rest of the sentence from the first token in which the words differ,
up to the sentence's end | what they share), so words of several tokens are scored right and even a tiny model can
only give an offered word. Slots are filled in the masking order, one after the other: the slots filled before hold
their new words, those that come later their own, so each level reads as it will stand and keeps the level before.

Fast by sharing: the prompt's keys and values are computed once, a slot's words lie side by side in one row behind what
they share (each sees that and itself alone), and rows of many queries go through the model together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.devices import device_of
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.draws import row_seed, uniform
from penumbra.tasks.negatives.providers.options import Options
from penumbra.tasks.negatives.providers.prompts import Prompt, load_prompt
from penumbra.tasks.negatives.providers.registry import ProviderSettings, Shared, TrainingText
from penumbra.tasks.text.masks import render

if TYPE_CHECKING:
    from torch import Tensor, device

ROW_TOKENS = 512  # attention is quadratic in a row: longer lists of words are split into several rows
LOGITS = 1 << 26  # next-token scores held at once: 256 MB in float32
QUERIES = 1024  # queries under way at once: bounds what lies in memory whatever the size of a part

Scores = NDArray[np.float64]


class Llama(ProviderSettings):
    """The local model of provider llama."""

    provider: ClassVar[str] = "llama"
    about: ClassVar[str] = "local weights"
    on_device: ClassVar[bool] = True  # weights of gigabytes: one model fills the device

    model: str = Field(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        min_length=1,
        description="A causal language model: a name on the hub or a folder, with safetensors weights.",
    )
    temperature: float = Field(
        1.0, ge=0, description="0 takes the likeliest word of a list; 1 draws each as often as the model expects it."
    )
    prompt: str = Field("sentence-1", description="What stands before a sentence: a file of prompts/, without .txt.")
    batch_tokens: int = Field(
        8192, ge=1, description="Tokens that go through the model at once; fewer need less memory."
    )
    device: str = Field("auto", description="Where the model runs: auto takes a GPU if there is one, else the CPU.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="Precision of the weights: auto is bfloat16 on a GPU and float32 on the CPU."
    )

    def determines(self, filling: Shared) -> dict[str, Any]:
        """The number of words on offer, the weights, the prompt and how words are drawn."""
        folder = Path(self.model)
        weights = f"sha256 {file_digest(folder)}" if folder.is_dir() else self.model
        prompt = load_prompt(self.prompt, "sentence").label
        drawn = {"temperature": self.temperature, "dtype": self.dtype}
        return {"options": filling.options, "weights": weights, **drawn, "prompt": prompt}

    def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
        """The model, loaded."""
        options = Options(training.sentences(), training.dictionary, filling.options, filling.seed, Answers())
        return LlamaProvider(options, self, load_prompt(self.prompt, "sentence"), filling.seed)


class LlamaError(PenumbraError):
    """The model can't be loaded or run."""


class LlamaProvider:
    """Fills slots with the words that a local language model finds likely; the same seed gives the same fills.

    Raises `LlamaError` where the model can't be loaded or its device is not there.
    """

    name = "llama"

    def __init__(self, options: Options, settings: Llama, prompt: Prompt, seed: int) -> None:
        self.options, self.temperature, self.seed = options, settings.temperature, seed
        self.prompt = prompt.label
        model, tokenizer = load(settings)
        self.model = answering_model(settings.model, model)
        self.scorer = WordScorer(model, tokenizer, prompt, settings.batch_tokens)

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills candidate after candidate; `prompt_tokens` of a level are those of the slots new in it."""
        chains = [chain for query in queries for chain in query.chains()]
        for candidate in range(candidates):
            for start in range(0, len(chains), QUERIES):
                some = chains[start : start + QUERIES]
                yield from fill_slots(self.scorer, self.options, some, candidate, self.temperature, self.seed)


def fill_slots(
    scorer: "WordScorer",
    options: Options,
    queries: Sequence[MaskedQuery],
    candidate: int,
    temperature: float,
    seed: int,
) -> Iterator[Fill]:
    """One candidate of every query and level: first every query's first slot, then every second one, and so on."""
    offers = options.draw(queries, candidate)
    courses = [_Course(query, lists) for query, lists in zip(queries, offers, strict=True)]
    for turn in range(max((len(course.turns) for course in courses), default=0)):
        active = [course for course in courses if turn < len(course.turns)]
        scored = scorer.score([course.sentences(turn) for course in active])
        for course, (scores, tokens) in zip(active, scored, strict=True):
            slot = course.turns[turn].slot
            # "llama" keeps these draws apart from the ones that chose the words on offer
            own = row_seed(seed, f"llama {course.query.qid}", candidate, course.query.first, slot.token)
            draw = uniform(np.array([own], np.uint64), 0)
            course.take(turn, choose(scores, temperature, float(draw[0])), tokens)
    for course in courses:
        yield from course.fills()


def choose(scores: Scores, temperature: float, draw: float) -> int | None:
    """The place of the best score, or at a temperature the one that `draw` in [0, 1) falls on; None without scores."""
    if not np.isfinite(scores).all():
        return None
    if temperature == 0:
        return int(scores.argmax())
    with np.errstate(over="ignore"):  # the coldest temperatures: e to the minus infinity is 0
        mass = np.cumsum(np.exp((scores - scores.max()) / temperature))
    return min(int(np.searchsorted(mass, draw * mass[-1], side="right")), len(mass) - 1)


@dataclass(frozen=True)
class _Turn:
    """A slot to fill, the level that it enters at and its words on offer."""

    level: int
    slot: Slot
    words: tuple[str, ...]


class _Course:
    """One query on its way: `turns` are its slots in the order of filling, `chosen` the words so far, by token."""

    def __init__(self, query: MaskedQuery, offers: Sequence[tuple[str, ...]]) -> None:
        self.query = query
        self.turns: list[_Turn] = []
        self.chosen: dict[int, str] = {}
        self.problems: dict[int, str] = {}
        self.tokens = dict.fromkeys(range(query.first, query.first + len(query.levels)), 0)
        offered = {slot.token: words for slot, words in zip(query.levels[-1], offers, strict=True)}
        known: set[int] = set()
        for level, slots in enumerate(query.levels, query.first):
            empty = next((slot for slot in slots if not offered[slot.token]), None)
            if empty:
                self.problems[level] = f"no other {empty.primitive} than {empty.word!r} in the training split"
            else:
                self.turns += [_Turn(level, s, offered[s.token]) for s in slots if s.token not in known]
                known.update(slot.token for slot in slots)

    def sentences(self, turn: int) -> list[str]:
        """The query with each word of a turn in its slot, one sentence a word."""
        slot = self.turns[turn].slot
        return [render(self.query.tokens, self._placed({slot.token: word})) for word in self.turns[turn].words]

    def take(self, turn: int, place: int | None, tokens: int) -> None:
        """Put the word at `place` into the turn's slot; None ends the course, all levels from here on fail."""
        level, slot, words = self.turns[turn].level, self.turns[turn].slot, self.turns[turn].words
        self.tokens[level] += tokens
        if place is None:
            problem = f"the model gives no finite likelihood to the words for {slot.word!r}"
            self.problems |= dict.fromkeys((later for later in self.tokens if later >= level), problem)
            del self.turns[turn:]
        else:
            self.chosen[slot.token] = words[place]

    def fills(self) -> Iterator[Fill]:
        """The fill of each level, or its problem."""
        for level, slots in enumerate(self.query.levels, self.query.first):
            problem = self.problems.get(level, "")
            words = () if problem else tuple(self.chosen[slot.token] for slot in slots)
            yield Fill(self.query.qid, level, words, problem, prompt_tokens=self.tokens[level])

    def _placed(self, more: dict[int, str]) -> dict[int, str]:
        """The words by token, as they stand in the text."""
        slots = {slot.token: slot for slot in self.query.levels[-1]}
        return {token: slots[token].surface(word) for token, word in (self.chosen | more).items()}


@dataclass
class _Row:
    """A row of a batch: tokens that a slot's words share, then for each word what follows, side by side.

    `branches` says whose a token is (0: all words', n: the n-th word's); the token at `sources[i]` foretells
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
        """Append what follows for one word; its last token is foretold but never read."""
        start, more = len(self.ids), len(rest) - 1
        behind = self.cached + self.shared
        self.ids += rest[:-1]
        self.branches += [self.branches[-1] + 1] * more
        self.positions += range(behind, behind + more)
        self.sources += [self.shared - 1, *range(start, start + more)]
        self.targets += rest
        self.words += [word] * len(rest)


def _rows(texts: list[list[int]], prompt: list[int], first: int) -> list[_Row]:
    """The rows of one slot, whose words have the numbers `first`, `first + 1`, …; none for a word without a rival."""
    common = _common(texts)
    cached = min(_common([texts[0], prompt]), common - 1, len(prompt) - 1)
    rows: list[_Row] = []
    for word, text in enumerate(texts, first):
        rest = text[common:]
        if rest and (not rows or len(rows[-1].ids) + len(rest) > ROW_TOKENS):
            shared = text[cached:common]
            rows.append(_Row(cached, len(shared), [*shared], [0] * len(shared), [*range(cached, common)]))
        if rest:
            rows[-1].add(word, rest)
    return rows


def _common(texts: list[list[int]]) -> int:
    """How many tokens the texts share at their beginning."""
    columns = enumerate(zip(*texts, strict=False))
    return next((place for place, ids in columns if len(set(ids)) > 1), min(map(len, texts)))


class _PromptCache:
    """What transformers' attention asks of a cache: the prompt's keys and values, in front of each row's own.

    Unlike a `DynamicCache` it keeps nothing of the rows: a layer's keys and values are let go once it has run.
    """

    def __init__(self, layers: "list[tuple[Tensor, Tensor]]") -> None:
        self.layers = layers  # (1, heads, tokens, head dimension) each

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.layers[layer_idx][0].shape[-2])

    def update(self, keys: "Tensor", values: "Tensor", layer_idx: int, *_: Any, **__: Any) -> "tuple[Tensor, Tensor]":
        """Keys and values (rows, heads, prompt + row, head dimension) of a layer."""
        import torch

        prompt = (part.expand(len(keys), -1, -1, -1) for part in self.layers[layer_idx])
        first, second = (torch.cat(pair, dim=-2) for pair in zip(prompt, (keys, values), strict=True))
        return first, second


class WordScorer:
    """Log-probabilities of sentences that differ in a word, under a causal transformer of the hub."""

    def __init__(self, model: Any, tokenizer: Any, prompt: Prompt, batch_tokens: int) -> None:
        import torch
        from transformers import DynamicCache

        self.model, self.tokenizer, self.prompt, self.batch_tokens = model, tokenizer, prompt, batch_tokens
        self.base, self.head = model.base_model, model.get_output_embeddings()
        self.device: device = model.device
        self.begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.static = [self.begin, *self._tokenize([prompt.static])[0]]
        with torch.inference_mode():
            cache: Any = DynamicCache()
            ids = torch.tensor([self.static], device=self.device)
            hidden = self.base(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
            self._check(self.head(hidden), model(input_ids=ids).logits)
            self.layers = [(layer.keys, layer.values) for layer in cache.layers]

    def score(self, choices: Sequence[Sequence[str]]) -> list[tuple[Scores, int]]:
        """For each choice between sentences their scores, equal up to one constant to log P(sentence | prompt).

        With them the number of tokens read for the choice: what its sentences share once, and the rest of each.
        """
        texts = self._texts([sentence for choice in choices for sentence in choice])
        rows, tokens, first = [], [], 0
        for choice in choices:
            made = _rows(texts[first : first + len(choice)], self.static, first)
            tokens.append(sum(len(row.ids) for row in made) - sum(row.shared for row in made[1:]))
            rows += made
            first += len(choice)
        scores = self._scores(rows, len(texts))
        edges = np.cumsum([len(choice) for choice in choices])[:-1]
        return list(zip(np.split(scores, edges), tokens, strict=True)) if choices else []

    def _texts(self, sentences: list[str]) -> list[list[int]]:
        """The tokens of prompt, sentence and sentence's end."""
        filled = [f"{self.prompt.static}\n{self.prompt.fill(sentence=sentence)}" for sentence in sentences]
        return [[self.begin, *ids, self.tokenizer.eos_token_id] for ids in self._tokenize(filled)]

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return ids

    def _check(self, ours: "Tensor", own: "Tensor") -> None:
        """Models that do more to their scores than a linear layer (soft caps, scales) would be scored wrong."""
        import torch

        if not torch.allclose(ours.float(), own.float(), rtol=0.02, atol=0.1):
            kind = self.model.config.model_type
            raise LlamaError(f"models of type {kind!r} can't be scored by their output layer: choose a Llama")

    def _scores(self, rows: list[_Row], words: int) -> Scores:
        """The scores (words) from all rows, run in batches of about the same length."""
        import torch

        rows = sorted(rows, key=lambda row: (row.cached, -len(row.ids)))
        log_probabilities: list[
            Tensor
        ] = []  # left on the device until the last batch is on its way, so that it never waits
        with torch.inference_mode():
            for _, same in groupby(rows, key=lambda row: row.cached):
                for batch in self._batches(list(same)):
                    try:
                        log_probabilities.append(self._run(batch))
                    except torch.OutOfMemoryError:
                        raise LlamaError(
                            f"the device's memory is too small for {self.batch_tokens} tokens at once: "
                            "set filling.llama.batch_tokens lower"
                        ) from None
        scores = np.zeros(words)
        if log_probabilities:
            np.add.at(
                scores,
                [word for row in rows for word in row.words],
                torch.cat(log_probabilities).cpu().double().numpy(),
            )
        return scores

    def _batches(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        """Rows from the longest to the shortest, as many at once as the tokens allow when padded; at least one."""
        start = 0
        while start < len(rows):
            count = max(1, self.batch_tokens // len(rows[start].ids))
            yield rows[start : start + count]
            start += count

    def _run(self, rows: list[_Row]) -> "Tensor":
        """Log-probability of each target of each row, one after the other."""
        import torch

        width = len(rows[0].ids)
        cached = rows[0].cached
        branches = self._padded([row.branches for row in rows], width, -1)
        hidden = self.base(
            input_ids=self._padded([row.ids for row in rows], width, 0),
            position_ids=self._padded([row.positions for row in rows], width, 0),
            attention_mask=self._mask(branches, cached),
            past_key_values=_PromptCache(
                [(keys[:, :, :cached], values[:, :, :cached]) for keys, values in self.layers]
            ),
            use_cache=True,
        ).last_hidden_state.flatten(0, 1)  # (rows * width, hidden)
        sources = np.concatenate([np.array(row.sources) + i * width for i, row in enumerate(rows)])
        targets = torch.tensor([target for row in rows for target in row.targets], device=self.device)
        needed, which = np.unique(sources, return_inverse=True)
        return self._log_probabilities(hidden[torch.from_numpy(needed).to(self.device)], which, targets)

    def _log_probabilities(self, hidden: "Tensor", which: NDArray[np.intp], targets: "Tensor") -> "Tensor":
        """Log-softmax in float32 of `targets[i]` after state `hidden[which[i]]` (states, hidden), some at a time."""
        import torch

        step = max(1, LOGITS // int(self.model.config.vocab_size))
        log_probabilities = torch.empty(len(which), device=self.device)
        for start in range(0, len(hidden), step):
            some = np.flatnonzero((which >= start) & (which < start + step))
            here = torch.from_numpy(some).to(self.device)
            states = torch.from_numpy(which[some] - start).to(self.device)
            logits = self.head(hidden[start : start + step]).float()
            log_probabilities[here] = logits[states, targets[here]] - logits.logsumexp(dim=-1)[states]
        return log_probabilities

    def _mask(self, branches: "Tensor", cached: int) -> "Tensor":
        """What each token may look at (rows, 1, width, cached + width): 0, or a number so low that softmax gives 0.

        All see the prompt; in the row, what came before if it is shared or of the same word. Padding sees padding.
        """
        import torch

        rows, width = branches.shape
        earlier = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        seen = earlier & ((branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None]))
        mask = torch.zeros(rows, 1, width, cached + width, dtype=self.model.dtype, device=self.device)
        mask[:, 0, :, cached:].masked_fill_(~seen, torch.finfo(self.model.dtype).min)
        return mask

    def _padded(self, lists: list[list[int]], width: int, padding: int) -> "Tensor":
        """Lists of different length as one tensor (lists, width), filled up on the right."""
        import torch

        padded = np.full((len(lists), width), padding, dtype=np.int64)
        for i, values in enumerate(lists):
            padded[i, : len(values)] = values
        return torch.from_numpy(padded).to(self.device)


def load(settings: Llama) -> tuple[Any, Any]:
    """Model and tokenizer, from a folder without asking any hub; raises `LlamaError` with the remedy."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = _device(settings.device)
    wanted = settings.dtype if settings.dtype != "auto" else "bfloat16" if where.type == "cuda" else "float32"
    local = Path(settings.model).is_dir()
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=local, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            settings.model,
            dtype=getattr(torch, wanted),
            use_safetensors=True,
            local_files_only=local,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise LlamaError(_why_not(settings.model, local, error)) from None
    model, report = loaded
    if report["missing_keys"]:  # transformers would go on with random numbers in their place
        raise LlamaError(f"model {settings.model!r} lacks weights, {len(report['missing_keys'])} of them: load it anew")
    if tokenizer.eos_token_id is None:
        raise LlamaError(f"model {settings.model!r} has no token for a text's end: choose another")
    try:
        return model.eval().to(where), tokenizer
    except torch.OutOfMemoryError:
        raise LlamaError(f"model {settings.model!r} does not fit into the memory of {where}") from None


def _why_not(model: str, local: bool, error: Exception) -> str:
    """One line; the hub's own message stays out, for it is long and may quote what was sent."""
    if local:
        return (
            f"folder {model!r} can't be loaded as a language model ({type(error).__name__}): it needs config.json, "
            "a tokenizer and weights as *.safetensors that transformers reads without code of the model's own"
        )
    return (
        f"language model {model!r} can't be loaded ({type(error).__name__}): give a local folder with "
        f"filling.llama.model=…, or download it first with `hf download {model}` "
        "(a gated model needs its licence accepted and HF_TOKEN set)"
    )


def _device(name: str) -> "device":
    """The device of a setting, tried out."""
    import torch

    try:
        return torch.empty(0, device=device_of(name)).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise LlamaError(
            f"there is no device {name!r} here: filling.llama.device=auto takes a GPU if there is one, else the CPU"
        ) from None


def answering_model(name: str, model: Any) -> str:
    """Which weights answer: the hub's name with its commit, or a folder's name with a digest of its files."""
    folder = Path(name)
    if folder.is_dir():
        return f"{folder.resolve().name}@{file_digest(folder)[:12]}"
    commit = getattr(model.config, "_commit_hash", None)
    return f"{name}@{commit}" if commit else name
