"""Reading of official checkpoints of Moment-DETR, QD-DETR, SHINE, BM-DETR and MMN, with their parameters renamed.

The published files are dictionaries with the weights under "model" and a pickled namespace of options. They are read
with `weights_only=True`, and a dictionary replaces the classes of options, so that no code in a file is executed.
"""

import mmap
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

# (start of an official name, start of ours), tried in order; "vid" and "txt" in ours then become "video" and "text"
_STARTS = (
    (r"query_embed\.weight$", "queries"),
    (r"input_(vid|txt)_proj\.(\d+)\.LayerNorm\.", r"\1_projection.stages.\2.norm."),
    (r"input_(vid|txt)_proj\.(\d+)\.net\.1\.", r"\1_projection.stages.\2.linear."),
    (r"txt_position_embed\.position_embeddings\.", "text_positions.table."),
    (r"txt_position_embed\.LayerNorm\.", "text_positions.norm."),
    (r"span_embed\.", "span_head."),
    (r"class_embed\.", "class_head."),
    (r"saliency_proj\.", "saliency_head."),
    (r"saliency_proj1\.", "clip_saliency."),
    (r"saliency_proj2\.", "global_saliency."),
    (r"global_rep_token$", "global_token"),
    (r"global_rep_pos$", "global_position"),
    (r"contrastive_align_(?:projection_)?(query|txt|video|vid)(?:_proj)?\.", r"align_heads.\1."),
    (r"(vid|txt)_att_pooling\.feat2att\.", r"pooling.\1.scorer.hidden."),
    (r"(vid|txt)_att_pooling\.to_alpha\.", r"pooling.\1.scorer.score."),
    (r"(vid|txt)_att_pooling\.fc\.", r"pooling.\1.out."),
    (r"FPM\.0\.", "frame_matcher.hidden."),
    (r"FPM\.2\.", "frame_matcher.score."),
    (r"transformer\.encoder\.query_scale\.", "position_scale."),
    (r"transformer\.decoder\.norm\.", "decoder.norm."),
    (r"transformer\.decoder\.query_scale\.", "decoder.scale_head."),
    (r"transformer\.decoder\.ref_point_head\.", "decoder.position_head."),
    (r"transformer\.decoder\.bbox_embed\.", "decoder.refine_head."),
    (r"transformer\.decoder\.ref_anchor_head\.", "decoder.width_head."),
    (r"transformer\.t2v_encoder\.layers\.(\d+)\.self_attn\.", r"text_to_video.\1.attention."),
    (r"transformer\.encoder\.layers\.(\d+)\.self_attn\.", r"encoder.\1.attention."),
    (r"transformer\.decoder\.layers\.(\d+)\.self_attn\.", r"decoder.layers.\1.self_attention."),
    (r"transformer\.decoder\.layers\.(\d+)\.(?:multihead|cross)_attn\.", r"decoder.layers.\1.cross_attention."),
    (r"transformer\.t2v_encoder\.layers\.", "text_to_video."),
    (r"transformer\.encoder\.layers\.", "encoder."),
    (r"transformer\.decoder\.layers\.", "decoder.layers."),
    (r"featpool\.conv\.", "clip_projection."),
    (r"feat2d\.convs\.", "map.convolutions."),
    (r"text_encoder\.fc_out1\.", "sentences.iou."),
    (r"text_encoder\.fc_out2\.", "sentences.contrast."),
    (r"text_encoder\.layernorm\.", "sentences.norm."),
    (r"proposal_conv\.convs\.(\d+)\.", r"proposals.layers.\1.convolution."),
    (r"proposal_conv\.bn\.(\d+)\.", r"proposals.layers.\1.norm."),
    (r"proposal_conv\.conv1x1_iou\.", "cell_iou."),
    (r"proposal_conv\.conv1x1_contrastive\.", "cell_contrast."),
)
# parts of a name inside a layer of a transformer
_INSIDE = (
    (r"in_proj_", "in_"),
    (r"out_proj\.", "out."),
    (r"\.(linear[12])\.", r".feed_forward.\1."),
    (r"\.activation\.weight", ".feed_forward.slope"),
    (r"\.sa_([qkv])", r".self_attention.\1"),
    (r"\.ca_([qkv])", r".cross_attention.\1"),
    (r"\.qpos_sine_proj\.", ".query_anchor."),
    (r"\.([qk])content_proj\.", r".\1_content."),
    (r"\.([qk])pos_proj\.", r".\1_position."),
    (r"\.q_(content|position)", r".query_\1"),
    (r"\.k_(content|position)", r".key_\1"),
    (r"\.v_proj\.", ".value."),
)
_TEXT_ENCODER = "text_encoder.bert."  # MMN's DistilBERT, which Penumbra replaces by features of a text encoder
_POINTWISE = ("clip_projection.weight", "cell_iou.weight", "cell_contrast.weight")  # convolutions of kernel size 1
OPTION_CLASSES = ("argparse.Namespace", "easydict.EasyDict")
LARGER = 4  # highest ratio of the weights' size to the file's size, above 1 because shared weights are stored once


