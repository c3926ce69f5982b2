"""Provider `llama` with a tiny real Llama: scores as the model's own forward pass, whatever is shared and batched."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot
from penumbra.tasks.negatives.providers.llama import LlamaProvider, WordScorer, choose, load, weights_name
from penumbra.tasks.negatives.providers.questions import Prompt, load_prompt
from penumbra.tasks.negatives.providers.settings import Llama
from tests.tiny_llama import END, build

pytestmark = pytest.mark.slow

PROMPT = load_prompt("sentence-1", "sentence")
WORDS = {
    "verb": ("closes", "takes", "throws", "holds", "extraordinarily", "opens"),
    "noun": ("door", "window", "pillow", "refrigerator", "cup"),
    "adjective": ("red", "green"),
    "preposition": ("on", "under", "throughout"),
}
TEXTS = (
    "Opens|verb the door|noun.",
    "person|noun puts|verb the red|adjective cup|noun on|preposition the table|noun.",
    "a man takes|verb the pillow|noun under|preposition it",
    "person throws|verb a box|noun in|preposition the green|adjective room|noun of a house, then opens|verb a window.",
)


class Lists:
    """Offers each slot its class's words in another order a candidate, and nothing where `nothing` says so."""

    def __init__(self, nothing: Sequence[str] = ()) -> None:
        self.nothing, self.seed = nothing, 0

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[list[tuple[str, ...]]]:
        return [[self._words(slot, candidate) for slot in query.levels[-1]] for query in queries]

    def _words(self, slot: Slot, candidate: int) -> tuple[str, ...]:
        words = [word for word in WORDS[slot.primitive] if word != slot.word.lower()]
        return () if slot.word in self.nothing else (*words[candidate:], *words[:candidate])


