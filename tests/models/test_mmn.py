"""MMN: the vectorised model and losses against plain loops; the map, segments, negatives, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from penumbra.models.map_losses import MapTargets, MMNLosses, candidate_iou_loss, hard_order, mmn_losses
from penumbra.models.mmn import MMN, MapInputs, MapOutputs, MMNSettings, candidate_overlap, schedule

SENTENCES = (3, 1, 2, 4)
SIZES: dict[str, Any] = {"video_dim": 6, "text_dim": 5, "hidden": 8, "joint": 7, "clips": 8, "segments": 16}
SIZES |= {"counts": (3, 2), "kernel": 3, "proposal": 6, "layers": 4}


def model(**changes: Any) -> MMN:
    torch.manual_seed(0)
    return MMN(MMNSettings(**{**SIZES, **changes}))


def inputs(hard: bool = False) -> MapInputs:
    generator = torch.Generator().manual_seed(1)
    count = sum(SENTENCES)
    text = torch.randn(4, count, 5, SIZES["text_dim"], generator=generator)
    mask = torch.arange(5) < (torch.arange(count) % 5 + 1)[:, None]
    video_of = torch.arange(len(SENTENCES)).repeat_interleave(torch.tensor(SENTENCES))
    texts = 4 if hard else 1
    video = torch.randn(len(SENTENCES), 16, 6, generator=generator)
    return MapInputs(video, text[:texts], mask.expand(texts, -1, -1), video_of)


def targets(net: MMN) -> MapTargets:
    """Two windows for every third sentence, one for the others."""
    count = sum(SENTENCES)
    generator = torch.Generator().manual_seed(2)
    windows = (torch.rand(count, 2, 2, generator=generator) * 20).sort(-1).values
    present = torch.stack((torch.ones(count), torch.arange(count) % 3), 1) > 0
    overlap = candidate_overlap(net.cells, net.settings.clips, torch.full((count,), 20.0), windows, present)
    return MapTargets(overlap, windows, present)


def test_a_video_has_the_same_scores_alone_and_in_any_batch() -> None:
    net, batch = model().eval(), inputs()
    together = net(batch).fused(0.5)
    own = batch.video_of == 2
    alone = MapInputs(batch.video[2:3], batch.text[:, own], batch.text_mask[:, own], torch.zeros(2).long())
    torch.testing.assert_close(net(alone).fused(0.5), together[own], rtol=1e-5, atol=1e-6)


def near(vector: Tensor, cosine: float) -> Tensor:
    """A unit vector of the given cosine to the first axis' unit vector."""
    other = torch.zeros_like(vector)
    other[..., 1] = 1
    return cosine * vector + (1 - cosine**2) ** 0.5 * other


def test_only_hard_negatives_that_exist_change_the_loss() -> None:
    net, batch = model(), inputs(hard=True)
    found: MapOutputs = net(batch)
    truth = targets(net)
    without = mmn_losses(found, truth, MMNLosses()).terms["among_sentences"]
    count = sum(SENTENCES)
    none = replace(truth, hard_present=torch.zeros(3, count, dtype=torch.bool))
    chosen = MMNLosses(shine=True, hard_order=1.0)
    torch.testing.assert_close(mmn_losses(found, none, chosen).terms["among_sentences"], without)
    assert mmn_losses(found, none, chosen).terms["hard_order"] == 0
    with_all = replace(truth, hard_present=torch.ones(3, count, dtype=torch.bool))
    assert mmn_losses(found, with_all, chosen).terms["among_sentences"] > without


def test_the_order_of_hard_negatives_costs_where_it_is_broken() -> None:
    moment = torch.zeros(1, 1, 4)
    moment[..., 0] = 1
    axis = moment[:, 0]
    ordered = torch.stack([near(axis, cosine) for cosine in (0.7, 0.5, 0.3)])
    every = torch.ones(3, 1, dtype=torch.bool)
    assert hard_order(moment, axis, ordered, every, 0.1) == 0
    broken = float(hard_order(moment, axis, ordered[[1, 0, 2]], every, 0.1))
    assert broken == pytest.approx((0.0 + 0.3 + 0.0) / 3, abs=1e-5)
    missing = torch.tensor([[True], [False], [True]])  # level 2 is not there, and so is neither hinge that needs it
    assert hard_order(moment, axis, ordered[[1, 0, 2]], missing, 0.1) == 0


def test_hard_negatives_are_to_overlap_with_no_moment() -> None:
    net, batch = model(), inputs(hard=True)
    every = torch.ones(3, sum(SENTENCES), dtype=torch.bool)
    found, truth = net(batch), replace(targets(net), hard_present=every)
    weighed = mmn_losses(found, truth, MMNLosses(shine=True, hard_overlap=0.5))
    terms, plain = weighed.terms, mmn_losses(found, truth, MMNLosses(shine=True))
    torch.testing.assert_close(weighed.total, plain.total + 0.5 * terms["hard_overlap"])
    hard = zip(batch.text[1:], batch.text_mask[1:], strict=True)
    sentences = [net(replace(batch, text=text[None], text_mask=mask[None])) for text, mask in hard]
    nothing = [candidate_iou_loss(other.iou_logits(), truth.overlap * 0, 0.5, 1.0) for other in sentences]
    torch.testing.assert_close(terms["hard_overlap"], torch.stack(nothing).mean())
    first = torch.zeros(3, sum(SENTENCES), dtype=torch.bool).index_fill(0, torch.tensor([0]), True)
    there = mmn_losses(found, replace(truth, hard_present=first), MMNLosses(shine=True, hard_overlap=1.0))
    torch.testing.assert_close(there.terms["hard_overlap"], nothing[0])


def test_impossible_sizes_of_a_map_are_refused() -> None:
    with pytest.raises(ValueError, match="8 clips is too narrow"):
        schedule(8, (8,))
    with pytest.raises(ValueError, match="do not give 8 clips"):
        model(pool=4)
    with pytest.raises(ValueError, match="3 layers of kernel 2"):
        model(kernel=2, layers=3)
    with pytest.raises(ValueError, match="16 segments of 6 channels and texts of 5, but the model takes 16 of 9 and 5"):
        model(video_dim=9)(inputs())
    with pytest.raises(ValueError, match="lowest < highest"):
        MMNLosses(lowest=1.0)
