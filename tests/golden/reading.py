"""Golden numbers: arrays, configuration, inputs and targets of tiny models, made with the authors' published code."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.artifacts.locations import PROJECT
from penumbra.models.checkpoints import convert, load_weights, our_name
from penumbra.models.detr import GroundingModel, Inputs
from penumbra.models.losses import Losses, LossSettings, Targets
from penumbra.models.matcher import MatchingCosts
from penumbra.tasks.grounding.training.presets import MODELS as CONFIGS

FOLDER = Path(os.environ.get("PENUMBRA_GOLDEN") or PROJECT.parent / "shared" / "golden")
OUTPUTS, GRADIENTS, DRIFT = 1e-5, 2e-4, 1e-3
# names of `ModelSettings`, and those of the published options
OPTIONS = {"video_dim": "v_feat_dim", "text_dim": "t_feat_dim", "hidden": "hidden_dim", "heads": "nheads"}
OPTIONS |= {"feed_forward": "dim_feedforward", "encoder_layers": "enc_layers", "decoder_layers": "dec_layers"}
OPTIONS |= {"queries": "num_queries", "projections": "n_input_proj", "dropout": "dropout"}
OPTIONS |= {"input_dropout": "input_dropout", "longest_text": "max_q_l", "text_positions": "use_txt_pos"}
# the same for losses: those that all models have, and a model's own
WEIGHTS = {"span": "span_loss_coef", "giou": "giou_loss_coef", "label": "label_loss_coef", "background": "eos_coef"}
WEIGHTS |= {"saliency": "lw_saliency", "pair_margin": "saliency_margin"}
OWN_WEIGHTS = {
    "moment_detr": {"align": "contrastive_align_loss_coef", "align_temperature": "temperature"},
    "qd_detr": {},
    "shine": {"coarse": "coarse_coef", "fine": "fine_coef", "quotient": "q", "pair_hinge": "use_saliency_loss"}
    | {"coarse_margins": "coarse_margin", "fine_margins": "fine_margin"},
    "bm_detr": {"class_error": "class_loss_coef", "probability": "lw_prob_loss_coef"}
    | {"semantic": "lw_contrastive_loss_coef", "align_temperature": "temperature"},
}


def golden_files(model: str) -> list[Path]:
    return sorted(FOLDER.rglob(f"{model}_*seed*.npz"))


def losses_of(model: str, shine: bool = False, **changes: Any) -> LossSettings:
    """Return the loss settings of a base model, with changes."""
    config = CONFIGS[model].model_validate({"losses": {"shine": True} if shine else {}})
    return replace(config.loss_settings, **changes)


def model_of(name: str, sizes: dict[str, Any]) -> GroundingModel:
    config = CONFIGS[name]
    return config.network(config.options(**sizes))


def each_golden(*models: str) -> pytest.MarkDecorator:
    """Run a test with each golden file of these models as `golden`; skip it where there is none."""
    missing = pytest.mark.skip("needs the golden numbers: no shared/golden beside the project")
    files = [path for model in models for path in golden_files(model)] or [pytest.param(FOLDER, marks=missing)]
    return pytest.mark.parametrize("golden", files, ids=lambda path: path.stem, indirect=True)


@dataclass
class Golden:
    name: str
    arrays: dict[str, np.ndarray]
    config: dict[str, Any]

    def tensor(self, key: str) -> Tensor:
        return torch.from_numpy(self.arrays[key])

    def under(self, prefix: str) -> dict[str, Tensor]:
        """All arrays whose key starts with a prefix, without it."""
        return {k.removeprefix(prefix): self.tensor(k) for k in self.arrays if k.startswith(prefix)}

    @property
    def base(self) -> str:
        return self.config["model"].replace("shine", "qd_detr")  # type: ignore[no-any-return]

    @property
    def official_weights(self) -> dict[str, Tensor]:
        return {name: value.float() for name, value in self.under("sd.").items()}

    def model(self, **changes: Any) -> nn.Module:
        args = self.config["args"]
        sizes = {ours: args[name] for ours, name in OPTIONS.items() if name in args}
        if args.get("contrastive_align_loss") or "lw_contrastive_loss_coef" in args:  # Moment-DETR's, BM-DETR's
            sizes["alignment"] = args["contrastive_hdim"]
        sizes |= {"frame_weights": "official"} | changes  # each is an option of one model
        model = model_of(
            self.base, {name: it for name, it in sizes.items() if hasattr(CONFIGS[self.base].options, name)}
        )
        load_weights(model, convert(self.official_weights))
        return model

    def inputs(self, others: str = "") -> Inputs:
        """Return the batch, with the other texts of this name: BM-DETR's negative queries, SHINE's hard negatives."""
        texts, masks = [], []
        longest = max(self.arrays[f"in.{name}"].shape[-2] for name in ("src_txt", others) if name)
        for name in ("src_txt", others) if others else ("src_txt",):
            text, mask = self.tensor(f"in.{name}"), self.tensor(f"in.{name}_mask") > 0
            padding = longest - mask.shape[-1]
            texts.append(functional.pad(text.view(-1, *text.shape[-3:]), (0, 0, 0, padding)))
            masks.append(functional.pad(mask.view(-1, *mask.shape[-2:]), (0, padding)))
        video, video_mask = self.tensor("in.src_vid"), self.tensor("in.src_vid_mask") > 0
        return Inputs(video, video_mask, torch.cat(texts), torch.cat(masks))

    def shifted_inputs(self) -> Inputs:
        """Return BM-DETR's training batch: videos as they are, then shifted, with their query and a negative one."""
        batch = self.inputs("neg_src_txt")
        video = torch.cat((batch.video, self.tensor("in.shifted_vid")))
        mask = torch.cat((batch.video_mask, self.tensor("in.shifted_vid_mask") > 0))
        return Inputs(video, mask, batch.text.repeat(1, 2, 1, 1), batch.text_mask.repeat(1, 2, 1))

    def targets(self) -> Targets:
        return self._targets("tgt.", "in.src_vid_mask")

    def shifted_targets(self) -> tuple[Targets, Targets]:
        """The truth of `shifted_inputs`."""
        return self.targets(), self._targets("tgt.shifting.", "in.shifted_vid_mask")

    def _targets(self, prefix: str, mask_key: str) -> Targets:
        mask = self.tensor(mask_key) > 0
        windows = [self.tensor(f"{prefix}span_labels.{b}.spans") for b in range(len(mask))]
        spans = torch.zeros(len(mask), max(map(len, windows)), 2)
        present = torch.zeros(spans.shape[:2], dtype=torch.bool)
        for sample, found in enumerate(windows):
            spans[sample, : len(found)], present[sample, : len(found)] = found, True
        scores = self.arrays.get(f"{prefix}saliency_all_labels", self.arrays.get(f"{prefix}match_labels"))
        clip_scores = torch.zeros(mask.shape) if scores is None else torch.from_numpy(scores)
        high, low = (self.tensor(f"{prefix}saliency_{side}_labels") for side in ("pos", "neg"))
        return Targets(spans, present, clip_scores, mask, high, low, torch.ones(3, len(mask), dtype=torch.bool))

    def losses(self, **changes: Any) -> LossSettings:
        args, names, model = self.config["args"], dict(WEIGHTS), self.config["model"]
        names |= OWN_WEIGHTS["moment_detr" if args.get("contrastive_align_loss") else model]
        found = {ours: args[theirs] for ours, theirs in names.items()}
        found = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        found["costs"] = MatchingCosts(args["set_cost_span"], args["set_cost_giou"], args["set_cost_class"])
        if model == "shine":
            found["ranking_weights"] = {"red": (1.0, 0.0), "abd": (0.0, 1.0)}[args["ranking_type"]]
        return losses_of(self.base, model == "shine", **{**found, **changes})


