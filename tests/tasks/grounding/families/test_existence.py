"""The existence head of every family, its false sentences, and the calibration of what each family has without it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penumbra.artifacts.store import Store
from penumbra.models.losses import existence
from penumbra.models.map_losses import mmn_losses
from penumbra.tasks.grounding.evaluation.calibration import TRUE, balanced, best_threshold, fit, read_calibrator
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.training.loop import with_fresh_head
from penumbra.tasks.grounding.training.presets import Settings
from tests.grounding_data import CHANNELS, TINY, data, make_examples, model_of, rows, texts, videos
from tests.rows import build

MAP = {"hidden": 16, "clips": 4, "counts": (3,), "proposal": 16, "joint": 8, "kernel": 3, "layers": 1, "segments": 8}
OF_MODEL: dict[str, dict[str, Any]] = {
    "qd_detr": {**TINY, "losses": {"shine": True}},
    "moment_detr": {**TINY, "losses": {"shine": True}},
    "bm_detr": {**TINY, "alignment": 8, "shifting": True, "losses": {"negatives": "both"}},
    "mmn": {**MAP, "losses": {"shine": True}},
}
TEXTS = {"qd_detr": 5, "moment_detr": 5, "bm_detr": 3, "mmn": 5}  # the query, another video's, its negatives
every_model = pytest.mark.parametrize("name", OF_MODEL)


def settings(name: str, weight: float) -> Settings:
    values = OF_MODEL[name]
    losses = {**values["losses"], **({"existence": weight} if weight else {})}
    return Settings.model_validate({"model": model_of(**{**values, "name": name, "losses": losses})})


@every_model
def test_a_head_is_small_and_off_by_default(name: str) -> None:
    plain, head = (system_of(settings(name, weight)).build(CHANNELS, CHANNELS) for weight in (0.0, 1.0))
    added = head.state_dict().keys() - plain.state_dict().keys()
    assert added
    assert all(key.startswith("existence_head.") for key in added)
    assert sum(head.state_dict()[key].numel() for key in added) < 50
    assert "existence" not in str(settings(name, 0.0).key_parameters())
    assert settings(name, 1.0).key_parameters()["model"]["losses"]["existence"] == 1.0
    assert settings(name, 1.0).model.label.endswith("+existence")


@every_model
def test_a_step_asks_false_texts_and_knows_which_they_are(name: str) -> None:
    system = system_of(settings(name, 1.0))
    torch.manual_seed(0)
    model = system.build(CHANNELS, CHANNELS).train()
    found = system.data(data(12), torch.device("cpu"))
    inputs, targets = found.batch(found.batches(0, 0)[0])
    outputs = model(inputs) if name == "mmn" else model(inputs, negative=True)
    assert len(outputs.existence) == TEXTS[name]
    false = torch.cat([it.false for it in (targets if isinstance(targets, tuple) else (targets,))], 1)
    assert false.shape == outputs.existence[1:].shape
    gradient = torch.autograd.grad(existence(outputs.existence, false), outputs.existence)[0]
    assert ((gradient[1:] != 0) == false).all(), "texts that may be true are left out"
    with torch.no_grad():
        assert len(model.eval()(inputs).existence) == (1 if name == "mmn" else TEXTS[name] - 1), "no text but its own"


def test_mmn_counts_a_tenth_of_the_head_s_loss_and_a_run_s_key_tells_it() -> None:
    system = system_of(settings("mmn", 1.0))
    found, model = system.data(data(12), torch.device("cpu")), system.build(CHANNELS, CHANNELS).train()
    inputs, targets = found.batch(found.batches(0, 0)[0])
    with torch.no_grad():
        losses = mmn_losses(model(inputs), targets, system.config.loss_settings)
        none = mmn_losses(model(inputs), targets, replace(system.config.loss_settings, existence=0.0))
    torch.testing.assert_close(losses.total - none.total, 0.1 * losses.terms["existence"])
    counted = [name for name in OF_MODEL if "existence_counts" in settings(name, 1.0).key_parameters()["model"]]
    assert counted == ["mmn"]


def test_a_query_of_the_same_video_is_no_false_sentence_for_bm_detr() -> None:
    values = {**OF_MODEL["bm_detr"], "name": "bm_detr", "shifting": False}
    kinds = {}
    for kind in ("generated", "in_video"):
        model = model_of(**values | {"losses": {"negatives": kind, "existence": 1.0}})
        chosen = Settings.model_validate({"model": model})
        found: Any = system_of(chosen).data(data(12), torch.device("cpu"))
        kinds[kind] = found.batch(found.batches(0, 0)[0])[1].false[1]
    assert kinds["generated"].all()
    assert not kinds["in_video"].any()


@every_model
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_every_family_has_evidence(name: str, weight: float) -> None:
    torch.manual_seed(0)
    system = system_of(settings(name, weight))
    model = system.build(CHANNELS, CHANNELS).eval()
    examples = data(12)
    predicted = system.predict(model, system.data(examples, torch.device("cpu")))
    alone = system.predict(model, system.data(data(1), torch.device("cpu")))
    assert len(system.evidence) == (1 if weight else {"bm_detr": 3}.get(name, 2))
    assert {one.evidence.shape for one in predicted} == {(len(system.evidence),)}
    np.testing.assert_allclose(alone[0].evidence, predicted[0].evidence, rtol=1e-4, atol=1e-5)
    assert np.isfinite([one.evidence for one in predicted]).all()


def test_true_and_false_sentences_weigh_as_much_as_each_other() -> None:
    logits = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, -10.0]])
    every = existence(logits, torch.ones(2, 2, dtype=torch.bool))
    some = existence(logits, torch.tensor([[False, True], [True, False]]))
    assert float(some) == pytest.approx(np.log(2))
    assert float(every) > float(some)
    assert float(existence(logits[:1], torch.zeros(0, 2, dtype=torch.bool))) == 0


def test_a_sentence_of_another_video_may_be_true_of_this_one() -> None:
    found = rows(3)
    found[1]["query"] = found[0]["query"]  # of another video
    found.append({**found[0], "qid": "q3", "query": "text 2"})
    examples = make_examples(found, {}, videos(), texts(3))
    false = examples.false_texts(np.array([0, 0, 2]), np.array([1, 2, 0]), torch.ones(1, 3, dtype=torch.bool))
    assert false.tolist() == [[False, False, True], [True, True, True]]


def test_a_model_without_a_head_starts_one_with() -> None:
    plain, head = (system_of(settings("qd_detr", weight)).build(CHANNELS, CHANNELS) for weight in (0.0, 1.0))
    weights = with_fresh_head(head, plain.state_dict())
    assert weights.keys() == head.state_dict().keys()
    assert with_fresh_head(plain, plain.state_dict()).keys() == plain.state_dict().keys()
    assert with_fresh_head(head, {"x": torch.ones(1), **head.state_dict()}).keys() == {"x", *head.state_dict()}


@every_model
def test_a_head_learns_which_sentences_are_true(name: str) -> None:
    torch.manual_seed(0)
    system = system_of(settings(name, 20.0))
    model = system.build(CHANNELS, CHANNELS).train()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    found = system.data(data(12), torch.device("cpu"))
    objective, optimiser = system.objective(model), torch.optim.Adam(model.parameters(), 1e-2)
    history = []
    for epoch in range(25):
        for numbers in found.batches(0, epoch):
            total, terms = objective(found.batch(numbers))
            total.backward()
            optimiser.step()
            optimiser.zero_grad()
            history.append(float(terms["existence"]))
    assert np.mean(history[-10:]) < 0.7 * np.mean(history[:2])


def test_calibrated_existence_is_the_share_of_true_sentences() -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(0, 2, 20_000)
    true = draws.random(len(logits)) < 1 / (1 + np.exp(-logits))
    kinds = [TRUE if it else ("another video" if n % 2 else "level 1") for n, it in enumerate(true)]
    fitted = fit(np.stack([3 * logits + 7, draws.normal(size=len(logits))], axis=1), kinds)
    found = fitted.existence(np.stack([3 * logits + 7, np.zeros(len(logits))], axis=1))
    for low in (0.1, 0.3, 0.5, 0.7):
        within = (found >= low) & (found < low + 0.2)
        assert true[within].mean() == pytest.approx(found[within].mean(), abs=0.03)
    assert fitted.threshold == pytest.approx(0.5, abs=0.06)
    assert abs(fitted.weights[1]) < 0.05


@pytest.mark.parametrize(("count", "is_chance"), [(10, True), (100, False)])
def test_an_area_that_a_few_sentences_have_by_chance_is_named_so(store: Store, count: int, is_chance: bool) -> None:
    values = {"a": 1.0, "bias": 0.0, "threshold": 0.4, "AUROC": 0.65}
    values |= {"true sentences": count, "level 1 sentences": count}
    rows = [{"run": "r", "name": name, "value": float(value)} for name, value in values.items()]
    calibrator, words = read_calibrator(build(store, "calibration", rows, parameters={"evidence": ["a"]}))
    assert calibrator.is_chance == is_chance
    assert ("may be chance" in words) == is_chance


def test_the_threshold_has_the_highest_weighted_accuracy() -> None:
    values, true = np.array([0.1, 0.2, 0.3, 0.8, 0.9]), np.array([False, True, False, True, True])
    assert best_threshold(values, true, np.ones(5)) == pytest.approx(0.55)
    assert best_threshold(values, true, np.array([1, 9, 1, 1, 1.0])) == pytest.approx(0.15)
    assert best_threshold(np.full(3, 0.4), np.array([True, True, False]), np.ones(3)) < 0.4, "all are accepted"


def test_kinds_of_false_sentences_weigh_alike() -> None:
    weights = balanced([TRUE] * 4 + ["level 1"] * 3 + ["another video"])
    assert weights[:4].sum() == pytest.approx(weights[4:].sum())
    assert weights[4:7].sum() == pytest.approx(weights[7])
