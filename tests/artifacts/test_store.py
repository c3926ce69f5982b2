"""The store: keys from content, parts that are whole or absent, no repeated work, detection of damage."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from penumbra.artifacts import files as digests
from penumbra.artifacts.manifest import Artifact, Part, Work, WrittenPart, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from tests.rows import files_in
from tests.terminal import started

PARENT = Artifact(root="/r", dataset="d", stage="tags", key="0" * 16)
WORK = Work("scenes", "dictionary", 1, {"ratio": 0.5, "names": ["a"]}, (PARENT,), {"train": "ab12"})
PARTS = 4


def part(index: int) -> Part:
    """Two rows, one refusal and a note, different in each part."""
    rows = [
        {"primitive": "noun", "tag": "NN", "word": f"word{index}{i}", "lemma": "", "count": index, "is_subject": False}
        for i in range(2)
    ]
    refused = [rejection(f"q{index}", "dictionary", f"reason {index % 2}", "value")]
    return Part(table_of("dictionary", rows), 3, 2, refused, Counter({"clipped": index}), cost_usd=0.5)


class Makers:
    """The parts of a build, with a list of those that were really made; part `fails` raises."""

    def __init__(self, count: int = PARTS, fails: int | None = None) -> None:
        self.made: list[int] = []
        self.count, self.fails = count, fails

    def __iter__(self) -> Iterator[Callable[[], Part]]:
        return (partial(self.make, index) for index in range(self.count))

    def make(self, index: int) -> Part:
        if index == self.fails:
            raise RuntimeError("the machine went away")
        self.made.append(index)
        return part(index)


def folder(artifact: Artifact) -> Path:
    return Path(artifact.path)


def contents(artifact: Artifact, pattern: str = "part-*.parquet") -> dict[str, bytes]:
    """The bytes of each part, which are always the same: the manifest holds times."""
    return files_in(folder(artifact), pattern)


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    """What a build that nobody interrupts writes."""
    return contents(Store(str(tmp_path / "undisturbed")).build(WORK, Makers()))


@pytest.mark.parametrize(
    ("change", "changes_key"),
    [
        ({"stage": "masks"}, True),
        ({"version": 2}, True),
        ({"parameters": {"ratio": 0.6, "names": ["a"]}}, True),
        ({"parents": ()}, True),
        ({"parents": (PARENT.model_copy(update={"key": "1" * 16}),)}, True),
        ({"inputs": {"train": "ab13"}}, True),
        ({"dataset": "other"}, False),
        ({"unit": "row"}, False),
        ({"parameters": {"names": ["a"], "ratio": 0.5}}, False),
        ({"parents": (PARENT.model_copy(update={"root": "s3://elsewhere", "dataset": "renamed"}),)}, False),
    ],
    ids=str,
)
def test_the_key_changes_only_with_what_determines_the_content(change: dict[str, Any], changes_key: bool) -> None:
    assert (replace(WORK, **change).key != WORK.key) is changes_key


def test_a_build_is_read_and_not_repeated(store: Store) -> None:
    artifact = store.build(WORK, Makers())
    manifest = store.manifest(artifact)
    assert store.table(artifact)["word"].to_pylist() == [f"word{i}{j}" for i in range(PARTS) for j in range(2)]
    assert store.table(artifact, ["count"]).column_names == ["count"]
    assert (manifest.rows, manifest.taken, manifest.kept) == (8, 12, 8)
    assert (manifest.rejected, manifest.notes) == ({"reason 0": 2, "reason 1": 2}, {"clipped": 6})
    parent = PARENT.model_copy(update={"root": store.root})
    assert (manifest.parameters, manifest.parents, manifest.inputs) == (WORK.parameters, [parent], WORK.inputs)
    assert not list(folder(artifact).glob(".*")), "drafts are left behind"
    rejected = pa.concat_tables(store.rejected(artifact)).to_pylist()
    assert rejected[1] == {"qid": "q1", "stage": "dictionary", "reason": "reason 1", "value": "value"}
    before, again = contents(artifact, "*"), Makers()
    assert store.build(WORK, again) == artifact
    assert again.made == []
    assert contents(artifact, "*") == before, "with the times and the cost of the first build"


def test_other_readers_open_the_folder_as_one_table(store: Store) -> None:
    artifact = store.artifact(WORK)

    def parts() -> Iterator[Callable[[], Part]]:
        yield from Makers()
        assert ds.dataset(artifact.path).count_rows() == 2 * PARTS, "before the manifest is written"

    store.build(WORK, parts())
    (folder(artifact) / "_table.md").write_text("as an ablation writes it")
    assert {path.name for path in folder(artifact).iterdir()} > {"_manifest.json", "_rejected", "_records"}
    rows = store.table(artifact).to_pylist()
    assert len(rows) == 2 * PARTS
    assert ds.dataset(artifact.path).to_table().to_pylist() == rows
    assert pq.read_table(artifact.path).to_pylist() == rows
    assert pandas.read_parquet(artifact.path).to_dict("records") == rows


BUILD = """
import sys, time
from functools import partial
from penumbra.artifacts.store import Store
from tests.artifacts.test_store import PARTS, WORK, part