def read_golden(path: Path) -> Golden:
    with np.load(path) as arrays:
        return Golden(path.stem, dict(arrays), json.loads(path.with_suffix(".json").read_text()))


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Within a share of the largest value."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is not {tuple(wanted.shape)}"
    worst = (found.detach().double() - wanted.double()).abs().max()
    assert worst <= tolerance * wanted.abs().max().clamp(min=1e-3), f"off by {worst:.2e}"


def ten_steps(
    golden: Golden, model: nn.Module, losses: Callable[[], Losses], of: str = "", rounding: float = 0.0
) -> None:
    """Take AdamW's steps: the first one's gradients, their norm and its weights, and the loss of each are the golden.

    `of` names the objective; weights whose gradient is below `rounding` of the largest are not compared, because the
    first step is a gradient's sign.
    """
    optim, names, totals = golden.config[f"optim{of}"], dict(model.named_parameters()), []
    optimiser = torch.optim.AdamW(model.parameters(), optim["lr"], optim["betas"], weight_decay=optim["weight_decay"])
    for step in range(len(golden.arrays[f"traj{of}.total"])):
        optimiser.zero_grad()
        total = losses().total
        totals.append(total.detach())
        total.backward()
        if step == 0:
            check_gradients(golden, names, of)
        norm = nn.utils.clip_grad_norm_(model.parameters(), optim["clip"])
        optimiser.step()
        if step == 0:
            close(norm, golden.tensor(f"grad_total_norm{of}"), GRADIENTS)
            gradients = convert(golden.under(f"grad{of}."))
            for name, value in convert(golden.under(f"step{of}.")).items():
                sure = gradients[name].abs() > rounding * gradients[name].abs().max() if rounding else ...
                assert not rounding or sure.float().mean() > 0.9 or not gradients[name].any()
                close(names[name][sure], value[sure], OUTPUTS)
    close(torch.stack(totals), golden.tensor(f"traj{of}.total"), DRIFT)


def check_gradients(golden: Golden, names: dict[str, nn.Parameter], of: str) -> None:
    norms = {official: norm for official, norm in golden.under(f"gradnorm{of}.").items() if ".bert." not in official}
    ours = {official: name if (name := our_name(official)) in names else "anchors" for official in norms}
    assert set(ours.values()) == set(names)
    largest = max(norms.values())
    for official, wanted in norms.items():
        gradient = names[ours[official]].grad
        found = 0.0 if gradient is None else gradient.norm()  # a bias before normalisation has none
        assert abs(found - wanted) <= GRADIENTS * max(wanted, 1e-3 * largest), official
    for name, value in convert(golden.under(f"grad{of}.")).items():
        gradient = names[name].grad
        if value.numel():
            close(torch.zeros_like(value) if gradient is None else gradient, value, GRADIENTS)
        else:  # the published code gave it none
            assert gradient is None or not gradient.any(), name
