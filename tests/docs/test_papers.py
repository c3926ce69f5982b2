"""Every row and preset that docs/papers.md names exists, and each of its commands can be planned."""

import re
from pathlib import Path

import pytest

from penumbra.flows.parameters import deployment_parameters, parse_parameters
from penumbra.flows.registry import prefect_yaml
from penumbra.tasks.grounding.ablation import grids, plan
from penumbra.tasks.grounding.training.presets import presets

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
LINES = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("|") and "`penumbra" in line]
ABLATIONS = [line for line in LINES if "`penumbra ablation" in line[1]]


@pytest.mark.parametrize("line", ABLATIONS, ids=lambda line: line[0])
def test_the_rows_of_a_table_are_in_its_grid(line: list[str]) -> None:
    _, command, rows, _ = line
    name, dataset = command.strip("`").split()[2:4]
    labels = re.findall(r"`([^`]+)`", rows)
    preset = deployment_parameters("ablation", dataset).get("preset")
    _, plans = plan(name, labels, dataset, preset, {})
    assert {it.row.label for it in plans} == set(labels)
    assert len(labels) == len(set(labels))


def test_every_row_of_every_grid_is_on_the_page() -> None:
    for name, grid in grids().items():
        lines = [line for line in ABLATIONS if f"ablation {name} " in line[1]]
        named = {label for line in lines for cell in line[2:] for label in re.findall(r"`([^`]+)`", cell)}
        ours = {"BM-DETR + generated negatives"}
        assert {row.label for row in grid.rows} <= named | ours, name


def test_presets_and_deployments_on_the_page_exist() -> None:
    datasets = "charades|activitynet|qvhighlights|tacos"
    named = set(re.findall(rf"(?:preset=|`)((?:{datasets})[a-z0-9_-]*_detr(?:-shine)?)`", PAGE))
    assert {"charades-cd-bm_detr", "activitynet-captions-bm_detr", "charades-sta-qd_detr-shine"} <= named
    assert named <= presets().keys()
    deployed = prefect_yaml()[1]
    for _, command, *_ in LINES:
        words = command.strip("`").split()
        if words[1] == "run" and len(words) == 4:
            assert (words[2], words[3]) in deployed or words[2] == "evaluate-grounding", command
        if "--param" in words:
            assert parse_parameters([words[-1]])
