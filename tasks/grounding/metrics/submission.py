"""Submission files in the field's JSON lines: one query a line, its windows and its saliency."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penumbra.tasks.grounding.metrics.windows import EvaluationError


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
