"""A Llama small enough to make in a second: real architecture, real tokenizer, random weights.

    python -m tests.tiny_llama FOLDER

The tokenizer is a byte-level BPE as Llama 3's, trained on a few sentences, so some words are one token and others
several. The weights are wide enough apart that words differ in likelihood by whole nats.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penumbra.artifacts.locations import PROJECT

BEGIN, END, HEADER, HEADER_END = "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"
CHAT_TEMPLATE = (
    "{{ '" + BEGIN + "' }}{% for message in messages %}"
    "{{ '" + HEADER + "' + message['role'] + '" + HEADER_END + "\n\n' + message['content'] + '" + END + "' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '" + HEADER + "assistant" + HEADER_END + "\n\n' }}{% endif %}"
)
SENTENCES = (
    "A sentence that describes what someone does in a short home video: a person opens the door.",
    "a woman puts the red cup on the table and closes the window slowly.",
    "person takes a pillow from the bed and throws it under the chair.",
    "a man is running through the room while holding a green box.",
)


def scene_sentences() -> list[str]:
    """The training queries of the shipped scenes, in the order of their file."""
    videos = json.loads((PROJECT / "tasks" / "sample" / "scenes" / "data" / "train.json").read_text())
    return [sentence for video in videos.values() for sentence in video["sentences"]]


def tokenizer(sentences: Sequence[str] = SENTENCES, vocabulary: int = 400) -> Any:
    """A fast tokenizer with Llama 3's special tokens and a chat template, trained on `sentences`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, HEADER, HEADER_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sentences, trainer)
    fast: Any = PreTrainedTokenizerFast
    made = fast(tokenizer_object=bpe, bos_token=BEGIN, eos_token=END, pad_token=END)
    made.chat_template = CHAT_TEMPLATE
    return made


def config(vocabulary: int, **shape: int) -> Any:
    """A Llama's configuration, tiny unless `shape` says otherwise."""
    from transformers import LlamaConfig

    tiny: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    }
    return LlamaConfig(
        vocab_size=vocabulary, bos_token_id=0, eos_token_id=1, pad_token_id=1, initializer_range=0.2, **(tiny | shape)
    )


def build(folder: Path, seed: int = 0, sentences: Sequence[str] = SENTENCES) -> Path:
    """Write model and tokenizer into `folder`, about half a megabyte of safetensors, and return it."""
    import torch
    from transformers import LlamaForCausalLM

    made = tokenizer(sentences)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config(len(made)))
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
