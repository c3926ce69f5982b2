"""The store on an object store."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from penumbra.artifacts import files as files_module
from penumbra.artifacts.manifest import Part
from penumbra.artifacts.store import ArtifactError, Store
from tests import cluster
from tests.artifacts.test_store import WORK, Makers, part

pytestmark = pytest.mark.slow

s3fs = pytest.importorskip("s3fs", reason="needs s3fs (pip install 'penumbra[s3]')")
pytest.importorskip("moto.server", reason="needs moto[server]")


@pytest.fixture(scope="module")
def access() -> Iterator[dict[str, str]]:
    with cluster.bucket() as variables:
        yield variables


@pytest.fixture
def bucket(access: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty folder of a bucket, and an environment that reaches it."""
    for name, value in {**access, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    yield f"s3://shared/some/{request.node.name}"
    s3fs.S3FileSystem.clear_instance_cache()


def built(store: Store, fails: int | None = None) -> list[int]:
    """Build three parts; return those that were really made."""
    makers = Makers(3, fails)
    store.build(WORK, makers)
    return makers.made


def test_what_is_built_in_two_runs_is_read_verified_found_and_mended(bucket: str) -> None:
    store = Store(bucket)
    with pytest.raises(ArtifactError, match="nothing yet"):
        store.newest("scenes", "dictionary")
    with pytest.raises(RuntimeError):
        built(store, fails=1)
    assert store.find() == []
    assert built(Store(bucket)) == [1, 2]
    artifact = store.newest("scenes", "dictionary")
    assert (artifact, artifact.path) == (store.artifact(WORK), f"{bucket}/scenes/dictionary/{WORK.key}")
    assert store.table(artifact)["word"].to_pylist() == [f"word{i}{j}" for i in range(3) for j in range(2)]
    assert [table["qid"].to_pylist() for table in store.rejected(artifact)] == [["q0"], ["q1"], ["q2"]]
    assert store.verify(artifact) == []
    assert built(store) == []
    store.files.filesystem.rm_file(f"{artifact.path}/part-00001.parquet")
    store.files.filesystem.pipe_file(f"{artifact.path}/_rejected/part-00002.parquet", b"other bytes")
    assert store.verify(artifact) == [
        f"{artifact.path}/part-00001.parquet is missing",
        f"{artifact.path}/_rejected/part-00002.parquet was changed",
    ]
    assert built(store) == [1, 2]
    assert store.verify(artifact) == []


def test_a_second_run_waits_for_the_first(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LOOK_EVERY", 0.05)
    begun, told = threading.Event(), list[str]()

    def slow(index: int) -> Part:
        begun.set()
        while not told:
            time.sleep(0.02)
        return part(index)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Store(bucket).build, WORK, [partial(slow, index) for index in range(3)])
        assert begun.wait(20)
        other = pool.submit(Store(bucket).build, WORK, [unwanted], waits=told.append)
    assert first.result() == other.result()
    assert len(told) == 1
    assert Store(bucket).files.below(files_module.LEASES) == {}, "the lease is given back"


def test_a_lease_that_is_not_renewed_lapses(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LAPSES", 3600.0)
    monkeypatch.setattr(files_module, "LOOK_EVERY", 0.05)
    files, told = Store(bucket).files, list[str]()
    dead, mine = (f"{files_module.LEASES}/x.00000{term}" for term in (7, 8))
    long_ago = {"holder": "one that was killed", "renewed": time.time() - 1000}
    files.write(dead, json.dumps(long_ago).encode())

    def waits(holder: str) -> None:
        told.append(holder)
        monkeypatch.setattr(files_module, "LAPSES", 2.0)  # and so it has lapsed

    with files.lease("x", waits):
        assert sorted(files.below(files_module.LEASES)) == ["x.000007", "x.000008"]
        assert len(files.holders("x")) == 1, "the lapsed term has no holder"
        first = files.read(mine)
        while files.read(mine) == first:
            time.sleep(0.05)
        monkeypatch.setattr(files_module, "LAPSES", 60.0)  # a slow machine's renewals may be late
        with pytest.raises(TimeoutError), files.lease("x", stop):
            raise AssertionError("it was renewed: nobody else gets it")
    assert told == ["one that was killed"], "it was not taken before it had lapsed"


def unwanted() -> Part:
    raise AssertionError("the first run has made all parts")


def stop(holder: str) -> None:
    raise TimeoutError(holder)
