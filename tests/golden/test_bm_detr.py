"""BM-DETR against the authors' published code; gradients and steps are in `test_models`."""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from penumbra.models.checkpoints import load_weights
from penumbra.models.detr import Outputs
from penumbra.models.losses import compute_losses
from penumbra.tasks.grounding.configs import Inputs as InputSettings
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.bm_detr import BMDETRConfig
from penumbra.tasks.grounding.families.detr import ENDPOINTS
from penumbra.tasks.grounding.training.checkpoints import read_weights
from penumbra.tasks.grounding.training.presets import Settings
from tests.golden.reading import OUTPUTS, Golden, close, each_golden

pytestmark = each_golden("bm_detr")
TERMS = {"span": "span", "giou": "giou", "label": "label", "class_error": "class", "saliency": "saliency"}
TERMS |= {"semantic": "contrastive_align", "probability": "prob_guidance"}


def compare(found: Outputs, golden: Golden, prefix: str) -> None:
    ours = {"pred_logits": found.logits[-1], "pred_spans": found.spans[-1], "saliency_scores": found.saliency}
    ours |= {"vid_logits": found.probability, "proj_vid_mem": found.pooled[0], "proj_txt_mem": found.pooled[1]}
    for name, value in ours.items():
        close(value, golden.tensor(prefix + name), OUTPUTS)


def test_outputs(golden: Golden) -> None:
    main, shifted = golden.model()(golden.shifted_inputs()).split(2)
    compare(main, golden, "out_train.")
    compare(shifted, golden, "out_train.shifting.")
    with torch.no_grad():
        compare(golden.model().eval()(golden.inputs()), golden, "out_eval.")


def check(terms: dict[str, Tensor], golden: Golden, prefix: str) -> None:
    for ours, theirs in TERMS.items():
        close(terms[ours], golden.tensor(f"{prefix}loss_{theirs}"), OUTPUTS)


def test_losses(golden: Golden) -> None:
    outputs, targets, settings = golden.model()(golden.shifted_inputs()), golden.shifted_targets(), golden.losses()
    close(compute_losses(outputs, targets, settings).total, golden.tensor("loss_train.total"), OUTPUTS)
    branches = zip(outputs.split(2), targets, ("loss_train.", "loss_train_shift."), strict=True)
    for part, truth, prefix in branches:
        check(compute_losses(part, truth, settings).terms, golden, prefix)
    check(compute_losses(golden.model()(golden.inputs()), golden.targets(), settings).terms, golden, "loss_eval.")


def test_an_official_checkpoint_is_one_to_start_from(golden: Golden, tmp_path: Path) -> None:
    args = golden.config["args"]
    torch.save({"model": golden.official_weights, "opt": argparse.Namespace(**args)}, tmp_path / "model.ckpt")
    sizes = golden.model().settings
    names = ("heads", "feed_forward", "encoder_layers", "decoder_layers", "queries", "frame_weights", "alignment")
    chosen = Settings(
        model=BMDETRConfig(hidden=sizes.hidden, ablation={name: getattr(sizes, name) for name in names}),
        inputs=InputSettings(longest_text=args["max_q_l"]),
    )
    net = system_of(chosen).build(args["v_feat_dim"] - ENDPOINTS, args["t_feat_dim"])
    load_weights(net, read_weights(str(tmp_path / "model.ckpt")))
    with torch.no_grad():
        compare(net.eval()(golden.inputs()), golden, "out_eval.")
