"""Grids: every row is valid, rows are chosen, planned and listed, and tables have the papers' form."""

from typing import Any

import pytest
import yaml

from penumbra.artifacts.errors import PenumbraError
from penumbra.flows.parameters import deployment_parameters
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.ablation import COSTS, GROUPS, METRICS, Results, Row, grids, listing, plan
from penumbra.tasks.grounding.training.presets import Settings, layered, presets
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.parameter_group import Parameters

pytestmark = pytest.mark.long


def parameters_of(**groups: dict[str, Any]) -> dict[str, Parameters]:
    kinds = (NegativesParameters, FeaturesParameters, Settings)
    several = (kind.model_validate({name: groups.get(name, {}) for name in kind.model_fields}) for kind in kinds)
    return {name: group for it in several for name, group in it}


NO_PARAMETERS = parameters_of()


@pytest.mark.parametrize("dataset", ["scenes", "charades-cg"])
@pytest.mark.parametrize("name", list(grids()))
def test_every_row_is_valid_and_differs_from_the_others(name: str, dataset: str) -> None:
    deployment = deployment_parameters("ablation", dataset)
    held = {**deployment, **deployment.get("negatives", {}), **deployment.get("features", {})}
    base = parameters_of(**{group: values for group, values in held.items() if group in GROUPS})
    grid = grids()[name]
    labels = [row.label for row in grid.rows]
    _, plans = plan(name, labels, dataset, deployment.get("preset"), base)
    assert [row.row.label for row in plans] == labels
    assert len(set(labels)) == len(labels)
    assert {len(row.cells) for row in grid.rows} == {len(grid.columns)}
    asked = {str([part.model_dump() for part in (row.settings, row.negatives, row.features)]) for row in plans}
    assert len(asked) == len(plans)


def test_a_row_overrides_parameters_which_override_the_preset() -> None:
    base = parameters_of(model={"losses": {"shine": True}, "ablation": {"fine": 3.0}}, training={"epochs": 7})
    _, plans = plan("losses", ["base", "intra", "all"], "charades-cg", "charades-cg-qd_detr", base)
    assert [row.settings.model.losses.shine for row in plans] == [False, True, True]
    assert [row.settings.model.loss_settings.fine for row in plans] == [3.0, 0.0, 3.0]
    assert {row.settings.training.epochs for row in plans} == {7}
    assert {row.settings.training.milestones for row in plans} == {150}  # the preset's


@pytest.mark.parametrize(
    ("dataset", "preset", "label", "expected"),
    [
        ("charades-cg", "charades-cg-qd_detr", "MMN + SHINE", "charades-cg-mmn-shine"),
        ("charades-sta", "charades-sta-qd_detr", "MMN", "charades-sta-mmn"),
        ("charades-sta", "charades-sta-qd_detr", "MMN + SHINE", "charades-sta-mmn"),  # its own base model's
        ("mine", "charades-cg-qd_detr", "BM-DETR", "charades-cg-bm_detr"),
        ("charades-cg", "charades-cg-simulated", "QD-DETR", "charades-cg-simulated"),
        ("charades-cg", "charades-cg-simulated", "MMN", "charades-cg-simulated-mmn-shine"),
    ],
)
def test_a_row_takes_a_preset_of_its_own_model(dataset: str, preset: str, label: str, expected: str) -> None:
    [row] = plan("systems", [label], dataset, preset, NO_PARAMETERS)[1]
    assert row.preset == expected
    assert row.settings.model.name == presets()[expected]["model"]["name"]
    assert row.settings.training == layered(expected).training


