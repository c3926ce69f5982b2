"""The published evaluation's own report of a submission file, to the last printed digit.

python -m bench.official submission.jsonl truth.jsonl
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.tasks.grounding.metrics import (
    IOUS,
    LEVELS,
    EvaluationError,
    Windows,
    align,
    highlight_scores,
    means,
    score_queries,
)

RANGES = {"full": (0, np.inf), "long": (30, 150), "middle": (10, 30), "short": (0, 10)}  # seconds, (low, high]
Rows = Sequence[Mapping[str, Any]]


def report(
    submission: Rows,
    truth: Rows,
    ranges: Sequence[str] = tuple(RANGES),
    recall_ious: Sequence[float] = IOUS,
    end: float | None = None,
) -> dict[str, Any]:
    """Return the figures of a submission by length of the true windows, and of highlights if both sides have them.

    True windows are cut at `end` seconds, as in BM-DETR's evaluation (see `Ranking.truth_ends`).
    """
    predictions = {str(row["qid"]): row["pred_relevant_windows"] for row in submission}
    windows = align(predictions, {str(row["qid"]): row["relevant_windows"] for row in truth}).until(end)
    figures: dict[str, Any] = {}
    for name in ranges:
        low, high = RANGES[name]
        length = windows.truth[..., 1] - windows.truth[..., 0]
        part = windows if high == np.inf else windows.keep((length > low) & (length <= high))
        figures[name] = _retrieval(part, recall_ious) if part.qids else {"MR-mAP": {}, "MR-R1": {}}
    if all("pred_saliency_scores" in row for row in submission) and all("saliency_scores" in row for row in truth):
        saliency = {str(row["qid"]): row["pred_saliency_scores"] for row in submission}
        labels = ([row[name] for row in truth] for name in ("duration", "relevant_clip_ids", "saliency_scores"))
        found = means(highlight_scores([saliency[str(row["qid"])] for row in truth], *labels))
        for level in LEVELS:
            figures[f"HL-min-{level}"] = {f"HL-{k}": _printed(found[f"HL-{level}-{k}"]) for k in ("mAP", "Hit1")}
    return figures


def _retrieval(windows: Windows, recall_ious: Sequence[float]) -> dict[str, dict[str, float]]:
    scores = score_queries(windows)
    precision = scores.precision.mean(0)
    by_iou = {str(iou): _printed(100 * value) for iou, value in zip(IOUS, precision, strict=True)}
    recall = {str(iou): _printed(100 * (scores.iou >= iou).mean()) for iou in recall_ious}
    return {
        "MR-mAP": {**by_iou, "average": _printed(100 * np.mean(precision))},
        "MR-R1": {**recall, "average": _printed(100 * scores.iou.mean())},
    }


def _printed(value: float) -> float:
    return float(f"{value:.2f}")  # as the published evaluation prints it


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; raise `EvaluationError` naming the file and line that is not valid."""
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path} can't be read ({error})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
                rows.append({"qid": row["qid"], **row})
            except (ValueError, KeyError, TypeError):
                raise EvaluationError(f"{path} line {number} is no JSON object with a qid") from None
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Print the report of a submission; exit with status 2 if a file can't be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("submission", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--truth-ends", type=float, help="cut the true windows at so many seconds, as BM-DETR does")
    options = parser.parse_args(arguments)
    try:
        figures = report(read_lines(options.submission), read_lines(options.truth), end=options.truth_ends)
    except (ValueError, EvaluationError) as error:
        parser.error(str(error))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
