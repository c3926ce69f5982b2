"""Write the negatives of a data set for others: rows as JSON lines, CSV or Parquet, or a folder for the Hub.

The folder has README.md (the card), negatives/train.parquet (one negative in each row), and queries/SPLIT.parquet.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.files import draft_of
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted, markdown_table, plain
from penumbra.artifacts.schemas import SCHEMAS
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.files import inert
from penumbra.tasks.negatives.quality.page import figure_tables, newest_report

LEVELS = (1, 2, 3)
SENTENCE_FORMATS = ("jsonl", "csv", "parquet")  # don't need masked queries, which whole sentences lack
TYPES = {"level": pa.int8(), "words": pa.list_(pa.string()), "similarity": pa.float32()}  # others are strings
COLUMNS = ("qid", "vid", "level", "query", "masked_query", "negative", "words", "provider", "model", "similarity")
SCHEMA = pa.schema([(name, TYPES.get(name, pa.string())) for name in COLUMNS])
ROWS = 50_000  # in memory at once
NEGATIVES, QUERIES = "negatives", "queries"
QUERY_COLUMNS = ["qid", "vid", "query", "duration", "windows"]
QUERY_SCHEMA = pa.schema([SCHEMAS["annotations"].field(column) for column in QUERY_COLUMNS])
CARD = """---
{head}---

# {title}

