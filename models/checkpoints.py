"""Official checkpoints of Moment-DETR, QD-DETR and SHINE: their parameter names, and ours.

The published files are dictionaries with the weights under "model" and a pickled namespace of options beside them.
They are read with `weights_only=True` and a namespace class that can hold values and do nothing, so that no code of a
file ever runs.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.settings import ModelSettings

# (official, ours), tried in order on the whole name; groups are kept
_NAMES = (
    (r"input_(?P<part>vid|txt)_proj\.(?P<i>\d+)\.LayerNorm\.(?P<kind>\w+)", "{part}_projection.stages.{i}.norm.{kind}"),
    (r"input_(?P<part>vid|txt)_proj\.(?P<i>\d+)\.net\.1\.(?P<kind>\w+)", "{part}_projection.stages.{i}.linear.{kind}"),
    (r"txt_position_embed\.position_embeddings\.weight", "text_positions.table.weight"),
    (r"txt_position_embed\.LayerNorm\.(?P<kind>\w+)", "text_positions.norm.{kind}"),
    (r"span_embed\.layers\.(?P<i>\d+)\.(?P<kind>\w+)", "span_head.layers.{i}.{kind}"),
    (r"class_embed\.(?P<kind>\w+)", "class_head.{kind}"),
    (r"saliency_proj\.(?P<kind>\w+)", "saliency_head.{kind}"),
    (r"saliency_proj1\.(?P<kind>\w+)", "clip_saliency.{kind}"),
    (r"saliency_proj2\.(?P<kind>\w+)", "global_saliency.{kind}"),
    (r"global_rep_token", "global_token"),
    (r"global_rep_pos", "global_position"),
    (r"contrastive_align_projection_(?P<part>query|txt|vid|video)\.(?P<kind>\w+)", "align_heads.{part}.{kind}"),
    (r"transformer\.decoder\.norm\.(?P<kind>\w+)", "decoder.norm.{kind}"),
    (r"transformer\.decoder\.(?P<head>\w+)\.layers\.(?P<i>\d+)\.(?P<kind>\w+)", "decoder.{head}.layers.{i}.{kind}"),
    (r"transformer\.(?P<stack>\w+)\.layers\.(?P<i>\d+)\.(?P<rest>.+)", "{stack}.{i}.{rest}"),
)
_PARTS = {"vid": "video", "txt": "text"}
_HEADS = {"query_scale": "scale_head", "ref_point_head": "position_head", "bbox_embed": "refine_head",
          "ref_anchor_head": "width_head"}  # fmt: skip
_STACKS = {"t2v_encoder": "text_to_video", "encoder": "encoder", "decoder": "decoder.layers"}
_INSIDE = {
    "self_attn.in_proj_": "{attention}.in_", "self_attn.out_proj.": "{attention}.out.",
    "multihead_attn.in_proj_": "cross_attention.in_", "multihead_attn.out_proj.": "cross_attention.out.",
    "cross_attn.out_proj.": "cross_attention.out.", "linear1.": "feed_forward.linear1.",
    "linear2.": "feed_forward.linear2.", "activation.weight": "feed_forward.slope",
    "sa_qcontent_proj.": "self_attention.query_content.", "sa_qpos_proj.": "self_attention.query_position.",
    "sa_kcontent_proj.": "self_attention.key_content.", "sa_kpos_proj.": "self_attention.key_position.",
    "sa_v_proj.": "self_attention.value.", "ca_qcontent_proj.": "cross_attention.query_content.",
    "ca_qpos_proj.": "cross_attention.query_position.", "ca_kcontent_proj.": "cross_attention.key_content.",
    "ca_kpos_proj.": "cross_attention.key_position.", "ca_v_proj.": "cross_attention.value.",
    "ca_qpos_sine_proj.": "cross_attention.query_anchor.",
}  # fmt: skip


class CheckpointError(ValueError):
    """A file is no checkpoint of this model; the message names what is missing, foreign or of another shape."""


def our_name(official: str) -> str:
    """Our name of an official parameter; raises `CheckpointError` where there is none."""
    if official == "query_embed.weight":
        return "queries"
    for pattern, form in _NAMES:
        found = re.fullmatch(pattern, official.removeprefix("module."))
        if found:
            return form.format(**_translated(found.groupdict()))
    raise CheckpointError(f"no parameter {official!r} is known")


def _translated(groups: dict[str, str]) -> dict[str, str]:
    names = dict(groups)
    if "part" in names:
        names["part"] = _PARTS.get(names["part"], names["part"])
    if "head" in names:
        names["head"] = _HEADS.get(names["head"], names["head"])
    if "stack" in names:
        attention = "self_attention" if names["stack"] == "decoder" else "attention"
        names["rest"] = _inside(names["rest"]).format(attention=attention)
        names["stack"] = _STACKS.get(names["stack"], names["stack"])
    return names


def _inside(name: str) -> str:
    for official, ours in _INSIDE.items():
        if name.startswith(official):
            return ours + name.removeprefix(official)
    return name


def convert(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official weights under our names. QD-DETR's two-column query table holds anchors."""
    ours = {our_name(name): value for name, value in official.items()}
    if "queries" in ours and ours["queries"].shape[-1] == 2:
        ours["anchors"] = ours.pop("queries")
    return ours


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights under our names into a model; raises `CheckpointError` naming the first that do not fit."""
    own = model.state_dict()
    missing, foreign = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    other = [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if missing or foreign or other:
        kinds = (("missing", missing), ("unknown", foreign), ("of another shape", other))
        faults = "; ".join(f"{kind}: {', '.join(names[:3])} ({len(names)})" for kind, names in kinds if names)
        raise CheckpointError(f"a checkpoint of another model than {type(model).__name__}: {faults}")
    model.load_state_dict(dict(weights))


def read_official(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights (under our names) and options of an official checkpoint file."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and unpickler faults have no common class
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"{path} can't be read as weights alone ({reason})") from None
    weights = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no weights under 'model'")
    options = content.get("opt", {})
    return convert(weights), dict(options if isinstance(options, Mapping) else vars(options))


def official_settings(options: Mapping[str, Any], **changes: Any) -> ModelSettings:
    """Model settings from the options of an official checkpoint (`opt` in the file)."""
    names = {
        "video_dim": "v_feat_dim", "text_dim": "t_feat_dim", "hidden": "hidden_dim", "heads": "nheads",
        "feed_forward": "dim_feedforward", "encoder_layers": "enc_layers", "decoder_layers": "dec_layers",
        "queries": "num_queries", "projections": "n_input_proj", "dropout": "dropout",
        "input_dropout": "input_dropout", "longest_text": "max_q_l", "text_positions": "use_txt_pos",
    }  # fmt: skip
    found = {ours: options[name] for ours, name in names.items() if name in options}
    if options.get("contrastive_align_loss"):
        found["align_dim"] = options["contrastive_hdim"]
    return ModelSettings(**{**found, **changes})
