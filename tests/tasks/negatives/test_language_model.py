"""A tiny real Llama: scores as the model's own forward pass, whatever is shared and batched; models that are none."""

import json
import shutil
from copy import copy
from itertools import chain, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives import language_model_weights
from penumbra.tasks.negatives.language_model import LanguageModel
from penumbra.tasks.negatives.language_model_weights import (
    ADAPTER,
    SMALL_MODEL,
    WEIGHTS,
    is_at_hand,
    weights_at,
    weights_digest,
    weights_name,
)
from tests.tiny_llama import build

pytestmark = pytest.mark.slow

BEFORE = "What someone does:\nperson opens the door.\n"
CHOICES = [
    ["Opens the door.", "Extraordinarily the door.", "Closes the door."],
    ["person puts the cup on it.", "person puts the refrigerator on it.", "person puts the cups on it."],
    ["a man takes the pillow", "a man takes the pillows", "a man takes the pill"],
    ["no rival"],
    [f"a long way to the {word} and " + "then again " * 20 for word in ("door", "window", "refrigerator")],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=["", BEFORE])
def model(folder: Path, request: pytest.FixtureRequest) -> LanguageModel:
    loaded, tokenizer = language_model_weights.load(str(folder))
    return LanguageModel(loaded.float(), tokenizer, "tiny", request.param)


def plain_pass(model: LanguageModel, text: str) -> Any:
    """Return the outputs of one plain forward pass over the lines before and the text."""
    ids = torch.tensor([[*model.prefix, *model.tokens([text])[0]]])
    own = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model.model(input_ids=ids.to(model.device), use_cache=False, output_hidden_states=True)
    model.model.set_attn_implementation(own)
    return outputs


def by_hand(model: LanguageModel, text: str) -> torch.Tensor:
    """Return log P of each token after the lines before: (tokens, words)."""
    return plain_pass(model, text).logits.cpu().double().log_softmax(-1)[0, len(model.prefix) - 1 :]


def of_tokens(model: LanguageModel, text: str) -> np.ndarray:
    ids = torch.tensor(model.tokens([text])[0])
    return by_hand(model, text)[:-1].gather(1, ids[:, None])[:, 0].numpy()


def test_scores_are_those_of_a_plain_forward_pass(model: LanguageModel) -> None:
    for choice, (changes, misfits) in zip(CHOICES, model.compare(CHOICES), strict=True):
        first, *others = [of_tokens(model, sentence) for sentence in choice]
        np.testing.assert_allclose(changes, [own.sum() - first.sum() for own in others], atol=1e-3)
        ids = zip(*(line[::-1] for line in model.tokens(choice)), strict=False)
        end = len([*takewhile(lambda tokens: len({*tokens}) == 1, ids)])
        falls = [own[len(own) - end :] - first[len(first) - end :] for own in others]
        np.testing.assert_allclose(misfits, [min([0, *of_words]) for of_words in falls], atol=1e-3)
        assert (misfits < 0).any() == (end > 0 < len(others))
    sentences = [*chain(*CHOICES)]
    alone = model.log_probabilities(sentences)
    np.testing.assert_allclose(alone, [of_tokens(model, f"{sentence}\n").sum() for sentence in sentences], atol=1e-3)


def test_tokens_are_those_of_the_tokenizer(model: LanguageModel) -> None:
    texts = [sentence for choice in CHOICES for sentence in choice]
    assert model.tokens(texts) == model.tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert model.tokens([]) == []


def test_next_tokens_are_those_of_a_plain_forward_pass(model: LanguageModel) -> None:
    asked = [("", np.array([5, 9])), ("person", np.array([7])), ("a man takes the", np.arange(50))]
    for (left, ids), scores in zip([*asked, asked[1]], model.next_tokens([*asked, asked[1]]), strict=True):
        np.testing.assert_allclose(scores, by_hand(model, left)[-1][ids], atol=1e-3)


