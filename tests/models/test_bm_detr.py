"""BM-DETR: joint probability, its components one by one, and its losses."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from penumbra.models.detr import Inputs, Outputs
from tests.models.test_models import inputs, model


def with_negative(batch: Inputs) -> Inputs:
    """Each query beside the next sample's as its negative."""
    text, mask = batch.text, batch.text_mask
    return replace(batch, text=torch.cat((text, text.roll(-1, 1))), text_mask=torch.cat((mask, mask.roll(-1, 1))))


def test_the_papers_decoder_sees_the_weighted_clips() -> None:
    paper, released = (model("bm_detr", weighted_decoder=wanted).eval() for wanted in (True, False))
    batch, memories = with_negative(inputs()), []
    for each in (paper, released):
        each.get_submodule("decoder").register_forward_hook(lambda module, given, out: memories.append(given[1]))
    found: Outputs = paper(batch)
    clips, mask = batch.video.shape[1], batch.video_mask
    torch.testing.assert_close(found.saliency, released(batch).saliency)
    weights = found.probability.masked_fill(~mask, -torch.inf).softmax(1)
    weighted, plain = memories
    torch.testing.assert_close(weighted[:, :clips], plain[:, :clips] * weights[..., None])
    torch.testing.assert_close(weighted[:, clips:], plain[:, clips:])
    assert not torch.allclose(found.spans, paper(inputs()).spans)  # the negative reaches the decoder


def test_without_a_negative_the_query_decides_alone() -> None:
    net, batch = model("bm_detr").eval(), inputs()
    some = with_negative(batch)
    mask = some.text_mask.clone()
    mask[1, 1] = False
    found, whole, own = (net(x).probability for x in (replace(some, text_mask=mask), some, batch))
    torch.testing.assert_close(found[1], own[1])
    torch.testing.assert_close(found[[0, 2, 3]], whole[[0, 2, 3]])


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"alignment": 0}, ("pooling", "align_heads")),
        ({"frame_matcher": False}, ("frame_matcher",)),
        ({"learnable_spans": False}, ("anchors", "decoder.scale_head")),
        ({}, ("queries",)),
    ],
)
def test_every_component_can_be_left_out(change: dict[str, Any], gone: tuple[str, ...]) -> None:
    net = model("bm_detr", **{"alignment": 6, **change})
    assert not [name for name, _ in net.named_parameters() if name.startswith(gone)]
    found: Outputs = net(with_negative(inputs()))
    assert (found.probability is None) == ("frame_matcher" in change)
    assert (found.pooled is None) == (change == {"alignment": 0})
