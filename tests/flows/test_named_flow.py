"""The leases of runs, and schedules of data sets whose files are missing."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.store import USE, Store
from penumbra.flows import extract_features
from penumbra.flows.deploy import (
    all_deployments,
    datasets_of,
    form_of,
    has_files,
    schedule_of,
    wanted_of,
    with_defaults,
)
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


def test_deployments_are_of_the_data_sets_that_are_there(datasets: Path) -> None:
    (datasets / "mine").mkdir()
    (datasets / "mine" / "train.json").write_text("{}")
    (datasets / "mine" / "penumbra.yaml").write_text("build-negatives:\nfull-pipeline:\n")
    there = [deployment for deployment in all_deployments() if has_files(deployment)]
    assert datasets_of(wanted_of(there, "")) == ["mine", "scenes"]
    assert [it["tags"] for it in wanted_of(there, "mine")] == [["build-negatives", "mine"], ["full-pipeline", "mine"]]
    with pytest.raises(PenumbraError, match="did you mean mine"):
        wanted_of(there, "mime")


def test_a_form_shows_the_defaults_of_groups_but_for_those_that_a_preset_sets() -> None:
    filled = with_defaults("build-negatives", {"dataset": {"name": "mine"}, "masking": {"ratios": [0.1, 0.2, 0.3]}})
    assert filled["dataset"] == {"name": "mine", "folder": None, "files": {}}
    assert filled["masking"]["ratios"] == [0.1, 0.2, 0.3]
    assert filled["masking"]["primitives"] is None
    training = {"preset": "scenes-mmn", "training": {"epochs": 3}, "model": {"hidden": 32}}
    assert with_defaults("train-grounding", training) == training


@pytest.mark.parametrize(
    ("written", "is_possible", "active"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_schedule_is_on_if_the_data_exist(written: bool, is_possible: bool, active: bool) -> None:
    schedule = {"cron": "0 2 * * *", "timezone": "UTC", "slug": "nightly", "active": written}
    assert schedule_of(schedule, is_possible).active is active


def test_a_form_posts_only_what_a_user_enters_so_that_a_preset_sets_the_rest() -> None:
    schema = form_of("train-grounding")
    titles = {group["title"] for group in schema["definitions"].values()}
    assert {"QDDETR", "MMN", "Training"} <= titles
    for group in schema["definitions"].values():
        for item in group.get("properties", {}).values():
            assert "const" in item or "default" not in item, "a form posts the defaults that it shows"
            assert item.get("type") != "boolean", "a form posts a switch that nobody touched"
