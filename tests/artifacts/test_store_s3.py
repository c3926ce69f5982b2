"""The store on an object store."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from penumbra.artifacts import files as files_module
from penumbra.artifacts.manifest import Part, Work, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store

pytestmark = pytest.mark.slow

s3fs = pytest.importorskip("s3fs", reason="needs s3fs (pip install 'penumbra[s3]')")
moto = pytest.importorskip("moto.server", reason="needs moto[server]")
boto3 = pytest.importorskip("boto3", reason="needs moto[server]")

WORK = Work("scenes", "tags", 1, {"a": 1})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty bucket, and an environment that reaches it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{abs(hash(request.node.name))}"
    boto3.client("s3").create_bucket(Bucket=name)
    yield f"s3://{name}/some/prefix"
    s3fs.S3FileSystem.clear_instance_cache()


class Makers:
    """Three parts, and a list of those that were really made; part `fails` raises."""

    def __init__(self, fails: int | None = None) -> None:
        self.made: list[int] = []
        self.fails = fails

    def make(self, index: int) -> Part:
        if index == self.fails:
            raise RuntimeError("the machine went away")
        self.made.append(index)
        return Part(table_of("tags", [{"qid": f"q{index}", "tokens": []}]), 2, 1, [rejection("r", "tags", "a reason")])

    def build(self, store: Store, work: Work = WORK) -> list[int]:
        store.build(work, [partial(self.make, index) for index in range(3)])
        return self.made


def test_what_is_built_in_two_runs_is_read_verified_found_and_mended(bucket: str) -> None:
    store = Store(bucket)
    with pytest.raises(ArtifactError, match="nothing yet"):
        store.newest("scenes", "tags")
    with pytest.raises(RuntimeError):
        Makers(fails=1).build(store)
    assert store.find() == []
    assert Makers().build(Store(bucket)) == [1, 2]
    artifact = store.newest("scenes", "tags")
    assert (artifact, artifact.path) == (store.artifact(WORK), f"{bucket}/scenes/tags/{WORK.key}")
    assert store.table(artifact)["qid"].to_pylist() == ["q0", "q1", "q2"]
    assert [table["reason"].to_pylist() for table in store.rejected(artifact)] == [["a reason"]] * 3
    assert store.verify(artifact) == []
    assert Makers().build(store) == []
    store.files.filesystem.rm_file(f"{artifact.path}/part-00001.parquet")
    store.files.filesystem.pipe_file(f"{artifact.path}/_rejected/part-00002.parquet", b"other bytes")
    assert store.verify(artifact) == [
        f"{artifact.path}/part-00001.parquet is missing",
        f"{artifact.path}/_rejected/part-00002.parquet was changed",
    ]
    assert Makers().build(store) == [1, 2]
    assert store.verify(artifact) == []


def test_a_second_run_waits_for_the_first(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LOOK_EVERY", 0.05)
    begun, told = threading.Event(), list[str]()

    def slow(index: int) -> Part:
        begun.set()
        while not told:
            time.sleep(0.02)
        return Makers().make(index)

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
