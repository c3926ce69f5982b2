"""Names that people give to artifacts, and what commands say of the newest one that they take."""

import json
from pathlib import Path

import pytest

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.quality.negatives import find_negatives
from tests.rows import annotation, build, negative
from tests.terminal import penumbra, printed, refusal

RATIOS = [[0.25, 0.5, 0.75], [0.1, 0.3, 0.5]]


def said(*words: str) -> str:
    done = penumbra(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stderr


@pytest.fixture
def made(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Artifact]:
    """Negatives of the usual ratios, then of others, a ceiling of their own, and another provider."""
    monkeypatch.chdir(tmp_path)
    annotations = build(store, "annotations", [annotation("a1", "a person opens the door.")])
    negatives = []
    for ratios, ceiling, provider, text in zip(RATIOS, (0.9, 0.8), ("corpus", "llama"), ("one", "two"), strict=True):
        masks = build(store, "masks", [], (annotations,), parameters={"ratios": ratios, "primitives": ["verb"]})
        about = {"provider": provider, "candidates": 16, "seed": 0}
        fills = build(store, "fills", [], (masks,), parameters=about)
        parents = annotations, masks, fills
        rows = [negative("a1", 1, f"a person {text}.", "a person opens the door.")]
        negatives.append(build(store, "negatives", rows, parents, parameters={"ceiling": ceiling}))
    return negatives


def test_what_takes_the_newest_says_which_and_how_it_differs(made: list[Artifact]) -> None:
    before, now = (artifact.key for artifact in made)
    begins = f"penumbra: mine/negatives: uses {now}, the newest of 2; the previous one, {before}, has "
    differs = 'fills.provider="corpus" (now "llama"); negatives.ceiling=0.9 (now 0.8); masks.ratios='
    for words in (
        ("artifacts", "path", "mine/negatives"),
        ("artifacts", "show", "mine/negatives"),
        ("export", "mine", "--format", "jsonl"),
        ("browse", "mine"),
    ):
        assert said(*words).count(f"{begins}{differs}") == 1, words
    assert penumbra("artifacts", "path", "mine/negatives").stdout == f"{made[1].path}\n"
    assert f"uses {now}, the newest of 2" in said("browse", "mine", "--provider", "corpus")
    assert said("artifacts", "path", "mine/annotations") == "", "there is no choice"
    assert said("artifacts", "path", f"mine/negatives/{before}") == ""


def test_all_commands_take_a_pin(made: list[Artifact]) -> None:
    first, second = made
    assert printed("artifacts", "pin", "mine/negatives", first.key[:6]) == f"mine/negatives@release is {first.key}\n"
    said_next = printed("artifacts", "pin", "mine/negatives", "--as", "try-2")
    assert said_next == f"mine/negatives@try-2 is {second.key}\n"
    for name, artifact in (("release", first), ("try-2", second), (first.key[:5], first)):
        assert printed("artifacts", "path", f"mine/negatives@{name}") == f"{artifact.path}\n"
    assert "a person **one.**" in penumbra("artifacts", "show", "mine/negatives@release").stdout
    for target in ("mine@release", "mine/negatives@release", f"mine/negatives/{first.key}"):
        assert json.loads(penumbra("export", target, "--format", "jsonl").stdout)["negative"] == "a person one."
    assert penumbra("browse", "mine@release").stdout == "mine.html\n"
    listed = printed("artifacts", "ls", "mine/negatives")
    assert "@release" in listed
    assert "masks" not in listed
    assert "1 artifact, 0 faults" in penumbra("artifacts", "verify", "mine/negatives@release").stdout
    assert "negatives" in penumbra("artifacts", "du", "mine/negatives@release").stdout
    assert find_negatives(Store(), "mine/negatives@release").artifact == first  # type: ignore[union-attr]
    assert Store().with_key("mine", "negatives", "release") == first, "as in --param inputs.negatives=release"


def test_a_pinned_artifact_is_not_removed(made: list[Artifact]) -> None:
    first, store = made[0], Store()
    said("artifacts", "pin", "mine/negatives", first.key)
    command = "penumbra artifacts pin mine/negatives --as release --remove"
    for words in (("mine",), ("mine/negatives",), ("mine/negatives@release",), (f"mine/negatives/{first.key}",)):
        assert refusal("artifacts", "rm", *words).endswith(f"is pinned as release: {command} unpins it")
    assert "negatives" not in penumbra("artifacts", "rm", "--unneeded").stdout
    assert store.has(first)
    assert all(store.has(parent) for parent in store.manifest(first).parents), "nor is what it was made from"
    assert penumbra(*command.split()[1:]).stdout == "removed the pin mine/negatives@release\n"
    assert penumbra("artifacts", "rm", f"mine/negatives/{first.key}").exit_code == 0
    assert not store.has(first)


def test_a_pin_whose_artifact_is_gone_is_named(made: list[Artifact]) -> None:
    first, store = made[0], Store()
    said("artifacts", "pin", "mine/negatives", first.key)
    store.remove(first)
    gone = f"mine/negatives@release is {first.key}, which does not exist any more: penumbra artifacts pin "
    assert refusal("artifacts", "path", "mine/negatives@release").startswith(gone)
    verified = penumbra("artifacts", "verify")
    assert verified.exit_code == 1
    assert gone in verified.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine/negatives", "beef"], r"no mine/negatives matches 'beef'"),
        (["mine", "beef"], r"is no DATASET/STAGE"),
        (["mine/negatives", "--as", "../x"], r"'../x' is no name of a pin: lower-case letters, digits and '-'"),
        (["mine/negatives", "--as", "relase", "--remove"], r"no pin 'relase': did you mean release\?"),
        (["*/negatives", "--remove"], r"has no pin 'release'"),
        (["../mine", "--remove"], r"has no pin 'release'"),
    ],
)
def test_a_wrong_pin_is_one_line(made: list[Artifact], words: list[str], message: str) -> None:
    said("artifacts", "pin", "mine/negatives", made[0].key)
    with pytest.raises(ArtifactError, match=message):
        raise penumbra("artifacts", "pin", *words).exception  # type: ignore[misc]
    assert [pin.name for pin in Store().pins()] == ["release"]


def test_a_damaged_pin_is_named(made: list[Artifact], store: Store) -> None:
    said("artifacts", "pin", "mine/negatives", made[0].key)
    for content in (b"rubbish", b"[1]", b'{"key": "../../x"}', b"{}", b"[" * 100_000):
        (Path(store.root) / ".pins/mine/negatives/release.json").write_bytes(content)
        with pytest.raises(ArtifactError, match=r"release.json is damaged: pin the artifact again"):
            store.pins()