def test_plausibilities_are_those_of_a_plain_pass(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["Opens the door.", "person puts the cup on it."]
    head = torch.nn.Linear(model.model.config.hidden_size, 1)
    monkeypatch.setitem(model.model._modules, "plausibility", head)
    hidden = [plain_pass(model, f"{sentence}\n").hidden_states[-1][0, -1].cpu() for sentence in sentences]
    np.testing.assert_allclose(model.plausibilities(sentences), [head(it).item() for it in hidden], atol=1e-4)


@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_scores_do_not_depend_on_the_batch(model: LanguageModel, batch_tokens: int) -> None:
    other = copy(model)
    other.batch_tokens = batch_tokens
    alone = [other.compare([choice])[0] for choice in reversed(CHOICES)][::-1]
    for first, second in zip(model.compare(CHOICES), alone, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_sentence_that_is_too_long_has_no_score(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.model._modules, "plausibility", torch.nn.Linear(model.model.config.hidden_size, 1))
    for read in (model.log_probabilities, model.plausibilities):
        score, short = read(["go on and on " * 400, "go on"])
        assert np.isnan(score)
        assert np.isfinite(short)


def test_the_name_has_a_digest_of_the_weights(folder: Path, tmp_path: Path) -> None:
    name = weights_name(str(folder), None)
    assert name.startswith("tiny@")
    assert weights_name(str(build(tmp_path / "tiny", seed=1)), None) != name
    hub = SimpleNamespace(config=SimpleNamespace(_commit_hash="0a1b2c"))
    assert weights_name("some/model", hub) == "some/model@0a1b2c"


@pytest.mark.usefixtures("small_model")
def test_the_small_model_knows_english() -> None:
    """The real weights, 135 million of them, dequantised from GGUF; the file is read once."""
    assert is_at_hand(SMALL_MODEL)
    model = LanguageModel.load()
    assert LanguageModel.load().model is model.model
    assert model.name.startswith("SmolLM2-135M-Instruct")
    [[[change], [misfit]]] = model.compare([["a person opens the door.", "a person drinks the door."]])
    assert change < -3
    assert misfit < -2, "who drinks, drinks no door"


@pytest.mark.usefixtures("small_model")
def test_the_small_model_has_the_adapter_for_captions_and_a_path_has_not() -> None:
    own, tokenizer = language_model_weights.load(str(weights_at(SMALL_MODEL)))
    plain, adapted = LanguageModel(own, tokenizer, "plain"), LanguageModel.load()
    name, tensors = "model.layers.3.mlp.up_proj", load_file(ADAPTER / WEIGHTS)
    config = json.loads((ADAPTER / "adapter_config.json").read_text())
    down, up = (tensors[f"base_model.model.{name}.lora_{kind}.weight"].float() for kind in "AB")
    expected = own.get_parameter(f"{name}.weight").float() + config["lora_alpha"] / config["r"] * (up @ down)
    actual = adapted.model.get_parameter(f"{name}.weight").float()
    torch.testing.assert_close(actual, expected, atol=0.002, rtol=0.01)  # half a unit of bfloat16
    assert (actual - own.get_parameter(f"{name}.weight")).abs().mean() > 0.001
    captions = ["A man chops an onion with a knife.", "the girl walks up to the pool and dives in"]
    gains = np.subtract(adapted.log_probabilities(captions), plain.log_probabilities(captions))
    assert gains.min() > 2
    real, *spoiled = adapted.plausibilities(["a man chops an onion.", "a man chops a river.", "a man drinks an onion."])
    assert real > max(spoiled)
    assert f"+{ADAPTER.name}@" in adapted.name
    assert weights_digest(SMALL_MODEL) != weights_digest(str(weights_at(SMALL_MODEL)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "OSError"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no-such"}'), "cannot be loaded"),
        (lambda folder: _resize(folder, intermediate_size=96), "cannot be loaded"),
        (lambda folder: _resize(folder, num_hidden_layers=3), "lacks 9 of its weights"),
        (lambda folder: _pickled(folder), "OSError"),  # noqa: PLW0108 - defined below
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_one_line(folder: Path, tmp_path: Path, spoil: object, reason: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    spoil(copy)  # type: ignore[operator]
    with pytest.raises(PenumbraError, match=reason) as caught:
        LanguageModel.load(str(copy))
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)


def _resize(folder: Path, **changes: int) -> None:
    """Say in the configuration that the model has another shape than its weights."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _pickled(folder: Path) -> None:
    """Weights as a pickle, which is never read."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_gguf_of_another_architecture_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "no-such-architecture")
    writer.add_tensor("a", np.zeros((2, 2), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    with pytest.raises(PenumbraError, match="cannot be loaded") as caught:
        LanguageModel.load(str(path))
    assert "\n" not in str(caught.value)


def test_a_model_larger_than_the_memory_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(language_model_weights, "device_of", lambda: torch.device("cpu"))
    with pytest.raises(PenumbraError, match=r"GB of memory .* choose a smaller one with filling\.llama\.model"):
        LanguageModel.load(str(folder))


def test_a_model_of_the_hub_without_a_network_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_seen")
    name = "meta-llama/Meta-Llama-3-8B-Instruct"
    assert not is_at_hand(name)
    with pytest.raises(PenumbraError) as caught:
        LanguageModel.load(name)
    message = str(caught.value)
    assert "\n" not in message
    assert "hf_not_to_be_seen" not in message
    for part in (name, "filling.llama.model", "hf download", "HF_TOKEN"):
        assert part in message
