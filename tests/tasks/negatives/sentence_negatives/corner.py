"""A corner of the real Charades-CG, with the stages that whole sentences are described by."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.negatives.sentence_negatives import SentenceNegatives
from penumbra.tasks.stage import build
from penumbra.tasks.text.dictionary import WordCounts
from penumbra.tasks.text.embeddings import Embeddings, Encoding
from penumbra.tasks.text.tags import Tagging, Tags

VIDEOS = 60
Kind = TypeVar("Kind", bound=SentenceNegatives)


def corner(charades: Path, folder: Path) -> Dataset:
    """The first videos of each split."""
    for name in ("train", "test_trivial", "novel_composition", "novel_word"):
        videos = json.loads((charades / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps(dict(list(videos.items())[:VIDEOS])))
    return Dataset(name="corner", folder=str(folder))


def described(dataset: Dataset, rows_a_part: int = 64) -> Callable[[type[Kind], NegativeSource], Kind]:
    """What makes a stage of these queries."""
    annotations: Artifact = build(Annotations(dataset, rows_a_part))
    tags = build(Tags(annotations, Tagging()))
    dictionary, embeddings = build(WordCounts(annotations, tags)), build(Embeddings(annotations, Encoding()))
    return lambda kind, sourcing: kind(annotations, tags, dictionary, embeddings, sourcing, Choosing(), Encoding())