def masked(qid: str, text: str) -> MaskedQuery:
    """A query from words and `word|class`; the levels take a third, two thirds and all of the slots from the right."""
    parts = text.split()
    words = [part.partition("|")[0] for part in parts]
    found = [part.partition("|")[2].rstrip(".") for part in parts]
    tokens = [{"text": word, "space_after": True} for word in words]
    slots = [Slot(i, cls, "", words[i], words[i]) for i, cls in enumerate(found) if cls]
    counts = [max(1, len(slots) * level // 3) for level in (1, 2, 3)]
    return MaskedQuery(qid, tokens, tuple(tuple(slots[-count:]) for count in counts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def queries() -> list[MaskedQuery]:
    return [masked(f"q{i}", TEXTS[i % len(TEXTS)]) for i in range(12)]


@pytest.fixture(scope="module")
def scorer(folder: Path) -> WordScorer:
    return WordScorer(*load(str(folder), "cpu"), PROMPT)


def provider(
    folder: Path, lists: Lists | None = None, seed: int = 0, temperature: float = 1.0, device: str = "cpu"
) -> LlamaProvider:
    lists = lists or Lists()
    lists.seed = seed
    return LlamaProvider(lists, str(folder), device, PROMPT, temperature)  # type: ignore[arg-type]


def by_place(fills: Iterator[Fill]) -> dict[tuple[str, int], list[Fill]]:
    found: dict[tuple[str, int], list[Fill]] = {}
    for fill in fills:
        found.setdefault((fill.qid, fill.level), []).append(fill)
    return found


def naive(scorer: WordScorer, sentence: str, prompt: Prompt = PROMPT) -> float:
    """log P(prompt and sentence) by one plain forward pass over everything."""
    text = f"{prompt.static}\n{prompt.fill(sentence=sentence)}"
    ids = torch.tensor([scorer.tokenizer(f"<|begin_of_text|>{text}{END}", add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        logits = scorer.model(input_ids=ids, use_cache=False).logits.double()
    return float(logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).sum())


def choices() -> list[list[str]]:
    """Sentences that differ at the beginning, in the middle and at the end, in words of one token and of many."""
    return [
        ["Opens the door.", "Extraordinarily the door.", "Closes the door."],
        ["person puts the cup on it.", "person puts the refrigerator on it.", "person puts the cups on it."],
        ["a man takes the pillow", "a man takes the pillows", "a man takes the pill"],
        ["no rival"],
        [f"a long way to the {word} and " + "then again " * 20 for word in WORDS["noun"]],
    ]


def test_scores_are_those_of_a_plain_forward_pass(scorer: WordScorer) -> None:
    for sentences, (scores, _) in zip(choices(), scorer.score(choices()), strict=True):
        expected = np.array([naive(scorer, sentence) for sentence in sentences])
        np.testing.assert_allclose(scores - scores[0], expected - expected[0], atol=1e-4)


@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_scores_do_not_depend_on_the_batch(scorer: WordScorer, batch_tokens: int) -> None:
    other = WordScorer(scorer.model, scorer.tokenizer, PROMPT)
    other.batch_tokens = batch_tokens
    together = scorer.score(choices())
    alone = [other.score([sentences])[0] for sentences in reversed(choices())][::-1]
    for (first, tokens), (second, same_tokens) in zip(together, alone, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-4)
        assert tokens == same_tokens


@pytest.mark.parametrize("template", ["$sentence", "She said: $sentence Is it true?", "$sentence\n"])
@pytest.mark.parametrize("static", ["", "One", "What someone does: "])
def test_any_prompt_will_do(scorer: WordScorer, static: str, template: str) -> None:
    prompt = Prompt("any", static, template)
    other = WordScorer(scorer.model, scorer.tokenizer, prompt)
    for sentences, (scores, _) in zip(choices()[:3], other.score(choices()[:3]), strict=True):
        expected = np.array([naive(scorer, sentence, prompt) for sentence in sentences])
        np.testing.assert_allclose(scores - scores[0], expected - expected[0], atol=1e-4)


def test_every_fill_is_on_offer_and_keeps_the_level_before(folder: Path, queries: list[MaskedQuery]) -> None:
    filled = by_place(provider(folder).fill(queries, 3))
    assert filled.keys() == {(query.qid, level) for query in queries for level in (1, 2, 3)}
    for query in queries:
        for candidate in range(3):
            kept: dict[int, str] = {}
            for level, slots in enumerate(query.levels, 1):
                fill = filled[query.qid, level][candidate]
                words = dict(zip((slot.token for slot in slots), fill.words, strict=True))
                assert all(word in WORDS[slot.primitive] for slot, word in zip(slots, fill.words, strict=True))
                assert kept.items() <= words.items() or kept.keys() == words.keys()
                assert (fill.attempts, fill.completion_tokens, fill.cost_usd, fill.problem) == (1, 0, 0.0, "")
                kept = words
    assert all(fill.prompt_tokens for query in queries for fill in filled[query.qid, 1])


def test_at_temperature_0_each_slot_takes_the_likeliest_word_in_its_context(
    folder: Path, scorer: WordScorer, queries: list[MaskedQuery]
) -> None:
    """Step by step by hand: level 1's slots first, later slots hold their own words."""
    filled = by_place(provider(folder, temperature=0).fill(queries[:4], 1))
    for query in queries[:4]:
        words = [token["text"] for token in query.tokens]
        done: set[int] = set()
        for level, slots in enumerate(query.levels, 1):
            for slot in slots:
                if slot.token in done:
                    continue
                done.add(slot.token)
                upper = slot.word[0].isupper()
                offered = [w.capitalize() if upper else w for w in WORDS[slot.primitive] if w != slot.word.lower()]
                texts = [" ".join([*words[: slot.token], word, *words[slot.token + 1 :]]) for word in offered]
                words[slot.token] = offered[int(np.argmax([naive(scorer, text) for text in texts]))]
            assert filled[query.qid, level][0].words == tuple(words[slot.token].lower() for slot in slots)


def test_the_same_seed_gives_the_same_fills_whatever_the_chunk(folder: Path, queries: list[MaskedQuery]) -> None:
    together = by_place(provider(folder, seed=3).fill(queries, 2))
    small = provider(folder, seed=3)
    small.scorer.batch_tokens = 50
    alone: dict[tuple[str, int], list[Fill]] = {}
    for query in reversed(queries):
        alone |= by_place(small.fill([query], 2))
    assert alone == together
    assert by_place(provider(folder, seed=4).fill(queries, 2)) != together


def test_a_choice_follows_its_draw() -> None:
    scores = np.log([0.5, 0.25, 0.25])
    assert [choose(scores, 1.0, draw) for draw in (0.0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-53)] == [0, 0, 1, 1, 2, 2]
    assert choose(scores, 0, 0.99) == choose(scores, 1e-300, 0.99) == 0
    assert choose(np.array([0.0, np.nan]), 1.0, 0.5) is None


def test_an_empty_offer_fails_its_levels_with_the_reason(folder: Path, queries: list[MaskedQuery]) -> None:
    """`pillow` enters at level 2 of the third query, `puts` at level 3 of the second."""
    filled = by_place(provider(folder, Lists(nothing=["pillow", "puts"])).fill(queries[:4], 2))
    failed = {place for place, fills in filled.items() if any(fill.problem for fill in fills)}
    assert failed == {("q2", 2), ("q2", 3), ("q1", 3)}
    assert {fill.problem for place in failed for fill in filled[place]} == {
        "no other noun than 'pillow' in the training split",
        "no other verb than 'puts' in the training split",
    }
    assert all(not fill.words for place in failed for fill in filled[place])
    assert all(fill.words for place in filled.keys() - failed for fill in filled[place])


def test_a_model_without_finite_scores_fails_instead_of_choosing(folder: Path, queries: list[MaskedQuery]) -> None:
    broken = provider(folder)
    with torch.no_grad():
        broken.scorer.model.get_output_embeddings().weight.fill_(float("nan"))
    for fill in broken.fill(queries[:4], 1):
        assert fill.problem.startswith("the model gives no finite likelihood")
        assert not fill.words


def test_the_model_column_names_the_weights(folder: Path, tmp_path: Path) -> None:
    first = provider(folder)
    assert first.model.startswith("tiny@")
    assert len(first.model) == len("tiny@") + 12
    assert first.prompt.startswith("sentence-1@")
    assert provider(build(tmp_path / "tiny", seed=1)).model != first.model
    hub = SimpleNamespace(config=SimpleNamespace(_commit_hash="0a1b2c"))
    assert weights_name("some/model", hub) == "some/model@0a1b2c"


def test_what_determines_the_fills_is_not_how_they_are_computed(folder: Path, tmp_path: Path) -> None:
    shared, settings = Filling(), Llama(model=str(folder))
    assert settings.determines(shared) == Llama(model=str(folder), device="cuda").determines(shared)
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / folder.name))
    assert settings.determines(shared) == Llama(model=str(moved)).determines(shared)
    other = build(tmp_path / folder.name, seed=1)
    assert settings.determines(shared) != Llama(model=str(other)).determines(shared)
    assert settings.determines(shared) != Llama(model=str(folder), temperature=0).determines(shared)


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
        provider(copy)
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)


def _resize(folder: Path, **changes: int) -> None:
    """Say in the configuration that the model has another shape than its weights."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _pickled(folder: Path) -> None:
    """Weights as a pickle, which is never read."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_model_of_the_hub_without_a_network_names_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_seen")
    with pytest.raises(PenumbraError) as caught:
        LlamaProvider(Lists(), Llama().model, "cpu", PROMPT, 1.0)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert "hf_not_to_be_seen" not in message
    for part in ("meta-llama/Meta-Llama-3-8B-Instruct", "filling.llama.model", "hf download", "HF_TOKEN"):
        assert part in message


@pytest.mark.parametrize("device", ["nonsense", "cuda:77"])
def test_a_device_that_is_not_there_is_one_line(folder: Path, device: str) -> None:
    with pytest.raises(PenumbraError, match="no device"):
        provider(folder, device=device)
