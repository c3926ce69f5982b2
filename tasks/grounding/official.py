"""The published evaluation's own report of a submission file, to the last printed digit.

python -m penumbra.tasks.grounding.official submission.jsonl truth.jsonl
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.tasks.grounding.metrics import (
    IOUS,
    EvaluationError,
    Windows,
    align,
    align_saliency,
    highlight_metrics,
    score_queries,
)

RANGES = {"full": (0, np.inf), "long": (30, 150), "middle": (10, 30), "short": (0, 10)}  # seconds, (low, high]
Rows = Sequence[Mapping[str, Any]]


def printed(value: float) -> float:
    """Two decimals, as the published evaluation prints."""
    return float(f"{value:.2f}")


def report(
    submission: Rows,
    truth: Rows,
    ranges: Sequence[str] = tuple(RANGES),
    recall_ious: Sequence[float] = IOUS,
    end: float | None = None,
) -> dict[str, Any]:
    """The figures of a submission by length of the true windows, and of its highlights where both sides have them.

    True windows are cut at `end` seconds, as BM-DETR's evaluation does (see `Ranking.truth_ends`).
    """
    predictions = {str(row["qid"]): row["pred_relevant_windows"] for row in submission}
    windows = align(predictions, {str(row["qid"]): row["relevant_windows"] for row in truth}).until(end)
    found: dict[str, Any] = {}
    for name in ranges:
        part = of_length(windows, *RANGES[name])
        found[name] = _of_range(part, recall_ious) if part.qids else {"MR-mAP": {}, "MR-R1": {}}
    if all("pred_saliency_scores" in row for row in submission) and all("saliency_scores" in row for row in truth):
        found |= _highlights(submission, truth)
    return found


def of_length(windows: Windows, low: float, high: float) -> Windows:
    """Only true windows of a length in (low, high] seconds, and only queries that have one."""
    if high == np.inf:
        return windows
    length = windows.truth[..., 1] - windows.truth[..., 0]
    return windows.keep((length > low) & (length <= high))


def _of_range(windows: Windows, recall_ious: Sequence[float]) -> dict[str, dict[str, float]]:
    scores = score_queries(windows)
    precision = scores.precision.mean(0)
    by_iou = {str(iou): printed(100 * value) for iou, value in zip(IOUS, precision, strict=True)}
    recall = {str(iou): printed(100 * scores.recall(1, iou).mean()) for iou in recall_ious}
    return {
        "MR-mAP": {**by_iou, "average": printed(100 * np.mean(precision))},
        "MR-R1": {**recall, "average": printed(100 * scores.iou.mean())},
    }


def _highlights(submission: Rows, truth: Rows) -> dict[str, dict[str, float]]:
    saliency = {str(row["qid"]): row["pred_saliency_scores"] for row in submission}
    figures = highlight_metrics(
        align_saliency(
            [saliency[str(row["qid"])] for row in truth],
            [row["duration"] for row in truth],
            [row["relevant_clip_ids"] for row in truth],
            [row["saliency_scores"] for row in truth],
        )
    )
    levels = sorted({name.split("-")[1] for name in figures})
    return {
        f"HL-min-{level}": {f"HL-{kind}": printed(figures[f"HL-{level}-{kind}"]) for kind in ("mAP", "Hit1")}
        for level in levels
    }


def main(words: list[str] | None = None) -> None:
    """Print the report of a submission. Exit status 2 for files that can't be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("submission", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--truth-ends", type=float, help="cut the true windows at so many seconds, as BM-DETR does")
    arguments = parser.parse_args(words)
    try:
        found = report(read_lines(arguments.submission), read_lines(arguments.truth), end=arguments.truth_ends)
    except (OSError, ValueError, EvaluationError) as error:
        parser.error(str(error))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; raises `EvaluationError` naming the file and line that is none."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path} can't be read ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise EvaluationError(f"{path} line {number} is not JSON ({error.msg})") from None
        if not isinstance(row, dict) or "qid" not in row:
            raise EvaluationError(f"{path} line {number} has no qid")
        rows.append(row)
    return rows


def submission_rows(
    predictions: Iterable[Mapping[str, Any]], annotations: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Rows of the `predictions` table in the form that the public evaluation servers read."""
    for row in predictions:
        annotation = annotations[row["qid"]]
        yield {
            "qid": _number(row["qid"]),
            "query": annotation["query"],
            "vid": annotation["vid"],
            "pred_relevant_windows": [[w["start"], w["end"], w["score"]] for w in row["windows"]],
            "pred_saliency_scores": list(row["saliency"]),
        }


def _number(qid: str) -> int | str:
    """QVHighlights' own ids are numbers, and its server compares them as such."""
    return int(qid) if qid.isascii() and qid.isdecimal() and str(int(qid)) == qid else qid


def write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write rows as JSON lines; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count
