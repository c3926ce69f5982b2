"""Names of runs, and the state of a run that a schedule started while its data are missing."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.states import Pending

from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.deploy import without_idle_schedules
from penumbra.flows.registry import flow_of
from penumbra.tasks.data.dataset import Dataset

SCENES = {"dataset": {"name": "scenes"}}
BOTH = {"providers": ["corpus", "openai"]}


@pytest.mark.parametrize(
    ("name", "parameters", "run_name"),
    [
        ("build-negatives", {**SCENES, "filling": BOTH}, "build-negatives scenes corpus+openai"),
        ("extract-features", {**SCENES, "clip": {"encoder": "a/b-32"}}, "extract-features scenes b-32"),
        ("train-grounding", {**SCENES, "preset": "scenes-qd_detr-shine"}, "train qd_detr+shine scenes"),
        ("train-grounding", {**SCENES, "preset": "no-such"}, "train-grounding scenes"),
        ("evaluate-grounding", {**SCENES, "choice": {"run": "12ab"}}, "evaluate 12ab scenes"),
        ("full-pipeline", {**SCENES, "preset": "scenes-mmn"}, "full-pipeline scenes corpus mmn"),
    ],
)
def test_a_run_has_a_name_that_says_what_it_does(
    name: str, parameters: dict[str, Any], run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = inspect.signature(flow_of(name).fn).parameters.values()
    defaults = {given.name: given.default for given in signature if given.default is not given.empty}
    known = flow_of(name).validate_parameters({**defaults, **parameters})
    monkeypatch.setattr(flow_run, "get_parameters", lambda: known)
    naming = flow_of(name).flow_run_name
    assert callable(naming)
    assert naming() == run_name


def scheduled_run(folder: Path) -> FlowRun:
    """A run that the server's own scheduler planned, as it is when its time has come."""
    with get_client(sync_client=True) as client:
        dataset = {"name": "absent", "folder": str(folder)}
        schedule = {"active": True, "schedule": {"cron": "0 2 * * *", "timezone": "UTC"}}
        deployment = client.create_deployment(
            client.create_flow(build_negatives), "absent", parameters={"dataset": dataset}, schedules=[schedule]
        )  # type: ignore[list-item]
        client.request("POST", "/deployments/{id}/schedule", path_params={"id": deployment}, json={"min_runs": 1})
        run = next(run for run in client.read_flow_runs() if run.deployment_id == deployment)
        client.set_flow_run_state(run.id, Pending(), force=True)
        return client.read_flow_run(run.id)


def test_a_scheduled_run_without_data_is_cancelled_with_a_remedy(prefect_server: None, tmp_path: Path) -> None:
    run, missing = scheduled_run(tmp_path / "absent"), tmp_path / "absent"
    parameters = {"dataset": Dataset(name="absent", folder=str(missing))}
    state: State[Any] = run_flow(build_negatives, run, parameters, return_type="state")  # type: ignore[assignment]
    assert state.is_cancelled()
    remedy = "name the one that holds its files with dataset.folder"
    assert state.message == f"no folder {missing} for data set absent: {remedy}"
    by_hand = build_negatives(parameters["dataset"], return_state=True)
    assert by_hand.is_failed()
    assert state.message in str(by_hand.message)


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
