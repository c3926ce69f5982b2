"""The leases of runs, and schedules of data sets whose files are missing."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import USE, Store
from penumbra.flows import extract_features
from penumbra.flows.deploy import without_idle_schedules
from penumbra.flows.registry import flow_of
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.stage import planning


def test_a_run_keeps_its_data_set_from_removal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[list[str]] = []

    def read(dataset: Any) -> None:
        held.append(store.files.holders(f"{USE}scenes~"))
        raise InterruptedError

    monkeypatch.setattr(extract_features, "read_annotations", read)
    for in_plan in (False, True):
        with pytest.raises(InterruptedError), planning() if in_plan else nullcontext():
            flow_of("extract-features").fn(Dataset(name="scenes"))
    assert [len(holders) for holders in held] == [1, 0], "a run holds a lease, a plan none"
    assert store.files.holders(f"{USE}scenes~") == []


def test_a_schedule_is_on_if_the_data_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path))
    nightly = [{"cron": "0 2 * * *", "active": True}]

    def active(name: str, schedules: list[dict[str, Any]] = nightly) -> list[bool]:
        deployment = {"parameters": {"dataset": {"name": name}}, "schedules": schedules}
        return [schedule["active"] for schedule in without_idle_schedules(deployment)["schedules"]]

    assert active("scenes") == [True], "it ships"
    assert active("charades-cg") == [False]
    (tmp_path / "charades-cg").mkdir()
    (tmp_path / "charades-cg" / "train.json").write_text("{}")
    assert active("charades-cg") == [True]
    assert active("charades-cg", [{"cron": "0 2 * * *", "active": False}]) == [False], "switched off in the file"
    assert without_idle_schedules({"parameters": {"dataset": {"name": "mine"}}})["schedules"] == []