class CheckpointError(ValueError):
    """Error for a file that is no checkpoint of this model; the message names the parameters that do not fit."""


def our_name(official: str) -> str:
    """Return our name of an official parameter; raise `CheckpointError` if there is none."""
    name = official.removeprefix("module.")  # the prefix of torch's DataParallel
    for pattern, start in _STARTS:
        if matched := re.match(pattern, name):
            ours = matched.expand(start).replace("vid.", "video.").replace("vid_", "video_").replace("txt", "text")
            ours += name[matched.end() :]
            if name.startswith("transformer."):
                for part, replacement in _INSIDE:
                    ours = re.sub(part, replacement, ours)
            return ours
    raise CheckpointError(f"no parameter {official!r} is known")


def convert(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return official weights under our names, without MMN's text encoder; `queries` with two columns are anchors."""
    ours = {our_name(name): value for name, value in official.items() if _TEXT_ENCODER not in name}
    ours |= {name: ours[name].flatten(1) for name in _POINTWISE if name in ours}
    if "queries" in ours and ours["queries"].shape[-1] == 2:
        ours["anchors"] = ours.pop("queries")
    return ours


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights under our names into a model; raise `CheckpointError` naming the first that do not fit.

    The tensors of a model on the device `meta`, which have no memory, are replaced by the loaded tensors.
    """
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
    model.load_state_dict(dict(weights), assign=any(value.is_meta for value in expected.values()))


def read_official(path: str | Path) -> dict[str, Tensor]:
    """Return an official file's weights under our names; raise `CheckpointError` if it can't be read."""
    harmless: list[Any] = [(OrderedDict, name) for name in OPTION_CLASSES]
    with torch.serialization.safe_globals(harmless):
        try:
            if zipfile.is_zipfile(path) and any(it.compress_type for it in zipfile.ZipFile(path).infolist()):
                raise CheckpointError("it is compressed, which torch.save does not do")
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                # torch's unpickler would allocate a bytearray of any length
                if data.find(b"bytearray") >= 0:
                    raise CheckpointError("it creates a bytearray, which weights do not need")
            if str(path).endswith(".safetensors"):
                content = load_file(path)
            else:
                content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and unpickler faults have no common class
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
            raise CheckpointError(f"{path} can't be read as weights only ({reason})") from None
    weights = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no weights under 'model'")
    # a view that repeats one number can have any size
    size = sum(value.numel() * value.element_size() for value in weights.values())
    if any(value.is_meta or value.layout != torch.strided for value in weights.values()) or (
        size > LARGER * Path(path).stat().st_size
    ):
        raise CheckpointError(f"{path} does not hold the numbers of its weights, which would take {size:,} bytes")
    return convert(weights)
