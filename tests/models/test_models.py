"""Invariances of the models: neighbours, padding, sizes, official checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penumbra.models.checkpoints import CheckpointError, our_name, read_official
from penumbra.models.detr import GroundingModel, Inputs, Outputs
from tests.golden.reading import model_of

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


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {}, "opt": Hostile()}, tmp_path / "model.ckpt")
    with pytest.raises(CheckpointError, match="can't be read as weights alone"):
        read_official(tmp_path / "model.ckpt")
    assert not (tmp_path / "ran").exists()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_official(tmp_path / "list.ckpt")
    with pytest.raises(CheckpointError, match="no parameter"):
        our_name("roberta.encoder.weight")


def test_a_checkpoint_that_makes_a_large_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    path.write_bytes(b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x10\x85R.")  # of 268 MB
    with pytest.raises(CheckpointError, match="makes a bytearray"):
        read_official(path)
