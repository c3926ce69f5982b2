"""How fast provider `llama` scores words, beside plain generation of the three sentences by the same model, as JSON.

    python -m bench.llama [--device cuda] [--shape tiny|8b] [--queries 200] [--words 8]

Queries are those of the shipped scenes, every word but the commonest small ones a slot; the model's weights are random,
made on the device, for speed does not depend on them. It runs where there is nothing but this repository, PyTorch,
transformers and numpy: what else the project imports is stood in for, and never called.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

NEVER_CALLED = (
    "prefect",
    "prefect.artifacts",
    "pyarrow",
    "pydantic",
    "fsspec",
    "spacy",
    "spacy.language",
    "spacy.tokens",
)


class _AnyBase:
    """Stands in for pydantic's BaseModel where there is no pydantic."""


def stand_in() -> list[str]:
    """Put something in the place of the packages that are not installed; gives their names."""
    missing = [name for name in NEVER_CALLED if find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: MagicMock(name=name, BaseModel=_AnyBase) for name in missing})
    return missing


MISSING = stand_in()

from penumbra.tasks.negatives.providers import MaskedQuery, Slot  # noqa: E402
from penumbra.tasks.negatives.providers.llama import WordScorer, fill_slots  # noqa: E402
from penumbra.tasks.negatives.providers.prompts import load_prompt  # noqa: E402
from penumbra.tasks.text.masks import slot_counts  # noqa: E402
from tests import tiny_llama  # noqa: E402

SHAPES = {
    "tiny": {},
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
    },
}
VOCABULARY_8B = 128_256
SMALL = {"a", "an", "the", "is", "are", "and", "while", "then", "another", "person", "."}  # no slots
NEW_TOKENS = 45  # three sentences of about 15
DICTIONARY = 100  # words in the prompt of plain generation
RATIOS = (0.25, 0.5, 0.75)
INSTRUCTIONS = (
    "Below is a description of a moment in a video with some words masked. Write three new descriptions that are false "
    "of the moment: in the first replace a quarter of the words that carry meaning, in the second half of them, in the "
    "third three quarters. Keep all other words and use only these words:"
)


class Words:
    """Offers every slot the same number of words, drawn from all words of the queries."""

    def __init__(self, words: list[str], count: int) -> None:
        self.words, self.count = words, count

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[list[tuple[str, ...]]]:
        draws = np.random.default_rng(candidate)
        return [[self._some(slot, draws) for slot in query.levels[-1]] for query in queries]

    def _some(self, slot: Slot, draws: np.random.Generator) -> tuple[str, ...]:
        others = draws.choice(self.words, self.count + 1, replace=False).tolist()
        return tuple([word for word in others if word != slot.word][: self.count])


def masked_query(number: int, sentence: str) -> MaskedQuery:
    """The sentence with slots at three levels: of the words that are not small ones, from left to right."""
    words = sentence.replace(".", " .").split()
    tokens = [{"text": word, "space_after": after != "."} for word, after in zip(words, [*words[1:], "."], strict=True)]
    slots = [Slot(i, "noun", "NN", word, word) for i, word in enumerate(words) if word not in SMALL]
    levels = tuple(tuple(slots[:count]) for count in slot_counts(len(slots), RATIOS))
    return MaskedQuery(f"q{number}", tokens, levels)


def random_model(shape: str, device: str, vocabulary: int) -> Any:
    """A Llama of this shape with random weights, in bfloat16 on a GPU and float32 on the CPU."""
    from transformers import LlamaForCausalLM

    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device.startswith("cuda") else torch.float32)
    try:
        with torch.device(device):
            torch.manual_seed(0)
            model: Any = LlamaForCausalLM(tiny_llama.config(vocabulary, **SHAPES[shape]))
            return model.eval()
    finally:
        torch.set_default_dtype(usual)


def generate(model: Any, tokenizer: Any, sentences: list[str], words: list[str], batch: int) -> int:
    """Three sentences for every query in the plain way, as many queries at once as `batch`; gives the tokens read."""
    head = f"{INSTRUCTIONS} {', '.join(words)}.\n"
    read = 0
    for start in range(0, len(sentences), batch):
        prompts = [f"{head}{sentence}\n" for sentence in sentences[start : start + batch]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
        read += int(inputs["attention_mask"].sum())
        with torch.inference_mode():
            made = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=False,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
            )
        if made.shape[1] != inputs["input_ids"].shape[1] + NEW_TOKENS:
            raise RuntimeError(f"generate gave {made.shape}")
    return read


def timed(device: str, work: Callable[[], Any]) -> tuple[float, float | None, Any]:
    """Seconds, the GPU memory at its highest in GB, and what the work gave."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if device.startswith("cuda") else None, result


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Score and generate for the same queries with the same model."""
    sentences = list(dict.fromkeys(tiny_llama.scene_sentences()))[: options.queries]
    queries = [masked_query(i, sentence) for i, sentence in enumerate(sentences)]
    content = sorted({slot.word for query in queries for slot in query.levels[-1]})
    tokenizer = tiny_llama.tokenizer(sentences, vocabulary=2000)
    vocabulary = VOCABULARY_8B if options.shape == "8b" else len(tokenizer)
    model = random_model(options.shape, options.device, vocabulary)
    scorer = WordScorer(model, tokenizer, load_prompt("sentence-1", "sentence"), options.batch_tokens)
    lists = Words(content, options.words)

    def score() -> list[Any]:
        return list(fill_slots(scorer, lists, queries, 0, 1.0, 0))

    def write() -> int:
        return generate(model, tokenizer, sentences, content[:DICTIONARY], options.generate_batch)

    _ = score(), generate(model, tokenizer, sentences[: options.generate_batch], content[:DICTIONARY], 10**6)  # warm up
    seconds, memory, fills = timed(options.device, score)
    plain_seconds, plain_memory, read = timed(options.device, write)
    candidates = sum(len(words) for query in lists.draw(queries, 0) for words in query)
    tokens = sum(fill.prompt_tokens for fill in fills)
    return {
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "shape": options.shape,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "software": {"torch": torch.__version__, "transformers": _version("transformers")},
        "stood_in_for": MISSING,
        "queries": len(queries),
        "scoring": {
            "batch_tokens": options.batch_tokens,
            "slots": sum(len(query.levels[-1]) for query in queries),
            "candidates": candidates,
            "failed": sum(bool(fill.problem) for fill in fills),
            "tokens_read": tokens,
            "seconds": round(seconds, 3),
            "candidates_per_second": round(candidates / seconds, 1),
            "tokens_per_second": round(tokens / seconds),
            "queries_per_second": round(len(queries) / seconds, 2),
            "gpu_memory_gb": memory and round(memory, 2),
        },
        "generating": {
            "batch": options.generate_batch,
            "tokens_read": read,
            "tokens_written": NEW_TOKENS * len(queries),
            "seconds": round(plain_seconds, 3),
            "queries_per_second": round(len(queries) / plain_seconds, 2),
            "gpu_memory_gb": plain_memory and round(plain_memory, 2),
        },
        "times_faster": round(plain_seconds / seconds, 2),
    }


def _version(name: str) -> str:
    module: ModuleType = __import__(name)
    return str(module.__version__)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--words", type=int, default=8, help="words on offer a slot")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--generate-batch", type=int, default=128, help="queries generated at once")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's own choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    sys.stdout.write(json.dumps(measure(options), indent=1) + "\n")


if __name__ == "__main__":
    main()
