"""Hosts that share nothing but ports and a bucket, and commands that run on the hosts.

`python -m tests.cluster queries FOLDER` makes negatives of a data set in many small parts, `features FOLDER` the
features of its videos, and `toys SECONDS` the toy stage; each prints its last line as JSON. PENUMBRA_ENGINE chooses
the engine.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penumbra.artifacts.locations import PROJECT

ROWS_A_PART = 60
PATIENCE = 1500.0  # seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.1)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Host:
    """Processes with a home, caches, Prefect's files and a working folder of their own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[str]]()
        places = {"HOME": "home", "PREFECT_HOME": "prefect", "XDG_CACHE_HOME": "cache"}
        for name in places.values():
            (folder / name).mkdir(parents=True)
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(PROJECT)])
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PENUMBRA_", "PREFECT_"))},
            **{variable: str(folder / name) for variable, name in places.items()},
            **{"PYTHONPATH": path, "NO_PROXY": "127.0.0.1", **variables},
        }

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m MODULE ARGUMENTS` in a process group of its own."""
        command, errors = [sys.executable, "-m", module, *arguments], (self.folder / "errors").open("a")
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True, **streams)
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> Any:
        """Run a command of this module; return what it prints at its end."""
        output, _ = self.start("tests.cluster", *arguments).communicate(timeout=PATIENCE)
        return json.loads(output.splitlines()[-1])

    def scheduler(self, port: int) -> subprocess.Popen[str]:
        process = self.start("dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        wait_until(lambda: answers(port))
        return process

    def worker(self, port: int, *options: str) -> subprocess.Popen[str]:
        """Start a Dask worker of one thread, with its nanny."""
        usual = ["--nthreads=1", "--host=127.0.0.1", "--memory-limit=0", "--death-timeout=30", "--no-dashboard"]
        return self.start("dask", "worker", f"tcp://127.0.0.1:{port}", *usual, *options)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@contextmanager
def bucket() -> Iterator[dict[str, str]]:
    """Serve an empty bucket; yield the variables by which it is found."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    authorization = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/x"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/shared", headers=authorization, method="PUT")).close()
    access = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    try:
        yield {"PENUMBRA_ARTIFACTS": "s3://shared/artifacts", "AWS_ENDPOINT_URL": url, **access}
    finally:
        server.stop()


def queries(folder: str) -> dict[str, str]:
    """Make negatives of the data set in a folder; return the digest of every Parquet file by its place."""
    from penumbra.artifacts.store import Store
    from penumbra.flows import build_negatives as flows
    from penumbra.tasks import stage
    from penumbra.tasks.data.annotations import Annotations
    from penumbra.tasks.data.dataset import Dataset
    from penumbra.tasks.negatives.parameters import QualityConfig

    stage.FEW_ROWS = 0
    flows.read_annotations = lambda dataset: stage.run(Annotations(dataset, ROWS_A_PART))
    flows.build_negatives(Dataset(name="corner", folder=folder), judging=QualityConfig(sample=10, resamples=20))
    return {
        f"{manifest.stage}/{manifest.key}/{name}": digest
        for manifest in Store().find("corner")
        for name, digest in manifest.digests.items()
    }


def features(folder: str) -> dict[str, str]:
    """Make the features of a data set of films in a folder; return the digest of every Parquet file by its place."""
    from penumbra.artifacts.store import Store
    from penumbra.flows.extract_features import extract_features
    from penumbra.tasks import stage
    from penumbra.tasks.data.dataset import Dataset
    from penumbra.tasks.features import text, video
    from penumbra.tasks.features.clip import Clip
    from penumbra.tasks.features.video import Videos

    stage.FEW_ROWS, video.VIDEOS_A_PART, text.TEXTS_A_PART = 0, 2, 3
    videos = Videos(folder=f"{folder}/videos", patches=True)
    made = extract_features(Dataset(name="films", folder=folder), Clip(encoder="tiny-clip"), videos=videos)
    return {
        f"{artifact.stage}/{name}": digest
        for artifact in (made.text_features, *made.video_features, made.patch_features)
        for name, digest in Store().manifest(artifact).digests.items()
    }


def toys(seconds: str) -> dict[str, str]:
    """Make the toy stage; return the digests of its parts, or what went wrong."""
    from penumbra.artifacts.errors import PenumbraError
    from penumbra.artifacts.store import Store
    from tests.tasks.test_engines import Toys, made

    try:
        return Store().manifest(made(None, Toys(seconds=float(seconds)))).digests
    except PenumbraError as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps({"queries": queries, "features": features, "toys": toys}[sys.argv[1]](sys.argv[2])))
