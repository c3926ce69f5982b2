"""Attention and dropout against their formulas; invariances of the models; official checkpoints, also damaged ones."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penumbra.models.checkpoints import CheckpointError, read_official
from penumbra.models.detr import GroundingModel, Inputs, Outputs
from penumbra.models.transformer import Dropout, attend, keep_mask, padding_bias
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.checkpoints import read_weights
from penumbra.tasks.grounding.training.loop import train
from tests.golden.reading import model_of
from tests.grounding_data import job, settings

SIZES: dict[str, Any] = {"video_dim": 10, "text_dim": 6, "hidden": 16, "heads": 2, "feed_forward": 24, "queries": 5}
SIZES |= {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "input_dropout": 0.0}
CLIPS, WORDS = (9, 4, 7, 1), (5, 2, 1, 3)


def model(name: str = "qd_detr", **changes: Any) -> GroundingModel:
    torch.manual_seed(0)
    return model_of(name, {**SIZES, **changes})


def inputs(clips: tuple[int, ...] = CLIPS, words: tuple[int, ...] = WORDS, hard: bool = False) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    video = torch.randn(len(clips), max(clips), SIZES["video_dim"], generator=generator)
    text = torch.randn(4, len(words), max(words), SIZES["text_dim"], generator=generator)
    video_mask = torch.arange(max(clips)) < torch.tensor(clips)[:, None]
    text_mask = torch.arange(max(words)) < torch.tensor(words)[:, None]
    texts = 4 if hard else 1
    text_mask = text_mask.expand(texts, -1, -1)
    return Inputs(video * video_mask[..., None], video_mask, text[:texts] * text_mask[..., None], text_mask)


def alone(batch: Inputs, sample: int) -> Inputs:
    """One sample without its neighbours and without their padding."""
    clips, words = int(batch.video_mask[sample].sum()), int(batch.text_mask[0, sample].sum())
    one = slice(sample, sample + 1)
    video, text = (one, slice(clips)), (slice(None), one, slice(words))
    return Inputs(batch.video[video], batch.video_mask[video], batch.text[text], batch.text_mask[text])


@pytest.mark.parametrize("with_bias", [True, False])
def test_attention_with_dropout_is_attention_with_some_weights_left_out(with_bias: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 12)
    bias = padding_bias(torch.arange(7) < torch.tensor([7, 3])[:, None])
    torch.manual_seed(1)
    found = attend(query, key, value, 4, bias if with_bias else None, 0.3)
    torch.manual_seed(1)
    mask = keep_mask((8, 5, 7), 0.3, torch.float32).view(2, 4, 5, 7) / 0.7
    q, k, v = (x.view(2, -1, 4, x.shape[-1] // 4).transpose(1, 2) for x in (query, key, value))
    weights = (q @ k.transpose(2, 3) / math.sqrt(2) + (bias if with_bias else 0)).softmax(-1)
    torch.testing.assert_close(found, ((weights * mask) @ v).transpose(1, 2).reshape(2, 5, 12))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    shares = torch.stack([1 - keep_mask((50, 400), p, torch.float32) for _ in range(100)])
    assert abs(float(shares.mean()) - p) < 4 * (p * (1 - p) / shares.numel()) ** 0.5 + 4 * 0.5 / 256 / 100**0.5
    dropped = Dropout(p)(torch.ones(200, 1000))
    assert set(dropped.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - p)))}


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr", "bm_detr"])
def test_a_sample_has_the_same_output_alone_and_in_any_batch(name: str) -> None:
    net, batch = model(name).eval().requires_grad_(False), inputs()
    together = net(batch)
    for sample, clips in enumerate(CLIPS):
        single: Outputs = net(alone(batch, sample))
        torch.testing.assert_close(single.spans[:, 0], together.spans[:, sample], atol=1e-5, rtol=0)
        torch.testing.assert_close(single.saliency[0], together.saliency[sample, :clips], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr"])
def test_hard_negatives_are_scored_as_if_each_were_the_text(name: str) -> None:
    net, batch = model(name).eval(), inputs(hard=True)
    found: Outputs = net(batch, negative=True)
    for level in range(3):
        own = slice(1 + level, 2 + level)
        single = net(replace(batch, text=batch.text[own], text_mask=batch.text_mask[own]))
        torch.testing.assert_close(found.saliency_hard[level], single.saliency, atol=1e-5, rtol=0)
    rolled = replace(batch, text=batch.text[:1].roll(-1, 1), text_mask=batch.text_mask[:1].roll(-1, 1))
    torch.testing.assert_close(found.saliency_negative, net(rolled).saliency, atol=1e-5, rtol=0)


def test_features_of_another_width_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"\(10, 6\) channels, but the model takes \(11, 6\)"):
        model(video_dim=11)(inputs())


# -- official checkpoints ----------------------------------------------------------------------------------------------


def test_fine_tuning_starts_from_a_checkpoint(tmp_path: Path) -> None:
    first = settings({"epochs": 2})
    train(*job(tmp_path / "first", first, count=8))
    weights = read_weights(str(tmp_path / "first"))
    for epochs, tolerance in ((0, 0.0), (1, 1e-6)):
        later_on = {"epochs": epochs, "learning_rate": 1e-9, "start_from": str(tmp_path / "first")}
        train(*job(tmp_path / str(epochs), settings(later_on), count=8))
        later = read_weights(str(tmp_path / str(epochs)))
        for name, value in weights.items():
            torch.testing.assert_close(later[name], value, atol=tolerance, rtol=0)
    with pytest.raises(RunError, match="holds no checkpoint"):
        read_weights(str(tmp_path))
    with pytest.raises(RunError, match="can't be read as weights only"):
        read_weights(str(tmp_path / "none.ckpt"))


def test_options_whose_package_is_not_installed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EasyDict, as QD-DETR's authors pickled it, and the names of a model in `DataParallel`."""
    monkeypatch.setattr(EasyDict, "__module__", "easydict")
    monkeypatch.setitem(sys.modules, "easydict", sys.modules[__name__])
    content = {"model": {"module.class_embed.bias": torch.ones(2)}, "opt": EasyDict(nheads=4), "epoch": 3}
    torch.save(content, tmp_path / "model.ckpt")
    monkeypatch.delitem(sys.modules, "easydict")
    assert torch.equal(read_official(tmp_path / "model.ckpt")["class_head.bias"], torch.ones(2))


class EasyDict(dict[str, Any]):
    """One that keeps its values as attributes too, as the real one does."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__ = self


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


LARGE = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x10\x85R."  # an object of 268 MB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {}, "opt": Hostile()}, "can't be read as weights only"),
        ([1, 2], "holds no weights"),
        ({"model": {"roberta.encoder.weight": torch.ones(2)}}, "no parameter"),
        (LARGE, "creates a bytearray"),
    ],
    ids=["runs code", "a list", "another model", "large"],
)
def test_a_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        (tmp_path / "model.ckpt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "model.ckpt")
    with pytest.raises(CheckpointError, match=message):
        read_official(tmp_path / "model.ckpt")
    assert not (tmp_path / "ran").exists()
