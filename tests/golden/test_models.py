"""The DETR models and SHINE against the authors' published code: outputs, matchings, losses, gradients, steps."""

import argparse
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from penumbra.models.checkpoints import load_weights
from penumbra.models.detr import Outputs
from penumbra.models.losses import coarse_inter, coarse_intra, compute_losses, divergence, fine_hinges
from penumbra.models.matcher import match
from penumbra.tasks.grounding.configs import InputConfig
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.bm_detr import BMDETRConfig
from penumbra.tasks.grounding.families.detr import ENDPOINTS
from penumbra.tasks.grounding.training.checkpoints import read_weights
from penumbra.tasks.grounding.training.presets import Settings
from tests.golden.reading import OUTPUTS, Golden, close, each_golden, golden_files, ten_steps

every_file, shine_files = each_golden("moment_detr", "qd_detr", "shine"), each_golden("shine")
bm_files = each_golden("bm_detr")
BM_TERMS = {"span": "span", "giou": "giou", "label": "label", "class_error": "class", "saliency": "saliency"}
BM_TERMS |= {"semantic": "contrastive_align", "probability": "prob_guidance"}


def run(golden: Golden, model: nn.Module) -> Outputs:
    if golden.config["model"] == "bm_detr":
        return model(golden.shifted_inputs())  # type: ignore[no-any-return]
    inputs = golden.inputs("src_hn_txt" if golden.config["model"] == "shine" else "")
    return model(inputs, negative=golden.config["model"] != "moment_detr")


def official_form(outputs: Outputs) -> dict[str, Tensor]:
    """Outputs under the golden files' names."""
    found = {"pred_logits": outputs.logits[-1], "pred_spans": outputs.spans[-1], "saliency_scores": outputs.saliency}
    for layer in range(len(outputs.logits) - 1):
        found[f"aux_outputs.{layer}.pred_logits"] = outputs.logits[layer]
        found[f"aux_outputs.{layer}.pred_spans"] = outputs.spans[layer]
    if outputs.align is not None:
        (*earlier, last), words, clips = outputs.align
        found |= {"proj_queries": last, "proj_txt_mem": words, "proj_vid_mem": clips}
        for layer, queries in enumerate(earlier):
            found[f"aux_outputs.{layer}.proj_queries"] = queries
            found[f"aux_outputs.{layer}.proj_txt_mem"] = words
    if outputs.saliency_negative is not None:
        found["saliency_scores_neg"] = outputs.saliency_negative
    if outputs.saliency_hard is not None:
        found["saliency_scores_hn"] = outputs.saliency_hard.flatten(0, 1)
    return found


@every_file
@pytest.mark.parametrize("variant", ["official", "fixed"])
def test_outputs(golden: Golden, variant: str) -> None:
    found = official_form(run(golden, golden.model(text_attention=variant)))
    train, fixed = "_train" * (golden.config["model"] == "shine"), "_maskfix" * (variant == "fixed")
    wanted = golden.under(f"out{train}{fixed}.")
    wanted.pop("video_mask", None)
    if golden.config["model"] == "moment_detr" and variant == "fixed":
        wanted = golden.under("out.")  # the switch is QD-DETR's alone
    assert wanted
    assert set(wanted) <= set(found)
    for name, value in wanted.items():
        close(found[name], value, OUTPUTS)


@every_file
def test_matchings(golden: Golden) -> None:
    targets = golden.targets()
    outputs = run(golden, golden.model(text_attention="official"))
    costs, layers = golden.losses().costs, len(outputs.logits)
    for layer in range(layers):
        name = "final" if layer == layers - 1 else f"aux{layer}"
        assigned = match(outputs.logits[layer], outputs.spans[layer], targets.spans, targets.span_mask, costs)
        for sample, row in enumerate(assigned):
            pairs = [golden.tensor(f"match.{name}.{sample}.{side}").tolist() for side in ("tgt", "pred")]
            found = {window: query for window, query in enumerate(row.tolist()) if query >= 0}
            assert found == dict(zip(*pairs, strict=True))


def loss_key(golden: Golden, name: str) -> str:
    group = "loss_train_paper." if golden.config["model"] == "shine" else "loss."
    name = name.replace("align", "contrastive_align")
    return group + (name if name == "total" or name.startswith("class_error") else f"loss_{name}")


@every_file
def test_losses(golden: Golden) -> None:
    outputs = run(golden, golden.model(text_attention="official"))
    losses = compute_losses(outputs, golden.targets(), golden.losses())
    close(losses.total, golden.tensor(loss_key(golden, "total")), OUTPUTS)
    compared = [name for name in losses.terms if loss_key(golden, name) in golden.arrays]
    assert {"span", "giou", "label", "saliency", "class_error", "span_0", "giou_0", "label_0"} <= set(compared)
    assert golden.config["args"].get("contrastive_align_loss", False) == ({"align", "align_0"} <= set(compared))
    for name in compared:
        close(losses.terms[name], golden.tensor(loss_key(golden, name)), OUTPUTS)