def test_a_row_without_a_preset_of_its_model_is_refused() -> None:
    for dataset, preset in (("mine", None), ("tacos", None), ("charades-cg", "charades-cg-simulated")):
        with pytest.raises(PenumbraError, match=r"systems, row '[^']*': no preset '.*', and rows with another model's"):
            plan("systems", [], dataset, preset, NO_PARAMETERS)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("loss", [], r"no grid .loss.; did you mean losses\? there is: losses, levels, llms, rejection"),
        ("ratios", ["40/50/60"], "ratios has no row '40/50/60'; there is: '25/50/75', '10/30/50'"),
    ],
)
def test_unknown_grids_and_rows_are_named(name: str, labels: list[str], message: str) -> None:
    with pytest.raises(PenumbraError, match=message):
        plan(name, labels, "scenes", None, NO_PARAMETERS)


def test_an_invalid_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = grids()["ratios"]
    for changes, message in (
        ({"masking": {"ratios": [0.5, 0.2, 0.9]}}, ".*must rise"),
        ({"masks": {}}, "no parameters masks"),
        ({"model": {"losses": {"fines": 1}}}, "model.qd_detr.losses.fines: Extra inputs"),
    ):
        grid = ratios.model_copy(update={"rows": (Row(label="mine", changes=changes),)})
        monkeypatch.setitem(grids(), "ratios", grid)
        with pytest.raises(PenumbraError, match=f"ratios, row 'mine': {message}"):
            plan("ratios", [], "scenes", None, NO_PARAMETERS)
    with pytest.raises(PenumbraError, match="--dry-run"):
        plan("losses", [], "scenes", None, parameters_of(filling={"dry_run": True}))


def test_the_listing_has_the_changes_and_the_model_of_each_row() -> None:
    [(_, changes, model)] = listing(plan("losses", ["intra"], "scenes", None, NO_PARAMETERS)[1])
    assert yaml.safe_load(changes) == {"model": {"ablation": {"coarse_terms": ["intra"], "fine": 0}}}
    assert model == "qd_detr"
    [(_, changes, model)] = listing(plan("systems", ["MMN"], "scenes", None, NO_PARAMETERS)[1])
    assert changes.startswith("{preset: scenes-mmn, model: ")
    assert model == "mmn"


def test_rows_of_language_models_name_the_model_that_is_asked() -> None:
    base = parameters_of(filling={"providers": ["openai", "llama"], "openai": {"model": "gpt-3.5-turbo"}})
    grid, plans = plan("llms", [], "scenes", None, base)
    assert [row.label for row in grid.rows] == ["base", "gpt", "llama"]
    assert [row.cells for row in grid.rows[1:]] == [("gpt-3.5-turbo",), (plans[2].negatives.filling.llama.model,)]


def rows_of(label: str, seed: int, value: float) -> list[dict[str, Any]]:
    places = [(split, metric) for split in ("word", "test") for metric in METRICS] + [("", metric) for metric in COSTS]
    return [
        {"row": label, "seed": seed, "run": "r", "split": split, "metric": metric, "value": value}
        for split, metric in places
    ]


def test_the_table_has_the_form_of_the_papers() -> None:
    results = Results(grids()["systems"], seeds=2, labels=["Moment-DETR", "QD-DETR", "QD-DETR + SHINE"])
    results.figures = [*rows_of("Moment-DETR", 0, 10.0), *rows_of("Moment-DETR", 1, 20.0), *rows_of("QD-DETR", 0, 30.0)]
    results.failures = {"QD-DETR + SHINE": "no key"}
    header, _, first, second, third, *remarks = filter(None, results.table().split("\n"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, first, second, third)]
    assert cells[0][:7] == ["", "Test-Trivial R1@0.5", "R1@0.7", "mIoU", "Novel-Word R1@0.5", "R1@0.7", "mIoU"]
    assert cells[0][7:] == ["parameters, M", "training, s", "inference, ms a query"]
    assert cells[1][:2] == ["Moment-DETR", "15.00 ± 63.53"]  # t(0.975, 1 degree of freedom) · 5
    assert cells[1][8] == "15.0"
    assert cells[2][1:5] == ["30.00", "30.00", "30.00", "30.00"]
    assert set(cells[3][1:]) == {"–"}
    assert "2 seeds" in remarks[0]
    assert remarks[1] == "**Failed**: QD-DETR + SHINE: no key"
