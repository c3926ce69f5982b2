"""Removal of artifacts by name, by age and if nothing needs them; reports of damaged artifacts."""

from pathlib import Path

import pytest

from penumbra.artifacts.catalogue import to_remove
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.runs import run_folder
from tests.rows import build
from tests.terminal import penumbra, printed, started

USING = """
import sys, time
from penumbra.artifacts.store import Store
with Store(sys.argv[1]).use("mine"):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def made(store: Store) -> dict[str, Artifact]:
    """Tags that were made twice, masks of each, and a training on the first ones."""
    old = build(store, "tags", [])
    masks = build(store, "masks", [], (old,))
    run = build(store, "metrics", [], (masks,))
    lone = build(store, "tags", [], parameters={"number": 1})
    build(store, "metrics", [], parameters={"number": 2})
    newest = build(store, "tags", [], parameters={"number": 2})
    return {"old": old, "masks": masks, "run": run, "lone": lone, "newest": newest}


def test_what_no_result_needs_is_removed_but_not_by_a_dry_run(store: Store, made: dict[str, Artifact]) -> None:
    assert to_remove(store, None, True) == [made["lone"]], "no ancestor of a result, and no newest artifact"
    assert f"would remove {made['lone'].path}" in printed("artifacts", "rm", "--unneeded", "--dry-run")
    assert store.has(made["lone"])
    printed("artifacts", "rm", "--unneeded")
    assert not Path(made["lone"].path).exists()
    assert store.has(made["old"])
    assert penumbra("artifacts", "rm").exit_code == 2, "everything is not taken unasked"


def test_nothing_is_removed_beside_a_run_that_uses_the_data_set(store: Store, made: dict[str, Artifact]) -> None:
    with started(USING, store.root) as process:
        assert process.stdout.readline() == "ready\n"
        refused = penumbra("artifacts", "rm", "--unneeded")
        assert isinstance(refused.exception, ArtifactError)
        assert f"process {process.pid} on " in str(refused.exception)
        assert "uses artifacts of this data set" in str(refused.exception)
        assert store.has(made["lone"])
        store.check_unused([made["lone"].model_copy(update={"dataset": "min"})])
        printed("artifacts", "rm", "--unneeded", "--dry-run")
        process.kill()
    with store.lease(made["lone"]), pytest.raises(ArtifactError, match="when it has finished"):
        store.check_unused([made["lone"]])
    printed("artifacts", "rm", "--unneeded")
    assert not store.has(made["lone"])
    with store.use("mine"):
        pass
    assert not list(Path(store.root).glob(".leases/use*")), "no file of a lease that has ended is left"


def test_verify_reports_all_faults(store: Store, made: dict[str, Artifact]) -> None:
    (Path(made["masks"].path) / "_manifest.json").unlink()
    (Path(made["newest"].path) / "_manifest.json").write_text("{")
    (Path(made["lone"].path) / "part-00000.parquet").write_bytes(b"")
    (Path(made["lone"].path) / "part-00007.parquet").write_bytes(b"")
    done = penumbra("artifacts", "verify")
    assert done.exit_code == 1
    for fault in (
        f"{made['run'].path} was made from {made['masks'].path}, which does not exist any more",
        f"{made['newest'].path}/_manifest.json is damaged",
        f"{made['lone'].path}/part-00000.parquet was changed",
        f"{made['lone'].path}/part-00007.parquet is no part of it",
        f"{made['masks'].path} is not finished",
        "5 artifacts, 4 faults, 1 not finished",
    ):
        assert fault in done.output, done.output
    assert made["old"].key in printed("artifacts", "ls")


def test_disk_space_counts_artifacts_and_checkpoints(made: dict[str, Artifact]) -> None:
    weights = run_folder(made["run"]) / "model_best.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(2_500_000))
    lines = [line for line in printed("artifacts", "du", "mine").splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert cells[0] == ["mine", "checkpoints", "1", "2.5"], "the largest first"
    assert cells[-1][::2] == ["all", "7"]
