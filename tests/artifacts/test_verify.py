"""`verify` finds every change of an artifact; changed inputs and edited records give no wrong artifact."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penumbra.artifacts import store as store_module
from penumbra.artifacts.manifest import Part
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.stage import build
from tests.artifacts.test_store import WORK, Makers, contents, with_a_bit_flipped
from tests.rows import json_lines

LINE = {"vid": "v", "query": "a person sits.", "duration": 9, "relevant_windows": [[1, 2]]}
PART, REFUSED = "part-00001.parquet", "_rejected/part-00001.parquet"
RECORD, MANIFEST = "_records/part-00001.json", "_manifest.json"
BY_HAND = ("a stray", "a part that is a link", "a folder that is a link")  # what the next run does not mend


def edit(path: Path, old: str, new: str) -> None:
    text, times = re.subn(old, new, path.read_text(), count=1)
    assert times
    path.write_text(text)


def move_and_link(path: Path) -> None:
    target = path.parents[3] / f"elsewhere-{path.name}"
    shutil.move(path, target)
    path.symlink_to(target)


MUTATIONS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a bit of a part": (PART, with_a_bit_flipped, "was changed"),
    "a part deleted": (PART, Path.unlink, "is missing"),
    "a bit of refused rows": (REFUSED, with_a_bit_flipped, "was changed"),
    "refused rows deleted": (REFUSED, Path.unlink, "is missing"),
    "a further part": (PART, lambda path: shutil.copy(path, path.with_name("part-00007.parquet")), "is no part of it"),
    "a draft that a kill left": (f".{'0af3' * 8}", lambda path: path.write_bytes(b"half"), "is no part of it"),
    "a draft of a record": (f"_records/.{'0af3' * 8}", lambda path: path.write_bytes(b"half"), "is no part of it"),
    "a stray file": (PART, lambda path: shutil.copy(path, path.with_name("more.parquet")), "is no part of it"),
    "a part that is a link": (PART, move_and_link, "is a link"),
    "a folder that is a link": (REFUSED, lambda path: move_and_link(path.parent), "is a link"),
    "a manifest damaged": (MANIFEST, lambda path: path.write_text("{"), "is damaged"),
    "a manifest edited": (MANIFEST, lambda path: edit(path, '"rows": 8', '"rows": 9'), "was edited"),
    "a time without its zone": (MANIFEST, lambda path: edit(path, '("ended": "[^"]+)Z"', r'\1"'), "is damaged"),
    "a seal emptied": (
        MANIFEST,
        lambda path: edit(path, '(?s)"sha256": "[0-9a-f]+"(?=\n})', '"sha256": ""'),
        "was edited",
    ),
}


@pytest.mark.parametrize("case", MUTATIONS)
def test_every_mutation_is_found_and_the_next_run_mends_parts_and_manifest(store: Store, case: str) -> None:
    name, mutate, fault = MUTATIONS[case]
    artifact = store.build(WORK, Makers())
    folder, before = Path(artifact.path), contents(artifact, "*part-*")
    assert store.verify(artifact) == []
    assert store.intact(artifact) == store.manifest(artifact)
    mutate(folder / name)
    changed = contents(artifact, "*part-*")
    lines = store.verify(artifact)
    assert [line for line in lines if fault in line and str(folder) in line]
    assert contents(artifact, "*part-*") == changed, "verify changes nothing"
    if name == MANIFEST:
        removal = f"penumbra artifacts rm scenes/dictionary/{artifact.key}"
        assert f"penumbra run build-negatives scenes repairs it, {removal}" in lines[0]
        assert store.find() == []
    if not case.startswith(BY_HAND):
        assert store.intact(artifact) is None
        assert store.verify(store.build(WORK, Makers())) == []
        assert contents(artifact, "*part-*") == before


def with_record(changes: dict[str, object]) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        (PART, with_a_bit_flipped),
        (PART, Path.unlink),
        (REFUSED, Path.unlink),
        (RECORD, Path.unlink),
        (RECORD, with_record({"taken": 7, "kept": 6})),
        (RECORD, with_record({"cost_usd": 0.0})),
        (RECORD, with_record({"cost_usd": 0.0, "record_sha256": ""})),
        (RECORD, with_record({"notes": {"x": 3}})),
    ],
)
def test_a_part_that_was_changed_before_the_build_resumes_is_made_again(
    store: Store, name: str, spoil: Callable[[Path], object]
) -> None:
    undisturbed = contents(Store(f"{store.root}-undisturbed").build(WORK, Makers()))
    with pytest.raises(RuntimeError):
        store.build(WORK, Makers(fails=3))
    spoil(Path(store.artifact(WORK).path) / name)
    resumed = Makers()
    manifest = store.manifest(store.build(WORK, resumed))
    assert resumed.made == [1, 3]
    assert contents(store.artifact(WORK)) == undisturbed
    assert (manifest.taken, manifest.kept, manifest.cost_usd, manifest.notes) == (12, 8, 2.0, {"clipped": 6})


def test_parts_that_were_made_differently_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = iter([{"torch": "2.8", "threads": "2"}, {"torch": "2.9", "threads": "2", "GPU": "H100"}])
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "made_with", lambda: next(facts))
        manifest = store.manifest(store.build(WORK, Makers(2)))
    assert manifest.differing == {"torch": ["2.8", "2.9"]}
    assert manifest.differences == ["its parts were made with different torch: 2.8, 2.9"]
    same = store.build(replace(WORK, version=2), Makers(2))
    assert store.manifest(same).differing == {}
    record = json.loads((Path(same.path) / RECORD).read_text())
    assert {"python", "pyarrow", "machine"} <= record["made_with"].keys()


@pytest.mark.parametrize("when", ["before the first part", "before the manifest"])
@pytest.mark.parametrize("change", ["other bytes", "deleted"])
def test_inputs_that_change_while_they_are_read_are_refused(
    store: Store, tmp_path: Path, when: str, change: str
) -> None:
    """A file that is still being copied gives no artifact under the key of its earlier content."""
    rows = [LINE | {"qid": str(number), "vid": f"v{number}"} for number in range(4)]
    file = json_lines(tmp_path / "train.jsonl", rows)
    text = file.read_text()
    stage = Annotations(Dataset(name="own", folder=str(tmp_path)), rows_a_part=2)
    assert stage.work.inputs

    def damage() -> None:
        if change == "deleted":
            file.unlink(missing_ok=True)
        else:
            file.write_text(text + json.dumps(LINE | {"qid": "9"}) + "\n")

    def parts() -> Iterator[Callable[[], Part]]:
        for make in stage.parts():
            part = make()
            if when == "before the first part":
                damage()
            yield lambda part=part: part  # type: ignore[misc]
        damage()

    with pytest.raises(ArtifactError, match=r"train\.jsonl was changed while it was read"):
        store.build(stage.work, parts())
    folder = Path(store.artifact(stage.work).path)
    assert not (folder / MANIFEST).exists()
    if when == "before the first part":
        assert not list(folder.rglob("*.parquet")), "nothing made of the changed file is kept"
    file.write_text(text)
    assert store.verify(build(Annotations(stage.source, rows_a_part=2))) == []
