"""The tiny CLIP's tokenizer: byte-level pair encoding as CLIP has it, with the pairs that its own sentences need."""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
POSITIONS = 77


def train_tokenizer(sentences: Iterable[str], size: int) -> Any:
    """A `CLIPTokenizer` of at most `size` tokens: all bytes, alone and at the end of a word, then common pairs."""
    alphabet = ByteLevel.alphabet()
    pattern = CLIPTokenizer().backend_tokenizer
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix=""))
    learner.normalizer, learner.pre_tokenizer = pattern.normalizer, pattern.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False, min_frequency=2
    )
    learner.train_from_iterator(sentences, trainer)
    learned = learner.get_vocab()
    letters = sorted(alphabet)
    merges: Any = _merges(learner)
    tokens = [*letters, *(letter + "</w>" for letter in letters)]
    tokens += [token for token, _ in sorted(learned.items(), key=lambda pair: pair[1]) if token not in set(tokens)]
    vocabulary = {token: index for index, token in enumerate([*tokens, START, END])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=POSITIONS)


def _merges(learner: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
