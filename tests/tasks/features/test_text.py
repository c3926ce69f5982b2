"""Which texts get features, which positions are kept, and that features do not depend on the other texts of a batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.features.clip import FOLDER, Clip, load
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.text import TextFeatures, Texts, chosen_negatives, judging_texts, load_text_encoder
from penumbra.tasks.stage import build as build_stage
from penumbra.tasks.text.embeddings import Encoding, encode
from tests.rows import annotation, build, negative

TINY = Clip(encoder="tiny-clip")
Row = dict[str, Any]


def test_long_and_strange_texts() -> None:
    texts = ["word " * 300, "naïve 🙂 日本", "\u200b", "a" * 2000]
    part = TextFeatures(Artifact(root="/r", dataset="d", stage="annotations", key="0"), None, TINY).part(texts)
    assert part.kept == 4
    lengths = [len(row) for row in part.rows["tokens"].to_pylist()]
    assert max(lengths) == lengths[0] == 77
    assert part.notes == {"text cut to the encoder's longest": 2}


def test_which_negatives(store: Store) -> None:
    assert chosen_negatives("mine", Texts()) is None
    first, second = (build(store, "negatives", [negative("a1", 1, text)], parameters={"of": text}) for text in "ab")
    assert chosen_negatives("mine", Texts()) == second
    assert chosen_negatives("mine", Texts(negatives=first.key)) == first
    assert chosen_negatives("mine", Texts(negatives="none")) is None
    with pytest.raises(ArtifactError):
        chosen_negatives("mine", Texts(negatives="0123456789abcdef"))


def test_false_sentences_get_features_of_the_same_encoder_once(store: Store) -> None:
    annotations = build(store, "annotations", [annotation("a1", "a person opens the door.")])
    known = build_stage(TextFeatures(annotations, None, TINY))
    rows = [negative("a1", 1, "a person shuts the door."), negative("b1", 1, "a person opens the door.")]
    judging = build(store, "judging_negatives", rows, (annotations,))
    made = judging_texts(annotations, known, (judging,))
    assert judging_texts(annotations, known, ()) is None
    imported = build(store, "text_features", [], parameters={"imported": []})
    assert judging_texts(annotations, imported, (judging,)) is None
    assert made
    [row] = store.table(made).to_pylist()
    assert (made.stage, row["text"], row["encoder"]) == ("judging_texts", "a person shuts the door.", "tiny-clip")
    assert store.newest("mine", "text_features") != made, "no training reads them"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 9}, "it lacks [0-9]+ of its weights"),  # random numbers would take their place
        ({"intermediate_size": 96}, "RuntimeError"),
        ({"hidden_size": "x"}, "Strict"),
    ],
)
def test_a_clip_that_does_not_fit_its_configuration_is_one_line(tmp_path: Path, changes: Row, reason: str) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "clip"))
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FeatureError, match=rf"can't be loaded \({reason}") as caught:
        load(Clip(encoder=str(folder)))
    assert "\n" not in str(caught.value)


def test_any_text_encoder_of_sentence_transformers() -> None:
    encoder = load_text_encoder(Clip(encoder="all-MiniLM-L6-v2"))
    texts = ["a person opens the door.", "a person runs.", "word " * 300]
    tokens, pooled, cut = encoder.encode(texts, 2)
    assert [states.shape for states in tokens] == [(8, 384), (6, 384), (256, 384)], "start and end token among them"
    assert (pooled.shape, cut) == ((3, 384), 1)
    [alone], _, _ = encoder.encode(texts[:1], 2)
    assert np.abs(alone.astype(float) - tokens[0]).max() < 4e-3
    wanted = encode(texts[:1], Encoding())[0]
    assert np.abs(wanted - pooled[0]).max() < 1e-3, "sentence-transformers' own pooling"


def test_no_code_of_an_encoder_is_run_if_somebody_says_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "code.py").write_text("raise SystemExit('the code was run')")
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asks whether to run the code"))
    for reader in load, load_text_encoder:
        with pytest.raises(PenumbraError, match="can't be loaded"):
            reader(Clip(encoder=str(tmp_path)))
