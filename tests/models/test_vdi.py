"""VDI's injections: which queries and pairs count, what is trained, what prediction needs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from penumbra.models.vdi import VDI, Patches, VDIInputs, VDISettings, context_loss, dynamics_loss

WIDTH, WORDS, VIDEO_OF = 8, 5, torch.tensor([0, 0, 1, 2])


class Words(nn.Module):
    """A text encoder: the mean of learned vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, WIDTH)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (self.table(ids) * mask[..., None]).sum(-2) / mask.sum(-1, keepdim=True)


def model(**changes: Any) -> VDI:
    torch.manual_seed(0)
    sizes = {"video_dim": WIDTH, "text_dim": WIDTH, "hidden": WIDTH, "projected": False, "patch_dim": 3, "grid": 4}
    layers = {"joint": 6, "clips": 4, "segments": 8, "counts": (2,), "proposal": 6, "kernel": 3, "layers": 2}
    return VDI(VDISettings(**{**sizes, **layers, **changes}), Words())


def inputs(frames: int = 6) -> VDIInputs:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(20, (3, 4, WORDS), generator=generator)
    mask = torch.arange(WORDS) < torch.tensor([5, 2, 3, 1])[:, None]
    video = torch.randn(3, 8, WIDTH, generator=generator)
    there = torch.arange(frames) < torch.tensor([frames, 2, 1])[:, None]
    vectors, patches = (torch.randn(3, frames, *size, generator=generator) for size in ((WIDTH,), (4, 3)))
    seen = Patches(vectors, patches, there)
    split = torch.tensor([True, True, True, False])
    return VDIInputs(video, ids[:1], mask[None], VIDEO_OF, (ids[1], mask), (ids[2], mask), split, seen)


def test_a_query_that_can_not_be_split_takes_no_part() -> None:
    dynamic, context = torch.ones(4, 2), torch.zeros(4, 2)
    context[3] = 100.0
    split = torch.tensor([True, True, True, False])
    assert context_loss(dynamic, context, split) == 2.0
    assert context_loss(dynamic, context, torch.zeros(4, dtype=torch.bool)) == 0


def test_dynamics_are_compared_for_pairs_of_different_videos() -> None:
    dynamic = torch.eye(4)  # no two queries are alike
    motion = torch.ones(3, 4)  # and all videos move alike
    everyone = torch.ones(4, dtype=torch.bool)
    assert float(dynamics_loss(dynamic, motion, VIDEO_OF, everyone)) == pytest.approx(10 / 16)  # all but 4 + 2 pairs
    assert float(dynamics_loss(dynamic, motion, VIDEO_OF, everyone & (VIDEO_OF != 2))) == pytest.approx(4 / 9)
    assert float(dynamics_loss(motion[VIDEO_OF], motion, VIDEO_OF, everyone)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("motion", ["transformer", "lstm"])
def test_padding_frames_change_no_motion(motion: str) -> None:
    net, batch = model(motion=motion).eval(), inputs()
    together = net.dynamics(batch.seen)
    for video, count in enumerate((6, 2, 1)):
        own = slice(video, video + 1)
        alone = Patches(batch.seen.frames[own, :count], batch.seen.patches[own, :count], batch.seen.mask[own, :count])
        torch.testing.assert_close(net.dynamics(alone), together[own], rtol=1e-4, atol=1e-5)


def test_the_chosen_text_or_none_attends_to_the_frames() -> None:
    contexts = {}
    for which in ("static", "query", "dynamic", "none"):
        net, given = model(context=which).eval(), list[Tensor]()
        net.context.register_forward_hook(lambda module, _, out, given=given: given.append(out[1]))
        net.inject(inputs())
        contexts[which] = given[0]
        assert (net.context.decoder is None) == (which == "none")
        for changed in {"static", "query", "dynamic"} - {which}:
            other = inputs()
            ids = (other.text[0] + 1) % 20
            if changed == "query":
                other.text = ids[None]
            else:
                setattr(other, changed, (ids, getattr(other, changed)[1]))
            net.inject(other)
            torch.testing.assert_close(given[-1], contexts[which])
    torch.testing.assert_close(contexts["none"], inputs().video[VIDEO_OF].mean(1))
    assert not torch.allclose(contexts["static"], contexts["query"])


def test_both_losses_reach_the_text_encoder_and_the_visual_side() -> None:
    net, batch = model(), inputs()
    terms = net.inject(batch)
    assert set(terms) == {"visual_context", "spatial_dynamics"}
    sum(terms.values(), torch.zeros(())).backward()
    seen = net.context.decoder.linear1, net.dynamics.patch, net.dynamics.place, net.text_encoder.table
    assert all(weights.weight.grad is not None and weights.weight.grad.any() for weights in seen)
    assert net.grounding.cell_iou.weight.grad is None  # the injections are beside the map


def test_motion_needs_patches() -> None:
    assert set(model(patch_dim=0).inject(inputs())) == {"visual_context"}
    assert set(model().inject(replace(inputs(), seen=None))) == {"visual_context"}
