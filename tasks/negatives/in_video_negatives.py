"""Stage `in_video_negatives`: BM-DETR's negatives, which are other queries of the same video.

A pair qualifies when its windows overlap by less than 0.5 IoU and its queries' SentenceBERT cosine is below a
threshold (Jung et al., "Background-aware Moment Detection", section 3.2).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.stage import Stage, read_part
from penumbra.tasks.text.embeddings import cosine, vectors_by_text

STAGE = "in_video_negatives"


class Pairing(Parameters):
    """The conditions under which another query of the same video is a negative."""

    highest_iou: float = Field(0.5, ge=0, le=1, description="Windows must overlap by less than this IoU.")
    highest_similarity: float = Field(0.9, ge=-1, le=1, description="Queries' cosine must be below this.")


@dataclass(frozen=True)
class InVideoNegatives(Stage):
    name = STAGE
    version = 1
    unit = "pair"

    annotations: Artifact
    embeddings: Artifact
    pairing: Pairing

    def part(self, piece: int) -> Part:
        """Return all ordered pairs of one part; a part holds whole videos, so that no pair spans two parts.

        A query that is repeated with the same windows serves as a negative once.
        """
        annotations, embeddings = read_part(piece, self.annotations, self.embeddings)
        vectors, pairing = vectors_by_text(embeddings), self.pairing
        videos: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in annotations.select(["qid", "vid", "split", "query", "windows"]).to_pylist():
            if row["split"] == "train" and row["windows"]:
                videos[row["vid"]].append(row)
        rows = []
        for members in videos.values():
            distinct = list({(row["query"], str(row["windows"])): row for row in reversed(members)}.values())[::-1]
            for query, other in product(members, distinct):
                if query["qid"] == other["qid"]:
                    continue
                iou = max(_iou(*pair) for pair in product(query["windows"], other["windows"]))
                similarity = cosine(vectors[query["query"]], vectors[other["query"]])
                if iou < pairing.highest_iou and similarity < pairing.highest_similarity:
                    about = {"qid": query["qid"], "negative_qid": other["qid"]}
                    rows.append({**about, "iou": iou, "similarity": similarity})
        return Part(table_of(STAGE, rows), len(rows), len(rows))


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0])) / (max(a[1], b[1]) - min(a[0], b[0]))
