"""MMN against the authors' published code: outputs, losses, gradients, steps, suppression, figures."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.checkpoints import convert, load_weights
from penumbra.models.losses import Losses
from penumbra.models.map_losses import MapTargets, MMNLosses, mmn_losses
from penumbra.models.mmn import (
    MMN,
    MapInputs,
    MapOutputs,
    MMNSettings,
    candidate_overlap,
    candidate_windows,
    segment_means,
)
from penumbra.models.spans import suppress
from penumbra.tasks.grounding.metrics import align, score_queries
from tests.golden.reading import OUTPUTS, Golden, close, each_golden, ten_steps

pytestmark = each_golden("mmn")


def options(golden: Golden) -> dict[str, Any]:
    return golden.config["cfg"]["MODEL"]["MMN"]


def settings(golden: Golden) -> MMNSettings:
    o = options(golden)
    pool, proposal = o["FEATPOOL"], o["PREDICTOR"]
    return MMNSettings(
        video_dim=pool["INPUT_SIZE"],
        text_dim=golden.arrays["in.tokens.0"].shape[-1],
        hidden=pool["HIDDEN_SIZE"],
        joint=o["JOINT_SPACE_SIZE"],
        clips=o["NUM_CLIPS"],
        counts=tuple(o["FEAT2D"]["POOLING_COUNTS"]),
        segments=golden.config["cfg"]["INPUT"]["NUM_PRE_CLIPS"],
        pool=pool["KERNEL_SIZE"],
        kind=o["FEAT2D"]["NAME"],
        proposal=proposal["HIDDEN_SIZE"],
        kernel=proposal["KERNEL_SIZE"],
        layers=proposal["NUM_STACK_LAYERS"],
    )


def model(golden: Golden) -> MMN:
    found = MMN(settings(golden))
    load_weights(found, convert(golden.official_weights))
    return found


def of_videos(golden: Golden, key: str) -> list[Tensor]:
    return [golden.tensor(f"{key}.{video}") for video in range(len(golden.config["durations"]))]


def inputs(golden: Golden) -> MapInputs:
    """All sentences of all videos, the first video's first."""
    tokens, lengths = of_videos(golden, "in.tokens"), torch.cat(of_videos(golden, "in.wordlen"))
    longest = max(part.shape[1] for part in tokens)
    text = torch.cat([functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in tokens])
    video_of = torch.tensor([video for video, part in enumerate(tokens) for _ in part])
    mask = torch.arange(longest) < lengths[:, None]
    return MapInputs(golden.tensor("in.feats"), text[None], mask[None], video_of)


def durations(golden: Golden) -> Tensor:
    return torch.tensor(golden.config["durations"])[inputs(golden).video_of]


def targets(golden: Golden, net: MMN) -> MapTargets:
    windows = torch.cat(of_videos(golden, "in.moments"))[:, None]
    present = torch.ones(windows.shape[:2], dtype=torch.bool)
    overlap = candidate_overlap(net.cells, net.settings.clips, durations(golden), windows, present)
    return MapTargets(overlap, windows, present)


def losses(golden: Golden, net: MMN, late: bool = False) -> Losses:
    o = options(golden)["LOSS"]
    names = ("MIN_IOU", "MAX_IOU", "NUM_POSTIVE_VIDEO_PROPOSAL", "NEGATIVE_VIDEO_IOU", "SENT_REMOVAL_IOU")
    weights = MMNLosses(*(o[name] for name in (*names, "TAU_VIDEO", "TAU_SENT", "MARGIN", "CONTRASTIVE_WEIGHT")))
    return mmn_losses(net(inputs(golden)), replace(targets(golden, net), late=late), weights)


def cells(golden: Golden, net: MMN, key: str) -> Tensor:
    """A score map of the golden file at our candidates [S, M]."""
    return torch.cat(of_videos(golden, key)).flatten(1)[:, net.places]


def predicted(golden: Golden, net: MMN, keep: int) -> list[Tensor]:
    test = golden.config["cfg"]["TEST"]
    with torch.no_grad():
        outputs: MapOutputs = net.eval()(inputs(golden))
    windows = candidate_windows(net.cells, net.settings.clips, durations(golden))
    rows = torch.cat((windows, outputs.fused(test["CONTRASTIVE_SCORE_POW"])[..., None]), dim=-1)
    return suppress(rows, test["NMS_THRESH"], keep)