@shine_files
def test_shine_terms(golden: Golden) -> None:
    targets = golden.targets()
    outputs, settings = run(golden, golden.model(text_attention="official")), golden.losses()
    positive, negative, hard = outputs.saliency, outputs.saliency_negative, outputs.saliency_hard
    present = torch.ones(hard.shape[:2], dtype=torch.bool)
    found = {
        "coarse_intra": coarse_intra(positive, targets, settings.coarse_margins[0], settings.quotient),
        "coarse_inter": coarse_inter(positive, negative, targets, settings.coarse_margins[1], settings.quotient),
        "d_Y_Sp": divergence(targets.clip_scores, positive, targets.video_mask),
        "d_Sp_Sn": divergence(positive.sigmoid(), negative, targets.video_mask),
    }
    for level in range(3):
        found[f"d_Sp_Shn{level + 1}"] = divergence(positive.sigmoid(), hard[level], targets.video_mask)
    for weights, short in (((1.0, 0.0), "red"), ((0.0, 1.0), "abd")):
        terms = fine_hinges(positive, hard, present, negative, targets, golden.losses(ranking_weights=weights))
        found |= {f"fine_{short}_{index + 1}": term for index, term in enumerate(terms)}
        found[f"fine_{short}"] = sum(terms, torch.zeros(()))
    for name, value in found.items():
        close(value, golden.tensor(f"loss_train.{name}"), OUTPUTS)
    for hinge in (False, True):
        base = golden.losses(pair_hinge=hinge, coarse=0.0, fine=0.0)
        terms = compute_losses(outputs, targets, base).terms
        close(terms["saliency"], golden.tensor(f"loss_train.saliency_base_use{int(hinge)}"), OUTPUTS)


@shine_files
def test_the_released_criterion_trains_saliency_alone(golden: Golden) -> None:
    model = golden.model(text_attention="official")
    losses = compute_losses(run(golden, model), golden.targets(), golden.losses(variant="released"))
    close(losses.total, golden.tensor("loss_train_released.total"), OUTPUTS)
    losses.total.backward()
    untrained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert {"decoder", "span_head", "class_head", "anchors"} <= untrained
    assert "encoder" not in untrained


OBJECTIVES = [  # of each file, those that it has gradients of
    pytest.param(path, objective, id=f"{path.stem}{objective}")
    for model in ("moment_detr", "qd_detr", "shine", "bm_detr")
    for path in golden_files(model)
    for objective in (("_paper", "_released") if model == "shine" else ("",))
]


@pytest.mark.parametrize(("golden", "objective"), OBJECTIVES, indirect=["golden"])
def test_gradients_and_ten_steps(golden: Golden, objective: str) -> None:
    model = golden.model(text_attention="official")
    settings = golden.losses(variant="released") if objective == "_released" else golden.losses()
    targets = golden.shifted_targets() if golden.config["model"] == "bm_detr" else golden.targets()
    ten_steps(golden, model, lambda: compute_losses(run(golden, model), targets, settings), objective)


# -- BM-DETR -----------------------------------------------------------------------------------------------------------


def compare(found: Outputs, golden: Golden, prefix: str) -> None:
    ours = {"pred_logits": found.logits[-1], "pred_spans": found.spans[-1], "saliency_scores": found.saliency}
    ours |= {"vid_logits": found.probability, "proj_vid_mem": found.pooled[0], "proj_txt_mem": found.pooled[1]}
    for name, value in ours.items():
        close(value, golden.tensor(prefix + name), OUTPUTS)


@bm_files
def test_outputs_and_losses_of_both_branches(golden: Golden) -> None:
    net, targets, settings = golden.model(), golden.shifted_targets(), golden.losses()
    outputs, alone = net(golden.shifted_inputs()), net(golden.inputs())
    close(compute_losses(outputs, targets, settings).total, golden.tensor("loss_train.total"), OUTPUTS)
    main, shifted = outputs.split(2)
    compare(main, golden, "out_train.")
    compare(shifted, golden, "out_train.shifting.")
    branches = ((main, targets[0], "train"), (shifted, targets[1], "train_shift"), (alone, golden.targets(), "eval"))
    for part, truth, name in branches:
        terms = compute_losses(part, truth, settings).terms
        for ours, theirs in BM_TERMS.items():
            close(terms[ours], golden.tensor(f"loss_{name}.loss_{theirs}"), OUTPUTS)


@bm_files
def test_an_official_checkpoint_is_one_to_start_from(golden: Golden, tmp_path: Path) -> None:
    args = golden.config["args"]
    torch.save({"model": golden.official_weights, "opt": argparse.Namespace(**args)}, tmp_path / "model.ckpt")
    sizes = golden.model().settings
    names = ("heads", "feed_forward", "encoder_layers", "decoder_layers", "queries", "frame_weights", "alignment")
    chosen = Settings(
        model=BMDETRConfig(hidden=sizes.hidden, ablation={name: getattr(sizes, name) for name in names}),
        inputs=InputConfig(longest_text=args["max_q_l"]),
    )
    net = system_of(chosen).build(args["v_feat_dim"] - ENDPOINTS, args["t_feat_dim"])
    load_weights(net, read_weights(str(tmp_path / "model.ckpt")))
    with torch.no_grad():
        compare(net.eval()(golden.inputs()), golden, "out_eval.")
