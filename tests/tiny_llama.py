"""A Llama small enough to make in a second: real architecture, real tokenizer, random weights.

The tokenizer is a byte-level BPE as Llama 3's, trained on a few sentences, so some words are one token and others
several. The weights are wide enough apart that words differ in likelihood by whole nats.
"""

from pathlib import Path

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
SENTENCES = (
    "A sentence that describes what someone does in a short home video: a person opens the door.",
    "a woman puts the red cup on the table and closes the window slowly.",
    "person takes a pillow from the bed and throws it under the chair.",
    "a man is running through the room while holding a green box.",
)


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer into `folder`, about half a megabyte of safetensors, and return it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [BEGIN, END, "<|start_header_id|>", "<|end_header_id|>"]
    how = {"vocab_size": 400, "special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    bpe.train_from_iterator(SENTENCES, trainers.BpeTrainer(**how))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BEGIN, eos_token=END, pad_token=END)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, pad_token_id=1, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