Sentences that are false of their moment, three for each query, each less similar to the query than the one before,
after [SHINE](https://arxiv.org/abs/2407.05118) (ECCV 2024). Made with Penumbra.

{notes}## Load

```python
from datasets import load_dataset

negatives = load_dataset("{name}", split="train")
queries = load_dataset("{name}", "queries")
```

## Columns

| column | what it is |
| --- | --- |
| `qid`, `vid` | the query, the video |
| `level` | 1 to 3: how much of the query is replaced |
| `query`, `masked_query`, `negative` | the sentence, its masks, and what is false of the moment |
| `words`, `provider`, `model` | what fills the masks, and who filled them |
| `similarity` | cosine of both sentences |

`queries` has `qid`, `vid`, `query`, `duration` and `windows` (seconds) of every split.

## How good they are

{quality}

## How they were made

The table `{key}`, {parameters}.

With {software}.

## Licence

`{licence}`. The queries are those of {dataset}, and under its licence.
"""
Row = dict[str, Any]
Warn = Callable[[str], None]


# -- rows -------------------------------------------------------------------------------------------------------------


def export_rows(store: Store, negatives: Artifact, format_: str, warn: Warn = lambda line: None) -> Iterator[Row]:
    """Return the rows of negatives, in the order of the annotations.

    `shine` gives the keys of the authors' release in their order, for queries that have all three levels; any other
    format one negative in each row, whose masked query is None if it is a whole sentence. `warn` receives at the end
    how many training queries are left out. Raises `ArtifactError` if that is all of them, before any row is asked for.
    """
    rows = _rows(store, negatives, format_, warn)
    return chain(list(islice(rows, 1)), rows)


def _rows(store: Store, negatives: Artifact, format_: str, warn: Warn) -> Iterator[Row]:
    sources = {parent.stage: parent for parent in store.manifest(negatives).parents}
    if "annotations" not in sources:
        raise ArtifactError(f"{negatives.path} does not name its annotations and masks: build it again")
    if "masks" not in sources and format_ not in SENTENCE_FORMATS:
        raise ArtifactError(
            f"{negatives.path} holds whole sentences, which have no masks, and SHINE's form and a data "
            f"set of the hub need masks: choose another --format ({', '.join(SENTENCE_FORMATS)}), or build negatives "
            "again"
        )
    queries, incomplete = 0, 0
    read = [sources["annotations"], *([sources["masks"]] if "masks" in sources else []), negatives]
    for annotations, *masks, chosen in zip(*map(store.parts, read), strict=True):
        masked = {(row["qid"], row["level"]): row["masked_query"] for table in masks for row in table.to_pylist()}
        filled = {(row["qid"], row["level"]): row for row in chosen.to_pylist()}
        for query in annotations.to_pylist():
            places = [(query["qid"], level) for level in LEVELS if (query["qid"], level) in filled]
            queries += query["split"] == "train"
            incomplete += query["split"] == "train" and len(places) < len(LEVELS)
            if format_ == "shine" and len(places) == len(LEVELS):
                yield {
                    **{name: query[name] for name in ("qid", "query", "duration", "vid")},
                    "relevant_windows": query["windows"],
                    "masked_queries": [masked[place] for place in places],
                    "recomposed_queries": [filled[place]["negative"] for place in places],
                }
            for place in places if format_ != "shine" else ():
                similarity = shortest_float(filled[place]["similarity"])
                row = filled[place] | {"vid": query["vid"], "query": query["query"], "similarity": similarity}
                row["masked_query"] = masked.get(place)
                yield {name: row[name] for name in COLUMNS}
    if incomplete == queries and not store.manifest(negatives).rows:
        raise ArtifactError(
            f"{negatives.path} holds no negative: penumbra run build-negatives {negatives.dataset} says why"
        )
    if incomplete:
        rest = "they are left out" if format_ == "shine" else "only what they have is written"
        warn(f"{incomplete:,} of {counted(queries, 'training query')} lack some of the three levels: {rest}")


def shortest_float(value: float) -> float:
    """Return the number with the fewest digits that is the same float32: 0.8, not 0.800000011920929."""
    return float(str(np.float32(value)))


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows as CSV: no cell is a formula for a spreadsheet, and lists are JSON."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for cells in chain([COLUMNS], ([row[name] for name in COLUMNS] for row in rows)):
        texts = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell for cell in cells]
        writer.writerow([inert(text) if isinstance(text, str) else text for text in texts])
        yield line.getvalue()
        line.seek(line.truncate(0))


def write_parquet(rows: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Write rows of `export_rows` as Parquet; the file stays as it was if they, or writing, fail."""
    left = iter(rows)
    batches = iter(lambda: list(islice(left, ROWS)), [])
    with draft_of(file) as draft:
        _write_tables((pa.Table.from_pylist(batch, schema=SCHEMA) for batch in batches), SCHEMA, draft)


def _write_tables(tables: Iterable[pa.Table], schema: pa.Schema, file: Path) -> None:
    with file.open("wb") as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in tables:
            if len(table):  # `datasets` reads no file with an empty row group
                writer.write_table(table)


# -- a folder for the Hub ---------------------------------------------------------------------------------------------


def write_folder(
    store: Store, negatives: Artifact, folder: Path, name: str, licence: str = "unknown", warn: Warn = lambda line: None
) -> list[str]:
    """Write negatives as `datasets` reads them, and return the names of the files.

    `name` is what the card says to load; `warn` is as in `export_rows`. Raises what that raises. All files are written
    before the first one replaces an older one.
    """
    notes: list[str] = []
    rows = export_rows(store, negatives, "hf", notes.append)
    annotations = next(it for it in store.manifest(negatives).parents if it.stage == "annotations")
    splits = dict.fromkeys(split for part in store.parts(annotations, ["split"]) for split in part["split"].to_pylist())
    named = {re.sub(r"\W", "_", split): split for split in splits}  # `datasets` takes letters, digits, underscores
    files = {NEGATIVES: {"train": f"{NEGATIVES}/train.parquet"}, QUERIES: {n: f"{QUERIES}/{n}.parquet" for n in named}}
    names = ["README.md", *(file for paths in files.values() for file in paths.values())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".draft-", dir=folder) as temporary:
            draft = Path(temporary)
            for config in files:
                (draft / config).mkdir()
                (folder / config).mkdir(exist_ok=True)
            write_parquet(rows, draft / files[NEGATIVES]["train"])
            for split, file in files[QUERIES].items():
                parts = store.parts(annotations, ["split", *QUERY_COLUMNS])
                queries = (part.filter(pc.equal(part["split"], named[split])).select(QUERY_COLUMNS) for part in parts)
                _write_tables((table.cast(QUERY_SCHEMA) for table in queries), QUERY_SCHEMA, draft / file)
            (draft / "README.md").write_text(_card(store, negatives, name, licence, files, notes), encoding="utf-8")
            for file in reversed(names):  # the card last
                (draft / file).replace(folder / file)
    except OSError as error:
        raise PenumbraError(f"--output {folder} can't be written ({error.strerror or error}): name a folder") from None
    for note in notes:
        warn(note)
    return names


def _card(
    store: Store, negatives: Artifact, name: str, licence: str, files: dict[str, dict[str, str]], notes: list[str]
) -> str:
    """Return README.md as the Hub shows it; `files` are those of each split by configuration."""
    manifest = store.manifest(negatives)
    title = f"{manifest.dataset}: hierarchical hard negatives for temporal grounding"
    configs = []
    for config, splits in files.items():
        data_files = [{"split": split, "path": path} for split, path in splits.items()]
        configs.append({"config_name": config, "default": config == NEGATIVES, "data_files": data_files})
    head: Row = {"pretty_name": title, "license": licence, "language": ["en"]}
    head |= {"tags": ["temporal-grounding", "video-moment-retrieval", "hard-negatives"], "configs": configs}
    # without this machine's folders, and without a password in an address
    parameters = {
        key: (PurePath(value).name if value.startswith(("/", "~")) else without_secrets(value))
        if isinstance(value, str)
        else value
        for key, value in manifest.parameters.items()
    }
    return CARD.format(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True),
        title=plain(title),
        notes="".join(f"- {plain(note)}\n" for note in notes) + "\n" * bool(notes),
        name=name,
        quality=_quality(store, negatives),
        key=f"{negatives.stage}/{negatives.key}",
        parameters=f"`{json.dumps(parameters, ensure_ascii=False).replace('`', '')}`",
        software=", ".join(f"{package} {version}" for package, version in manifest.software.items()),
        licence=licence,
        dataset=plain(manifest.dataset),
    )


def _quality(store: Store, negatives: Artifact) -> str:
    """Return the figures of the newest quality report on these negatives, or how to make one."""
    if report := newest_report(store, negatives):
        manifest, figures = report
        notes = "".join(f"- {plain(note)}\n" for note in manifest.notes)
        tables = [f"### {plain(title)}\n\n{markdown_table(*table)}" for title, table in figure_tables(figures)]
        return "\n\n".join(filter(None, [notes, *tables]))
    return f"Not judged yet: `penumbra quality {negatives.dataset}/negatives`."
