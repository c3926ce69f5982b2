"""Whole models by the CPU forms and by the plain formulations: outputs and gradients; and where either is taken."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from penumbra.models.bm_detr import BMDETR
from penumbra.models.cpu.dispatch import on_cpu
from penumbra.models.grounding import GroundingModel
from penumbra.models.moment_detr import MomentDETR
from penumbra.models.outputs import Inputs, Outputs
from penumbra.models.qd_detr import QDDETR
from penumbra.models.settings import ModelSettings
from tests.models.cpu.plain import gradients, plainly

MODELS: dict[str, type[GroundingModel]] = {"moment_detr": MomentDETR, "qd_detr": QDDETR, "bm_detr": BMDETR}
NAMES = tuple(MODELS)


def model(name: str, dropout: float, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden": 16, "heads": 2, "feed_forward": 24, "queries": 5, "align_dim": 6, **changes}
    return MODELS[name](ModelSettings(10, 6, dropout=dropout, input_dropout=3 * dropout, **sizes))


def inputs() -> Inputs:
    torch.manual_seed(1)
    mask, words = torch.arange(9) < torch.tensor([9, 4, 7])[:, None], torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    return Inputs(
        torch.randn(3, 9, 10), mask, torch.randn(3, 5, 6), words, torch.randn(2, 3, 5, 6), words.expand(2, -1, -1)
    )


def run(net: nn.Module, name: str, bf16: bool) -> tuple[Tensor, list[Tensor], Tensor]:
    """All that a model gives in one row, its gradients, and the next random number."""
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found: Outputs = net(inputs(), negative=name != "bm_detr")
    parts = [
        found.logits,
        found.spans,
        found.saliency,
        found.saliency_hard,
        found.saliency_negative,
        *(found.pooled or ()),
    ]
    row = torch.cat([part.float().flatten() for part in parts if part is not None])
    return row.detach(), gradients(row, net), torch.rand(4)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_both_forms_are_equal(name: str, dropout: float, bf16: bool) -> None:
    net = model(name, dropout)
    found, by, after = run(net, name, bf16)
    with plainly():
        wanted, plain_by, plain_after = run(net, name, bf16)
    assert torch.equal(after, plain_after), "both draw the same random numbers"
    tolerance = 0.05 if bf16 else 1e-5
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
    everything, plain_everything = (torch.cat([g.flatten() for g in each]) for each in (by, plain_by))
    assert float((everything - plain_everything).norm() / plain_everything.norm()) < tolerance
    if not bf16:
        for ours, theirs in zip(by, plain_by, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(plain_everything.abs().max()))


@on_cpu(lambda values: values + 1 if values.dim() else None)
def plain(values: Tensor) -> Tensor:
    return values + 2


def test_a_cpu_form_is_taken_on_a_cpu_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert float(plain(torch.zeros(1))) == 1
    assert float(plain(torch.zeros(()))) == 2, "it returned None"
    assert plain(torch.zeros(3, device="meta")).device.type == "meta"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert float(plain(torch.zeros(1))) == 2
