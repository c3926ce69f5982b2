"""Export negatives: rows as JSON lines, CSV or Parquet, or a folder that Hugging Face's `datasets` loads."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.files import draft_of
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.schemas import SCHEMAS
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.files import inert
from penumbra.tasks.negatives.quality.page import newest_verdict

LEVELS = (1, 2, 3)
TYPES = {"level": pa.int8(), "words": pa.list_(pa.string()), "similarity": pa.float32()}  # others are strings
COLUMNS = ("qid", "vid", "level", "query", "masked_query", "negative", "words", "provider", "model", "similarity")
SCHEMA = pa.schema([(name, TYPES.get(name, pa.string())) for name in COLUMNS])
ROWS = 50_000  # in memory at once
CARD = Path(__file__).with_name("card.md")
QUERY_COLUMNS = ["qid", "vid", "query", "duration", "windows"]
QUERY_SCHEMA = pa.schema([SCHEMAS["annotations"].field(column) for column in QUERY_COLUMNS])
Row = dict[str, Any]
Warn = Callable[[str], None]


def export_rows(store: Store, negatives: Artifact, format_: str, warn: Warn = lambda line: None) -> Iterator[Row]:
    """Return the rows of negatives, in the order of the annotations.

    Format `shine` has a row for each query with all three levels, and the keys of the authors' release in their order.
    Other formats have a row for each negative; its masked query is None if it is a whole sentence. `warn` is called at
    the end with the number of training queries left out. Raises `ArtifactError` if nothing can be exported.
    """
    manifest = store.manifest(negatives)
    sources = {parent.stage: parent for parent in manifest.parents}
    if "annotations" not in sources:
        raise ArtifactError(f"{negatives.path} does not name its annotations and masks: build it again")
    if "masks" not in sources and format_ == "shine":
        raise ArtifactError(
            f"{negatives.path} holds whole sentences, which have no masks, and SHINE's form needs masks: choose "
            "another --format, or build negatives again"
        )
    if not manifest.rows:
        raise ArtifactError(
            f"{negatives.path} holds no negative: penumbra run build-negatives {negatives.dataset} says why"
        )
    read = [sources["annotations"], negatives, *([sources["masks"]] if "masks" in sources else [])]
    return _rows(zip(*map(store.parts, read), strict=True), format_ == "shine", warn)


def _rows(parts: Iterable[tuple[pa.Table, ...]], is_shine: bool, warn: Warn) -> Iterator[Row]:
    queries, incomplete = 0, 0
    for annotations, negatives, *masks in parts:
        masked = {(row["qid"], row["level"]): row["masked_query"] for table in masks for row in table.to_pylist()}
        filled = {(row["qid"], row["level"]): row for row in negatives.to_pylist()}
        for query in annotations.to_pylist():
            levels = [filled[query["qid"], level] for level in LEVELS if (query["qid"], level) in filled]
            queries += query["split"] == "train"
            incomplete += query["split"] == "train" and len(levels) < len(LEVELS)
            if is_shine and len(levels) == len(LEVELS):
                yield {
                    **{name: query[name] for name in ("qid", "query", "duration", "vid")},
                    "relevant_windows": query["windows"],
                    "masked_queries": [masked[row["qid"], row["level"]] for row in levels],
                    "recomposed_queries": [row["negative"] for row in levels],
                }
            for row in levels if not is_shine else ():
                row |= {"vid": query["vid"], "masked_query": masked.get((row["qid"], row["level"]))}
                row["similarity"] = shortest_float(row["similarity"])
                yield {name: row[name] for name in COLUMNS}
    if incomplete:
        rest = "they are left out" if is_shine else "only their other levels are written"
        warn(f"{incomplete:,} of {counted(queries, 'training query')} lack some of the three levels: {rest}")


def shortest_float(value: float) -> float:
    """Return the number with the fewest digits that is the same float32: 0.8, not 0.800000011920929."""
    return float(str(np.float32(value)))


def csv_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield rows as CSV: no cell is a formula for a spreadsheet, and lists are JSON."""
    yield ",".join(COLUMNS) + "\n"
    for row in rows:
        line = io.StringIO()
        texts = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell for cell in row.values()]
        cells = [inert(text) if isinstance(text, str) else text for text in texts]
        csv.writer(line, lineterminator="\n").writerow(cells)
        yield line.getvalue()


def write_parquet(rows: Iterable[Mapping[str, Any]], file: Path, schema: pa.Schema = SCHEMA) -> None:
    """Write rows, by default those of `export_rows`, as Parquet; an error leaves the file unchanged."""
    left = iter(rows)
    with (
        draft_of(file) as draft,
        draft.open("wb") as sink,
        pq.ParquetWriter(sink, schema, compression="zstd") as writer,
    ):
        while batch := list(islice(left, ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def write_folder(store: Store, negatives: Artifact, folder: Path, warn: Warn = lambda line: None) -> None:
    """Write negatives/train.parquet, queries/SPLIT.parquet and README.md for `datasets`; see `export_rows`."""
    rows = export_rows(store, negatives, "hf", warn)
    for name in "negatives", "queries":
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_parquet(rows, folder / "negatives" / "train.parquet")
    annotations = next(parent for parent in store.manifest(negatives).parents if parent.stage == "annotations")
    files = []
    for split in dict.fromkeys(row["split"] for row in store.rows(annotations, ["split"])):
        name = re.sub(r"\W", "_", split)  # `datasets` takes letters, digits and underscores
        files.append(f"{{split: {name}, path: queries/{name}.parquet}}")
        queries = (row for row in store.rows(annotations, ["split", *QUERY_COLUMNS]) if row["split"] == split)
        write_parquet(queries, folder / "queries" / f"{name}.parquet", QUERY_SCHEMA)
    advice = f"`penumbra quality {negatives.dataset}/negatives` measures it"
    quality = newest_verdict(store, negatives) or advice
    about = {"queries": ", ".join(files), "dataset": negatives.dataset, "key": negatives.key, "quality": quality}
    with draft_of(folder / "README.md") as draft:
        draft.write_text(CARD.read_text("utf-8").format(**about), "utf-8")