def make(index):
    if index == int(sys.argv[2]):
        print("ready", flush=True)
        time.sleep(60)
    return part(index)

Store(sys.argv[1]).build(WORK, [partial(make, index) for index in range(PARTS)])
"""


def test_two_processes_at_once_make_one_whole_artifact(store: Store, undisturbed: dict[str, bytes]) -> None:
    processes = [started(BUILD, store.root, "-1") for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    artifact = store.artifact(WORK)
    assert store.intact(artifact)
    assert contents(artifact) == undisturbed


def test_a_killed_process_loses_its_lease_and_its_current_part(store: Store, undisturbed: dict[str, bytes]) -> None:
    artifact = store.artifact(WORK)
    with started(BUILD, store.root, "2") as process:
        assert process.stdout.readline() == "ready\n"
        resumed = Makers()
        told = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(store.build, WORK, resumed, waits=lambda holder: told.set())
            assert told.wait(20)
            assert not run.done()
            names = [f"{kind}part-0000{i}.parquet" for kind in ("_rejected/", "") for i in (0, 1)]
            assert sorted(contents(artifact)) == names
            assert store.intact(artifact) is None
            os.kill(process.pid, signal.SIGKILL)
            run.result(20)
    assert resumed.made == [2, 3]
    assert contents(artifact) == undisturbed
    assert store.verify(artifact) == []


def with_a_bit_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [with_a_bit_flipped, Path.unlink])
def test_a_change_is_found_if_its_times_were_set_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(digests, "digests_file", lambda: tmp_path / "digests.sqlite")
    artifact = store.build(WORK, Makers())
    an_hour_ago = time.time() - 3600, time.time() - 3600
    for path in folder(artifact).rglob("*.parquet"):
        os.utime(path, an_hour_ago)  # what has just been written is never remembered
    assert store.intact(artifact)
    path = folder(artifact) / "part-00001.parquet"
    spoil(path)
    if path.exists():
        os.utime(path, an_hour_ago)
    assert store.intact(artifact) is None


@pytest.mark.parametrize("change", [{"dataset": "elsewhere"}, {"stage": "../.."}, {"key": "../x"}], ids=str)
def test_a_manifest_of_another_artifact_is_refused(store: Store, change: dict[str, Any]) -> None:
    artifact = store.build(WORK, Makers())
    path = folder(artifact) / "_manifest.json"
    path.write_text(store.manifest(artifact).model_copy(update=change).sealed().model_dump_json())
    assert store.find() == []
    assert [f"{path} was edited" in problem for problem in store.verify(artifact)] == [True]


def test_the_newest_artifact_is_never_replaced_by_an_older_one_if_it_is_damaged(store: Store) -> None:
    assert store.newest_if_any("scenes", "dictionary") is None
    older = store.build(replace(WORK, version=0), Makers())
    damaged = store.build(WORK, Makers())
    (folder(damaged) / "_manifest.json").write_text("{")
    for newest in (store.newest_if_any, store.newest):
        with pytest.raises(ArtifactError, match=r"_manifest\.json is damaged: penumbra run build-negatives scenes"):
            newest("scenes", "dictionary")
    assert [store.reference(manifest) for manifest in store.find()] == [older]
    store.remove(damaged)
    assert store.newest_if_any("scenes", "dictionary") == older


@pytest.mark.parametrize("spoil", [with_a_bit_flipped, Path.unlink])
def test_reading_checks_digests(store: Store, spoil: Callable[[Path], None]) -> None:
    artifact = store.build(WORK, Makers())
    assert len(store.part(artifact, 1)) == 2, "was whole when it was first read"
    spoil(folder(artifact) / "part-00001.parquet")
    spoil(folder(artifact) / "_rejected" / "part-00001.parquet")
    fault = r"part-00001\.parquet (was changed|is missing).*: penumbra run build-negatives scenes repairs it"
    for read in (lambda: store.table(artifact, ["word"]), lambda: list(store.rejected(artifact))):
        with pytest.raises(ArtifactError, match=fault):
            read()
    store.build(WORK, Makers())
    assert len(store.part(artifact, 1)) == 2, "made anew, by the same store"


def test_an_unreachable_store_is_reported_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("memory://geheim@host/folder")

    def refuse(*_: object) -> None:
        raise OSError("no answer from http://me:ge heim@host/folder?signature=geheim at all")

    monkeypatch.setattr(store.files.filesystem, "glob", refuse)
    with pytest.raises(ArtifactError) as error:
        store.find()
    reason = "OSError: no answer from http://host/folder at all"
    assert str(error.value) == f"memory://host/folder can't be reached ({reason})"
    with pytest.raises(ArtifactError, match="PENUMBRA_ARTIFACTS=nowhere://host can't be opened"):
        Store("nowhere://geheim@host")


def test_a_password_in_the_root_is_refused_as_artifacts_name_their_root() -> None:
    for secret in ("me:geheim@host/folder", "me:ge/heim@host/folder", "me:ge heim@host", "host?key=ge@heim"):
        with pytest.raises(ArtifactError, match=r"leave it out and set FSSPEC_SFTP_USERNAME and FSSPEC_") as error:
            Store(f"sftp://{secret}")
        assert str(error.value).startswith("sftp://… is given with a password or a query")


def test_a_key_prefix_must_match_exactly_one_artifact(store: Store) -> None:
    made = [store.build(replace(WORK, parameters={"n": number}), Makers(1)) for number in range(13)]
    for artifact in made:
        assert store.with_key("scenes", "dictionary", artifact.key[:12]) == artifact
        assert store.with_key(None, "dictionary", f"model-{artifact.key[:12]}") == artifact
    first, count = Counter(artifact.key[0] for artifact in made).most_common(1)[0]
    with pytest.raises(ArtifactError, match=f"{count} of scenes/dictionary match {first!r}"):
        store.with_key("scenes", "dictionary", first)
    with pytest.raises(ArtifactError) as none:
        store.with_key("scenes", "dictionary", "model-xyz", lambda manifest: f"named {manifest.key}")
    newest = ", ".join(f"named {artifact.key}" for artifact in made[:2:-1])
    assert str(none.value) == f"no run is called 'model-xyz'; there are: {newest} and 3 more"
    by_model = store.with_key("scenes", "dictionary", "mmn", lambda it: f"{'mmn' * (it.key == made[0].key)}-1")
    assert by_model == made[0]


@pytest.mark.parametrize("name", ["..", "x/..", "/x", "x\\y", "Scenes", "", ".x", "-x", "x y", "x\n", "x\0"])
def test_names_that_leave_the_root_are_refused(store: Store, name: str) -> None:
    for dataset, stage in ((name, "dictionary"), ("scenes", name)):
        with pytest.raises(ValidationError):
            store.artifact(replace(WORK, dataset=dataset, stage=stage))
        with pytest.raises(ArtifactError, match="DATASET/STAGE"):
            store.newest(dataset, stage)
    for place in ({"dataset": name, "stage": "tags"}, {"dataset": "scenes", "stage": name}):
        with pytest.raises(ValidationError):
            Artifact(root=store.root, key="0", **place)
    assert not Path(store.root).exists()


def test_parts_in_another_store_are_an_error(store: Store, tmp_path: Path) -> None:
    other = Store(str(tmp_path / "elsewhere"))

    def elsewhere(missing: list[int]) -> Iterator[WrittenPart]:
        for index in missing:
            yield other.write(other.artifact(WORK), index, part(index))

    with pytest.raises(ArtifactError, match="PENUMBRA_ARTIFACTS must name a shared folder or a bucket"):
        store.build(WORK, Makers(), total=PARTS, elsewhere=elsewhere)
    assert store.find() == []
