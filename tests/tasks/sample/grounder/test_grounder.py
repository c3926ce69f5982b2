"""The shipped grounding model: of its preset's form, small, and of scenes that give away nothing of the test splits."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from penumbra.models.checkpoints import load_weights
from penumbra.tasks.features.clip import Clip, load
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.training.checkpoint import Checkpoint, RunError, read_checkpoint, write_checkpoint
from penumbra.tasks.grounding.training.run import SHIPPED, read_weights
from penumbra.tasks.grounding.training.settings import layered
from penumbra.tasks.grounding.training.ship import keep
from penumbra.tasks.sample.grounder.scenes import main, other_scenes, queries_of_tests
from penumbra.tasks.sample.scenes.generate import DATA, SEED
from penumbra.tasks.sample.scenes.splits import NOVEL_WORDS, hold_out, words_of

pytestmark = pytest.mark.slow

LARGEST = 3_000_000  # bytes


def test_it_is_small_and_what_the_demo_starts_from() -> None:
    folder = SHIPPED["scenes-grounder"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    settings = layered("scenes-demo")
    assert settings.training.start_from == "scenes-grounder"
    weights, system = read_weights("scenes-grounder"), system_of(settings)
    video, _ = system.widths(weights)
    assert video == load(Clip(encoder="tiny-clip", device="cpu")).model.config.projection_dim
    load_weights(system.build(*system.widths(weights)), weights)


def test_other_scenes_give_away_nothing_of_the_test_splits() -> None:
    held, tests = hold_out(random.Random(SEED)), queries_of_tests()
    told = json.loads((DATA / "novel_composition.json").read_text())
    novel = {
        (kind, *pair)
        for video in told.values()
        for label in video["novels"]
        for kind, pairs in label.items()
        for pair in pairs
    }
    assert novel <= held, "what Novel-Composition has is what is held out"
    sentences = [sentence for video in other_scenes(150, 3) for sentence in video.sentences]
    assert len(sentences) > 400
    for sentence in sentences:
        assert held.isdisjoint(sentence.pairs)
        assert NOVEL_WORDS.isdisjoint(lemma for _, lemma in sentence.lemmas)
        assert NOVEL_WORDS.isdisjoint(words_of(sentence.text))
        assert sentence.text not in tests


def test_a_data_set_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--scenes", "3"])
    rows = [json.loads(line) for split in ("train", "val") for line in (tmp_path / f"{split}.jsonl").open()]
    assert f"{len(rows)} queries" in capsys.readouterr().out
    assert {row["vid"] for row in rows} == {path.stem for path in (tmp_path / "features").iterdir()}
    for row in rows:
        features = np.load(tmp_path / "features" / f"{row['vid']}.npy")
        assert len(features) == -(-row["duration"] // 0.5)
        [[start, end]] = row["relevant_windows"]
        assert 0 <= start < end <= row["duration"]
    assert not np.allclose(features[0], features[-1])


def test_what_is_kept_of_a_run_is_its_best_weights_in_halves(tmp_path: Path) -> None:
    figures = [{"split": "validation", "epoch": epoch, "name": "mIoU", "value": 10.0 * epoch} for epoch in (1, 2)]
    tensors = {"model.a": torch.rand(3), "optimiser.exp_avg.a": torch.rand(3)}
    write_checkpoint(tmp_path / "run", "best", Checkpoint(tensors, {"epoch": 2, "history": figures}))
    assert keep(tmp_path / "run", tmp_path / "kept") == 6
    found = read_checkpoint(tmp_path / "kept", "best")
    assert found is not None
    assert found.state["history"] == figures[1:]
    assert list(found.tensors) == ["model.a"]
    assert torch.equal(read_weights(str(tmp_path / "kept"))["a"], tensors["model.a"].half())
    with pytest.raises(RunError, match="holds no checkpoint"):
        keep(tmp_path / "none", tmp_path / "kept")
