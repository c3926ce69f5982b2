"""The rows that are exported: in SHINE's own form, one negative a row, or a sheet for people to judge."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.quality.artifact import ArtifactNegatives
from penumbra.tasks.negatives.quality.review import sheet_rows, sheet_text

LEVELS = (1, 2, 3)
WITHOUT_MASKS = ("jsonl", "csv", "parquet")  # formats that tell whole sentences as well: they have no masked query


def sources_of(store: Store, negatives: Artifact) -> dict[str, Artifact]:
    """The very annotations and masks that these negatives were made from."""
    return {parent.stage: parent for parent in store.manifest(negatives).parents}


def export_rows(
    store: Store, dataset: str, format_: str, told: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, Any]]:
    """The rows of the newest negatives of a data set, in the order of its annotations.

    `shine` gives the keys of the authors' release in their order, for queries that have all three levels;
    any other format one row a negative, whose masked query is None where it is a whole sentence. `told` hears at the
    end how many training queries are not among them. Raises `ArtifactError` where that is all of them, and before a
    row is asked for: no file is written over for nothing.
    """
    rows = _rows(store, dataset, format_, told)
    return chain(list(islice(rows, 1)), rows)


def _rows(store: Store, dataset: str, format_: str, told: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    negatives = store.newest(dataset, "negatives")
    sources = sources_of(store, negatives)
    if "annotations" not in sources:
        raise ArtifactError(f"{negatives.path} does not name its annotations and masks: build it again")
    if "masks" not in sources and format_ not in WITHOUT_MASKS:
        raise ArtifactError(
            f"{negatives.path}, the newest, holds whole sentences, which have no masks, and SHINE's form and a data "
            f"set of the hub tell masks: choose another --format ({', '.join(WITHOUT_MASKS)}), or build negatives again"
        )
    needed, queries, left_out = set(LEVELS), 0, 0
    read = sources["annotations"], *((sources["masks"],) if "masks" in sources else ()), negatives
    for annotations, *masks, chosen in zip(*map(store.parts, read), strict=True):
        masked = {(row["qid"], row["level"]): row["masked_query"] for table in masks for row in table.to_pylist()}
        filled = {(row["qid"], row["level"]): row for row in chosen.to_pylist()}
        for row in annotations.to_pylist():
            levels = {level for level in LEVELS if (row["qid"], level) in filled}
            queries += row["split"] == "train"
            left_out += row["split"] == "train" and levels != needed
            if format_ == "shine":
                if levels == needed:
                    yield _shine_row(row, masked, filled)
                continue
            for level in sorted(levels):
                yield _negative_row(row, level, masked, filled)
    if left_out == queries and not store.manifest(negatives).rows:
        raise ArtifactError(f"{negatives.path} holds no negative: penumbra run build-negatives {dataset} says why")
    if left_out:
        rest = "they are left out" if format_ == "shine" else "only what they have is written"
        told(f"{left_out:,} of {queries:,} training queries have not all three levels: {rest}")


def _shine_row(row: dict[str, Any], masked: dict[Any, str], filled: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    return {
        "qid": row["qid"],
        "query": row["query"],
        "duration": row["duration"],
        "vid": row["vid"],
        "relevant_windows": row["windows"],
        "masked_queries": [masked[row["qid"], level] for level in LEVELS],
        "recomposed_queries": [filled[row["qid"], level]["negative"] for level in LEVELS],
    }


def _negative_row(
    row: dict[str, Any], level: int, masked: dict[Any, str], filled: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    negative = filled[row["qid"], level]
    return {
        "qid": row["qid"],
        "vid": row["vid"],
        "level": level,
        "query": row["query"],
        "masked_query": masked.get((row["qid"], level)),
        "negative": negative["negative"],
        "words": negative["words"],
        "provider": negative["provider"],
        "model": negative["model"],
        "similarity": short(negative["similarity"]),
    }


def short(value: float) -> float:
    """The number with the fewest digits that is the same as a float32: 0.8 where Python has 0.800000011920929."""
    return float(str(np.float32(value)))


def review_sheet(store: Store, dataset: str, count: int, seed: int) -> str:
    """A sheet of the newest negatives, as CSV: a seeded sample of `count` rows, as many of each level as can be."""
    negatives = ArtifactNegatives(store, store.newest(dataset, "negatives"))
    return sheet_text(sheet_rows(chain.from_iterable(negatives.parts()), count, seed))
