"""Official checkpoints of Moment-DETR, QD-DETR, SHINE, BM-DETR and MMN: their parameter names, and ours.

The published files are dictionaries with the weights under "model" and a pickled namespace of options. They are read
with `weights_only=True` and the classes of options replaced by a dictionary, so that no code of a file ever runs.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penumbra.models.grounding import ModelSettings

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
    (r"contrastive_align_(?P<part>txt|vid)_proj\.(?P<kind>\w+)", "align_heads.{part}.{kind}"),
    (r"(?P<part>vid|txt)_att_pooling\.feat2att\.weight", "pooling.{part}.scorer.hidden.weight"),
    (r"(?P<part>vid|txt)_att_pooling\.to_alpha\.weight", "pooling.{part}.scorer.score.weight"),
    (r"(?P<part>vid|txt)_att_pooling\.fc\.(?P<kind>\w+)", "pooling.{part}.out.{kind}"),
    (r"FPM\.0\.weight", "frame_matcher.hidden.weight"),
    (r"FPM\.2\.weight", "frame_matcher.score.weight"),
    (r"transformer\.encoder\.query_scale\.layers\.(?P<i>\d+)\.(?P<kind>\w+)", "position_scale.layers.{i}.{kind}"),
    (r"transformer\.decoder\.norm\.(?P<kind>\w+)", "decoder.norm.{kind}"),
    (r"transformer\.decoder\.(?P<head>\w+)\.layers\.(?P<i>\d+)\.(?P<kind>\w+)", "decoder.{head}.layers.{i}.{kind}"),
    (r"transformer\.(?P<stack>\w+)\.layers\.(?P<i>\d+)\.(?P<rest>.+)", "{stack}.{i}.{rest}"),
    (r"featpool\.conv\.(?P<kind>\w+)", "clip_projection.{kind}"),
    (r"feat2d\.convs\.(?P<i>\d+)\.(?P<kind>\w+)", "map.convolutions.{i}.{kind}"),
    (r"text_encoder\.fc_out1\.(?P<kind>\w+)", "sentences.iou.{kind}"),
    (r"text_encoder\.fc_out2\.(?P<kind>\w+)", "sentences.contrast.{kind}"),
    (r"text_encoder\.layernorm\.(?P<kind>\w+)", "sentences.norm.{kind}"),
    (r"proposal_conv\.convs\.(?P<i>\d+)\.(?P<kind>\w+)", "proposals.layers.{i}.convolution.{kind}"),
    (r"proposal_conv\.bn\.(?P<i>\d+)\.(?P<kind>\w+)", "proposals.layers.{i}.norm.{kind}"),
    (r"proposal_conv\.conv1x1_iou\.(?P<kind>\w+)", "cell_iou.{kind}"),
    (r"proposal_conv\.conv1x1_contrastive\.(?P<kind>\w+)", "cell_contrast.{kind}"),
)
_TEXT_ENCODER = "text_encoder.bert."  # MMN's DistilBERT, for which features of a text encoder stand here
_POINTWISE = ("clip_projection.weight", "cell_iou.weight", "cell_contrast.weight")  # convolutions of one clip or cell
_PARTS = {"vid": "video", "txt": "text"}
_HEADS = {
    "query_scale": "scale_head",
    "ref_point_head": "position_head",
    "bbox_embed": "refine_head",
    "ref_anchor_head": "width_head",
}
_STACKS = {"t2v_encoder": "text_to_video", "encoder": "encoder", "decoder": "decoder.layers"}
_INSIDE = {
    "self_attn.in_proj_": "{attention}.in_",
    "self_attn.out_proj.": "{attention}.out.",
    "multihead_attn.in_proj_": "cross_attention.in_",
    "multihead_attn.out_proj.": "cross_attention.out.",
    "cross_attn.out_proj.": "cross_attention.out.",
    "linear1.": "feed_forward.linear1.",
    "linear2.": "feed_forward.linear2.",
    "activation.weight": "feed_forward.slope",
    "sa_qcontent_proj.": "self_attention.query_content.",
    "sa_qpos_proj.": "self_attention.query_position.",
    "sa_kcontent_proj.": "self_attention.key_content.",
    "sa_kpos_proj.": "self_attention.key_position.",
    "sa_v_proj.": "self_attention.value.",
    "ca_qcontent_proj.": "cross_attention.query_content.",
    "ca_qpos_proj.": "cross_attention.query_position.",
    "ca_kcontent_proj.": "cross_attention.key_content.",
    "ca_kpos_proj.": "cross_attention.key_position.",
    "ca_v_proj.": "cross_attention.value.",
    "ca_qpos_sine_proj.": "cross_attention.query_anchor.",
}

_OPTIONS = {
    "video_dim": "v_feat_dim",
    "text_dim": "t_feat_dim",
    "hidden": "hidden_dim",
    "heads": "nheads",
    "feed_forward": "dim_feedforward",
    "encoder_layers": "enc_layers",
    "decoder_layers": "dec_layers",
    "queries": "num_queries",
    "projections": "n_input_proj",
    "dropout": "dropout",
    "input_dropout": "input_dropout",
    "longest_text": "max_q_l",
    "text_positions": "use_txt_pos",
}

OPTION_CLASSES = ("argparse.Namespace", "easydict.EasyDict")


class CheckpointError(ValueError):
    """Error for a file that is no checkpoint of this model; the message names the parameters that do not fit."""


def our_name(official: str) -> str:
    """Return our name of an official parameter; raise `CheckpointError` if there is none."""
    name = official.removeprefix("module.")  # of a model that several devices trained
    if name == "query_embed.weight":
        return "queries"
    for pattern, form in _NAMES:
        matched = re.fullmatch(pattern, name)
        if matched:
            return form.format(**_translated(matched.groupdict()))
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
    """Return official weights under our names.

    A query table of two columns holds anchors; MMN's pointwise convolutions are linear layers here, and its text
    encoder is left out.
    """
    ours = {our_name(name): value for name, value in official.items() if _TEXT_ENCODER not in name}
    ours |= {name: ours[name].flatten(1) for name in _POINTWISE if name in ours}
    if "queries" in ours and ours["queries"].shape[-1] == 2:
        ours["anchors"] = ours.pop("queries")
    return ours


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights under our names into a model; raise `CheckpointError` naming the first that do not fit."""
    expected = model.state_dict()
    missing, foreign = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    other = [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if missing or foreign or other:
        kinds = (("missing", missing), ("unknown", foreign), ("of another shape", other))
        faults = "; ".join(f"{kind}: {', '.join(names[:3])} ({len(names)})" for kind, names in kinds if names)
        raise CheckpointError(f"a checkpoint of another model than {type(model).__name__}: {faults}")
    model.load_state_dict(dict(weights))


def read_official(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights (under our names) and options of an official checkpoint file.

    Raise `CheckpointError` if the file holds more than weights and options, or no weights.
    """
    harmless: list[Any] = [(OrderedDict, name) for name in OPTION_CLASSES]
    with torch.serialization.safe_globals(harmless):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and unpickler faults have no common class
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
            raise CheckpointError(f"{path} can't be read as weights alone ({reason})") from None
    weights = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no weights under 'model'")
    options = content.get("opt", {})
    return convert(weights), {**vars(options), **options} if isinstance(options, OrderedDict) else dict(options)


def official_settings(
    options: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None, **changes: Any
) -> ModelSettings:
    """Return the model settings of an official checkpoint: its options, and sizes that its weights (our names) tell."""
    sizes = {ours: options[name] for ours, name in _OPTIONS.items() if name in options}
    if options.get("contrastive_align_loss") or "lw_contrastive_loss_coef" in options:  # Moment-DETR's, BM-DETR's
        sizes["alignment"] = options["contrastive_hdim"]
    return ModelSettings(**{**sizes, **(_sizes(weights) if weights else {}), **changes})


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sizes that shapes tell; the number of heads is not among them."""
    layer = "encoder.0.feed_forward.linear1.weight"
    table = weights.get("queries", weights.get("anchors"))
    if "video_projection.stages.0.norm.weight" not in weights or layer not in weights or table is None:
        raise CheckpointError("weights of none of these models: there is no input projection, encoder or query")
    aligned = weights.get("align_heads.video.weight")
    return ({} if aligned is None else {"alignment": len(aligned)}) | {
        "video_dim": len(weights["video_projection.stages.0.norm.weight"]),
        "text_dim": len(weights["text_projection.stages.0.norm.weight"]),
        "feed_forward": weights[layer].shape[0],
        "hidden": weights[layer].shape[1],
        "queries": len(table),
        "encoder_layers": _count(weights, r"encoder\.(\d+)\."),
        "decoder_layers": _count(weights, r"decoder\.layers\.(\d+)\."),
        "projections": _count(weights, r"video_projection\.stages\.(\d+)\."),
        "longest_text": len(weights["text_positions.table.weight"]),
    }


def _count(weights: Mapping[str, Tensor], pattern: str) -> int:
    """Return the number of layers of a kind."""
    return len({matched[1] for name in weights if (matched := re.match(pattern, name))})