def test_videos_are_averaged_to_segments(golden: Golden) -> None:
    if "raw.video.0" not in golden.arrays:
        pytest.skip("this file holds no raw features")
    videos = [functional.normalize(video, dim=-1) for video in of_videos(golden, "raw.video")]
    padded = nn.utils.rnn.pad_sequence(videos, batch_first=True)
    means = segment_means(padded, torch.tensor([*map(len, videos)]), settings(golden).segments)
    close(means, golden.tensor("in.feats"), OUTPUTS)


def test_candidates_and_their_overlap(golden: Golden) -> None:
    net = model(golden)
    flags = torch.zeros(net.settings.clips**2, dtype=torch.bool).index_fill(0, net.places, True)
    assert torch.equal(flags, golden.tensor("mask2d").flatten())
    close(targets(golden, net).overlap, cells(golden, net, "in.iou2d"), OUTPUTS)


def test_outputs(golden: Golden) -> None:
    net, test = model(golden).eval(), golden.config["cfg"]["TEST"]
    with torch.no_grad():
        clips = net.pool(golden.tensor("in.feats"))
        found: MapOutputs = net(inputs(golden))
    close(clips, golden.tensor("inter_eval.featpool.call0"), OUTPUTS)
    close(net.map(clips), golden.tensor("inter_eval.feat2d.call0"), OUTPUTS)
    close(found.contrast(), cells(golden, net, "out.contrastive_scores"), OUTPUTS)
    close(found.iou_logits().sigmoid(), cells(golden, net, "out.iou_scores"), OUTPUTS)
    close(found.fused(test["CONTRASTIVE_SCORE_POW"]), cells(golden, net, "out.fused"), OUTPUTS)


@pytest.mark.parametrize("training", [False, True])
def test_proposals_are_equal_without_their_border(golden: Golden, training: bool) -> None:
    """The published code normalises a border that no candidate reaches; here it is only counted."""
    net, mode = model(golden).train(training), "train" if training else "eval"
    found = net.proposals(net.map(net.pool(golden.tensor("in.feats"))))
    for number, head in enumerate((net.cell_contrast, net.cell_iou)):
        wanted = golden.tensor(f"inter_{mode}.proposal_conv.call0.{number}")
        close(head(found.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), wanted, OUTPUTS)
    if training:
        for number, layer in enumerate(net.proposals.layers):
            for name in ("running_mean", "running_var"):
                close(getattr(layer.norm, name), golden.tensor(f"after_train.bn.{number}.{name}"), OUTPUTS)


def test_losses(golden: Golden) -> None:
    net = model(golden)
    found = losses(golden, net)
    for name, official in (("iou", "iou"), ("among_sentences", "vid"), ("among_moments", "sent")):
        close(found.terms[name], golden.tensor(f"loss.{official}"), OUTPUTS)
    close(found.total, golden.tensor("loss.total_epoch_le_only_iou"), OUTPUTS)
    close(losses(golden, net, late=True).total, golden.tensor("loss.total_epoch_gt_only_iou"), OUTPUTS)


def test_gradients_and_ten_steps(golden: Golden) -> None:
    net = model(golden)
    ten_steps(golden, net, lambda: losses(golden, net), rounding=1e-6)


def test_suppressed_windows(golden: Golden) -> None:
    net = model(golden)
    found = predicted(golden, net, keep=len(net.cells))
    videos = enumerate(of_videos(golden, "in.moments"))
    keys = [f"{video}.{number}" for video, part in videos for number in range(len(part))]
    for rows, key in zip(found, keys, strict=True):
        close(rows[:, :2], golden.tensor(f"out.nms.{key}"), OUTPUTS)


def test_official_figures(golden: Golden) -> None:
    truth = [[window] for video in golden.config["moments"] for window in video]
    found = predicted(golden, model(golden), keep=5)
    names = [str(number) for number in range(len(truth))]
    predictions = {name: rows.tolist() for name, rows in zip(names, found, strict=True)}
    scores = score_queries(align(predictions, dict(zip(names, truth, strict=True))))
    figures, best = golden.config["evaluate"], {1: scores.iou, 5: scores.best_of_five}
    for among in (1, 5):
        wanted = {float(n.split("@")[-1]): value for n, value in figures.items() if n.startswith(f"R@{among},")}
        recall = {iou: float((best[among] >= iou).mean()) for iou in wanted}
        assert recall == pytest.approx(wanted, abs=1e-6)
        assert sum(recall.values()) / len(recall) == pytest.approx(figures[f"Best_R{among}"], abs=1e-6)
