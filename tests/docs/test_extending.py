"""The examples of docs/extending.md run."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data import dataset
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.metrics import Split, align, means
from penumbra.tasks.negatives.providers import MaskedQuery, ProviderSettings, Slot, TrainingText
from penumbra.tasks.text.dictionary import Dictionary

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def example(heading: str, **known: Any) -> dict[str, Any]:
    """Return the names that the first block of code under a heading defines."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names: dict[str, Any] = {"__name__": "example", **known}
    exec(compile(code, f"{PAGE.name}: {heading}", "exec"), names)
    return names


def test_the_metric() -> None:
    metric = example("A metric")["START_ERROR"]
    windows = align({"a": [[0, 5, 0.9]], "b": [[20, 30, 0.7]]}, {"a": [[1, 10]], "b": [[0, 10], [22, 28]]})
    split = Split(windows, {}, {})
    assert means(metric.scores(split)) == {"start error, s": 1.5}
    assert metric.shown == ("start error, s",)


def test_the_data_format(tmp_path: Path) -> None:
    read = example("A data format", **vars(dataset), csv=__import__("csv"))["_read_tsv"]
    file = tmp_path / "train.tsv"
    file.write_text("vid\tstart\tend\tduration\tquery\nv\t1\t2.5\t9\ta person runs.\nv\tx\t2\t9\ta person sits.\n")
    good, bad = read(file, "train")
    assert (good.qid, good.windows, good.duration, good.query) == ("v_train_0", [[1.0, 2.5]], 9.0, "a person runs.")
    assert bad.fault == "time is no number"
    file.write_text("vid\tquery\nv\ta person runs.\n")
    with pytest.raises(dataset.DatasetError, match="lacks duration, end, start"):
        list(read(file, "train"))


def test_the_provider() -> None:
    names = example("A provider")
    settings = names["Fixed"](place=1)
    assert isinstance(settings, ProviderSettings)
    words = ("runs", "sits", "jumps")
    rows = [{"primitive": "verb", "tag": "VBZ", "word": word, "lemma": word[:-1], "count": 3} for word in words]
    dictionary = Dictionary(pa.Table.from_pylist(rows))
    provider = settings.make(TrainingText(dictionary, []), None, "")
    slot = Slot(1, "verb", "VBZ", "runs", "run")
    [fill] = provider.fill([MaskedQuery("q", [], ((slot,),))], 4)
    assert fill.words in {("sits",), ("jumps",)}


def test_the_model() -> None:
    names = example("A model")
    assert issubclass(names["NarrowSystem"], System)
    assert (names["Narrow"]().name, names["Narrow"]().queries) == ("narrow", 1)


def test_the_stage() -> None:
    annotations = Artifact(root="r", dataset="d", stage="annotations", key="k")
    stage = example("A stage")["Lengths"](annotations)
    assert (stage.name, stage.parents, stage.key_parameters()) == ("lengths", (annotations,), {})
    assert stage.work.stage == "lengths"
