"""Losses and matching: invariances, switches, and what is missing."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from penumbra.models.detr import Outputs
from penumbra.models.losses import MomentDETRLosses, Targets, coarse_inter, coarse_intra, compute_losses, fine_hinges
from penumbra.models.matcher import MatchingCosts, cost_matrix, match
from tests.golden.reading import losses_of

B, L, Q = 3, 8, 5


def targets(windows: int = 1, **changes: Any) -> Targets:
    scores = torch.zeros(B, L)
    scores[:, 2:5] = 1
    mask = torch.ones(B, L, dtype=torch.bool)
    mask[1, 6:] = False
    spans = torch.rand(B, windows, 2) * 0.4 + 0.2
    present = torch.ones(B, windows, dtype=torch.bool)
    high, low = torch.tensor([[2, 3]] * B), torch.tensor([[0, 1]] * B)
    hard = torch.ones(3, B, dtype=torch.bool)
    return replace(Targets(spans, present, scores, mask, high, low, hard), **changes)


def outputs(**changes: Any) -> Outputs:
    torch.manual_seed(0)
    logits, spans = torch.randn(2, B, Q, 2), torch.rand(2, B, Q, 2) * 0.4 + 0.2
    return replace(Outputs(logits, spans, torch.randn(B, L), torch.randn(B, L), torch.randn(3, B, L)), **changes)


def test_one_window_is_matched_on_the_device_as_scipy_would() -> None:
    torch.manual_seed(1)
    logits, spans, truth = torch.randn(50, 10, 2), torch.rand(50, 10, 2), torch.rand(50, 1, 2)
    present = torch.ones(50, 1, dtype=torch.bool)
    absent = torch.cat((present, ~present), 1)
    wanted = match(logits, spans, truth.repeat(1, 2, 1), absent, MatchingCosts())  # by scipy
    assert torch.equal(match(logits, spans, truth, present, MatchingCosts()), wanted[:, :1])


def test_matching_is_the_cheapest_and_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(1)
    logits, spans, truth = torch.randn(6, 4, 2), torch.rand(6, 4, 2), torch.rand(6, 3, 2)
    present = torch.tensor([[True, True, True], [True, False, False], [True, True, False]] * 2)
    found = match(logits, spans, truth, present, MatchingCosts())
    cost = cost_matrix(logits, spans, truth, MatchingCosts())
    for sample in range(6):
        one = slice(sample, sample + 1)
        assert torch.equal(match(logits[one], spans[one], truth[one], present[one], MatchingCosts())[0], found[sample])
        windows = present[sample].nonzero()[:, 0].tolist()
        cheapest = min(
            sum(cost[sample, q, w].item() for q, w in zip(order, windows, strict=True))
            for order in itertools.permutations(range(4), len(windows))
        )
        assert sum(cost[sample, found[sample, w], w].item() for w in windows) == pytest.approx(cheapest)
    assert (found[~present] == -1).all()


def test_absent_windows_change_nothing() -> None:
    truth = targets()
    spans = torch.cat((truth.spans, torch.full((B, 2, 2), torch.nan)), 1)
    present = torch.cat((truth.span_mask, torch.zeros(B, 2, dtype=torch.bool)), 1)
    padded = replace(truth, spans=spans, span_mask=present)
    found = outputs(spans=(torch.rand(2, B, Q, 2) * 0.4 + 0.2).requires_grad_())
    first = compute_losses(found, truth, losses_of("moment_detr"))
    second = compute_losses(found, padded, losses_of("moment_detr"))
    torch.testing.assert_close(second.total, first.total)
    second.total.backward()
    assert torch.isfinite(found.spans.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"coarse_terms": ("intra",)}, {"coarse_inter"}),
        ({"coarse_terms": ("inter",)}, {"coarse_intra"}),
        ({"fine_terms": (True, False, True, False)}, {"fine_2", "fine_4"}),
        ({"coarse": 0.0}, {"coarse_intra", "coarse_inter"}),
        ({"fine": 0.0}, {"fine_1", "fine_2", "fine_3", "fine_4"}),
        ({"rank_contrastive": False}, {"rank_contrastive"}),
    ],
)
def test_every_term_can_be_switched_off(change: dict[str, Any], gone: set[str]) -> None:
    whole = compute_losses(outputs(), targets(), losses_of("qd_detr", shine=True))
    part = compute_losses(outputs(), targets(), losses_of("qd_detr", shine=True, **change))
    assert set(whole.terms) - set(part.terms) == gone
    assert part.total < whole.total


@pytest.mark.parametrize("model", ["moment_detr", "qd_detr"])
def test_a_batch_without_negative_leaves_out_the_terms_that_need_one(model: str) -> None:
    found = compute_losses(outputs(saliency_negative=None), targets(), losses_of(model, shine=True))
    assert torch.isfinite(found.total)
    assert not {"negative_pair", "coarse_inter", "fine_4"} & set(found.terms)


def hinges(hard: Tensor, truth: Targets) -> list[Tensor]:
    found, present = outputs(), truth.hard_present
    return fine_hinges(found.saliency, hard, present, found.saliency_negative, truth, MomentDETRLosses(shine=True))


def test_relative_and_absolute_ranking_are_added_by_their_weights() -> None:
    def total(**changes: Any) -> float:
        return compute_losses(outputs(), targets(), losses_of("qd_detr", shine=True, **changes)).total.item()

    relative, absolute = total(), total(ranking_weights=(0.0, 1.0))
    assert relative != pytest.approx(absolute)
    assert total(ranking_weights=(0.25, 0.75)) == pytest.approx(0.25 * relative + 0.75 * absolute)


def test_a_missing_hard_negative_leaves_out_its_hinges_alone() -> None:
    hard, present = outputs().saliency_hard, torch.ones(3, B, dtype=torch.bool)
    present[1, 0] = False
    whole, part = hinges(hard, targets()), hinges(hard, targets(hard_present=present))
    torch.testing.assert_close(whole[0], part[0])
    assert not torch.allclose(whole[1], part[1])
    changed = hard.clone()
    changed[1, 0] = 50.0  # what stands in the place of the missing one does not matter
    for one, other in zip(part, hinges(changed, targets(hard_present=present)), strict=True):
        torch.testing.assert_close(one, other)
    none = hinges(hard, targets(hard_present=torch.zeros_like(present)))
    assert [float(term) for term in none] == [0.0] * 4


def test_the_random_text_keeps_its_own_margin_where_one_level_is_drawn() -> None:
    margins = {"fine_margins": (0.1, 0.2, 0.3, 0.4), "shine": True}
    found, one = outputs(), targets(hard_present=torch.ones(1, B, dtype=torch.bool))
    one_level = replace(found, saliency_hard=found.saliency_hard[:1])  # type: ignore[index]
    usual = compute_losses(one_level, one, losses_of("qd_detr", **margins)).terms["fine_2"]
    same = compute_losses(one_level, one, losses_of("qd_detr", **margins | {"fine_margins": (0.1, 9, 9, 0.4)}))
    torch.testing.assert_close(same.terms["fine_2"], usual)
    none = compute_losses(one_level, one, losses_of("qd_detr", **margins, fine_terms=(True, True, True, False)))
    assert {"fine_1", "fine_2"} & none.terms.keys() == {"fine_1"}


def test_a_query_without_a_relevant_clip_makes_no_infinity() -> None:
    truth = targets(clip_scores=torch.zeros(B, L))
    saliency = outputs().saliency.requires_grad_()
    total = coarse_intra(saliency, truth, 1.0, 8) + coarse_inter(saliency, outputs().saliency_hard[0], truth, 2.0, 8)  # type: ignore[index]
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(saliency.grad).all()  # type: ignore[arg-type]
