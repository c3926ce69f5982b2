"""A folder for the Hub: `datasets` opens it, its card describes it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.export import write_folder
from tests.rows import annotation, negative

Row = dict[str, Any]
OURS = {"README.md", "negatives/train.parquet", "queries/train.parquet", "queries/novel_word.parquet"}


def put(store: Store, stage: str, rows: list[Row], parents: tuple[Artifact, ...] = (), **parameters: Any) -> Artifact:
    part = Part(table_of(stage, rows), len(rows), len(rows))
    return store.build(Work("mine", stage, 1, parameters, parents), [lambda: part])


@pytest.fixture
def built(store: Store) -> Artifact:
    """Two training queries, of which one has two negatives only, and one of a test split."""
    queries = [("a1", "train", "Jemand öffnet die Tür."), ("b1", "train", "=a bag"), ("c1", "novel-word", "a cup.")]
    windows = {"duration": 12.1, "windows": [[0.1, 4.25]]}
    rows = [annotation(qid, query, split, vid=f"v{qid}", **windows) for qid, split, query in queries]
    annotations = put(store, "annotations", rows)
    tokens = [{"qid": qid, "tokens": []} for qid, _, _ in queries]
    tags = put(store, "tags", tokens, (annotations,), spacy_model="/home/anna/models/tagger")
    chosen = [("a1", 1), ("a1", 2), ("a1", 3), ("b1", 1), ("b1", 2)]
    masked = [
        {"qid": qid, "level": level, "ratio": 0.5, "masked_query": f"<mask> {level}", "slots": []}
        for qid, level in chosen
    ]
    masks = put(store, "masks", masked, (annotations, tags), base_url="https://me:geheim@host/v1")
    texts = [(qid, level, f"Jemand schließt {qid} {level}.") for qid, level in chosen]
    negatives = [negative(*place, words=["schließt"], similarity=0.1 * place[1]) for place in texts]
    parameters = {"sentence_model": "/home/anna/models/encoder", "base_url": "https://me:geheim@host/v1"}
    return put(store, "negatives", negatives, (annotations, tags, masks), **parameters)


def written(store: Store, folder: Path, **options: Any) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    return write_folder(
        store, store.newest("mine", "negatives"), folder, "owner/name", warn=lines.append, **options
    ), lines


def test_datasets_opens_the_folder(store: Store, built: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="is an extra: pip install 'penumbra[test]'")
    folder = tmp_path / "out"
    files, _ = written(store, folder)
    assert set(files) == OURS
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == OURS
    program = (
        "import json, sys\n"
        "from datasets import load_dataset\n"
        "negatives, queries = load_dataset(sys.argv[1], split='train'), load_dataset(sys.argv[1], 'queries')\n"
        "print(json.dumps([negatives.to_list(), {name: rows.to_list() for name, rows in queries.items()},"
        " str(negatives.features['similarity'].dtype)]))"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    negatives, queries, kind = json.loads(done.stdout)
    assert kind == "float32"
    assert [(row["qid"], row["level"], row["negative"]) for row in negatives] == [
        (qid, level, f"Jemand schließt {qid} {level}.")
        for qid, levels in (("a1", 3), ("b1", 2))
        for level in range(1, levels + 1)
    ]
    assert negatives[0]["words"] == ["schließt"]
    assert negatives[0]["masked_query"] == "<mask> 1"
    assert [row["query"] for row in queries["train"]] == ["Jemand öffnet die Tür.", "=a bag"]
    assert queries["novel_word"] == [
        {"qid": "c1", "vid": "vc1", "query": "a cup.", "duration": 12.1, "windows": [[0.1, 4.25]]}
    ]


def test_no_row_group_is_empty(store: Store, tmp_path: Path) -> None:
    """`datasets` cannot read a file with an empty one; here the first part has no query of the test split."""

    def build(stage: str, rows: list[list[Row]], *parents: Artifact) -> Artifact:
        parts = [Part(table_of(stage, several), len(several), len(several)) for several in rows]
        return store.build(Work("mine", stage, 1, {}, parents), [lambda part=part: part for part in parts])  # type: ignore[misc]

    annotations = build("annotations", [[annotation("a1", "a person runs.")], [annotation("b1", "he sits.", "test")]])
    masks = [{"qid": "a1", "level": 1, "ratio": 0.5, "masked_query": "<mask>", "slots": []}]
    build("negatives", [[negative("a1", 1, "a person jumps.")], []], annotations, build("masks", [masks, []]))
    written(store, tmp_path / "out")
    files = [pq.ParquetFile(path) for path in (tmp_path / "out").rglob("*.parquet")]
    groups = [file.metadata.row_group(group).num_rows for file in files for group in range(file.num_row_groups)]
    assert groups == [1, 1, 1]


def test_the_card_says_how_they_were_made_and_nothing_of_this_machine(
    store: Store, built: Artifact, tmp_path: Path
) -> None:
    _, lines = written(store, tmp_path / "out", licence="cc-by-4.0")
    assert lines == ["1 of 2 training queries lack some of the three levels: only what they have is written"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, head, text = card.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["license"] == "cc-by-4.0"
    train = {"split": "train", "path": "negatives/train.parquet"}
    assert about["configs"][0] == {"config_name": "negatives", "default": True, "data_files": [train]}
    assert 'load_dataset("owner/name", split="train")' in text
    assert f"The table `negatives/{built.key}`" in text
    assert '{"sentence_model": "encoder", "base_url": "https://host/v1"}' in text
    assert "1 of 2 training queries lack some of the three levels" in text
    assert "Not judged yet: `penumbra quality mine/negatives`" in text
    for secret in ("/home/anna", "geheim", str(tmp_path)):
        assert secret not in card


def test_the_card_has_the_figures_of_the_newest_report_on_these(store: Store, built: Artifact, tmp_path: Path) -> None:
    def report(value: float, parents: tuple[Artifact, ...], number: int) -> None:
        rows = [{"level": 1, "provider": "all", "metric": name, "value": value} for name in ("blind_auc", "rows")]
        put(store, "quality", rows, parents, number=number)

    report(0.75, (built,), 1)
    report(0.625, (built,), 2)
    report(0.5, (), 3)  # on others
    written(store, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| blind AUC (1- and 2-grams) | 0.625 |" in card
    assert "0.750" not in card
    assert "Not judged yet" not in card


def test_nothing_is_written_where_there_is_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no mine/negatives below"):
        written(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
