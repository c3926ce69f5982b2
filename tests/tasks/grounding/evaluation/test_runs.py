"""Trainings as `penumbra runs` lists, shows and removes them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.configs import RunChoice
from penumbra.tasks.grounding.evaluation.calibration import Calibration
from penumbra.tasks.grounding.evaluation.predictions import Predictions, runs_to_evaluate
from penumbra.tasks.grounding.runs import CONSTANT, all_runs, found_run, remove, run_folder
from penumbra.tasks.grounding.training.presets import Settings, non_default_settings
from tests.rows import build
from tests.terminal import penumbra, printed, python, refusal

Figures = Mapping[str, Mapping[str, float]]


def train(store: Store, said: dict[str, Any], parents: tuple[Artifact, ...] = (), megabytes: int = 1) -> Artifact:
    """A run as a training leaves it; its name is in its table."""
    settings = Settings.model_validate(said)
    parameters = {"settings": settings.model_dump(mode="json")}
    key = Work("mine", "metrics", 1, parameters, parents).key
    row = {"run": f"{settings.model.label}-{key[:6]}", "epoch": 1, "step": 1, "split": "train", "name": "total"}
    metrics = build(store, "metrics", [{**row, "value": 1.0}], parents, parameters=parameters)
    checkpoints(metrics, settings, megabytes)
    return metrics


def checkpoints(metrics: Artifact, settings: Settings, megabytes: int = 1, epoch: int = 3) -> None:
    folder = run_folder(metrics)
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"settings": settings.model_dump(mode="json")}))
    (folder / "last.json").write_text(json.dumps({"epoch": epoch}))
    (folder / "last.safetensors").write_bytes(b" " * 1_000_000 * megabytes)


def judge(store: Store, metrics: Artifact, figures: Figures) -> Artifact:
    name = store.table(metrics)["run"][0].as_py()
    predictions = build(store, "predictions", [], (metrics,))
    rows = [
        {"run": name, "split": split, "subset": subset, "metric": metric, "value": value + (subset != "all")}
        for split, found in figures.items()
        for metric, value in ({"queries": 9.0} | dict(found)).items()
        for subset in ("a-n", "all")
    ]
    rows += [{"run": name, "split": "test", "subset": CONSTANT, "metric": "mIoU", "value": 15.0}]
    return build(store, "evaluation", rows, (metrics, predictions))


@pytest.fixture
def made(store: Store) -> dict[str, Artifact]:
    """QD-DETR without negatives, with SHINE's of two providers, and MMN, which was not evaluated."""
    several = ({"provider": "corpus"}, {"provider": "openai"}, {"provider": "corpus", "substitutes": True})
    fills = tuple(build(store, "fills", [], parameters=said) for said in several)
    negatives = build(store, "negatives", [], fills)
    plain = train(store, {"model": {"name": "qd_detr"}, "training": {"seed": 7}})
    shine = train(store, {"model": {"name": "qd_detr", "losses": {"shine": True}}}, (negatives,), megabytes=5)
    mmn = train(store, {"model": {"name": "mmn"}}, megabytes=3)
    judge(store, plain, {"test": {"R1@0.5": 30.0, "mIoU": 20.0}, "word": {"R1@0.5": 60.0}})
    evaluation = judge(store, shine, {"test": {"R1@0.5": 40.0, "mIoU": 10.0}, "word": {"R1@0.5": 50.0}})
    return {"negatives": negatives, "plain": plain, "shine": shine, "mmn": mmn, "evaluation": evaluation}


def test_predictions_of_an_older_version_do_not_count(store: Store, made: dict[str, Artifact]) -> None:
    assert runs_to_evaluate("mine", RunChoice()) == [made[name] for name in ("plain", "shine", "mmn")]
    for version, left in ((Calibration.version - 1, 3), (Calibration.version, 2)):
        calibration = Work("mine", "calibration", version, {}, (made["plain"],))
        calibrated = store.build(calibration, [lambda: Part(table_of("calibration", []), 0, 0)])
        work = Work("mine", "predictions", Predictions.version, {"splits": []}, (made["plain"], calibrated))
        store.build(work, [lambda: Part(table_of("predictions", []), 0, 0)])
        assert runs_to_evaluate("mine", RunChoice()) == [made[name] for name in ("plain", "shine", "mmn")][-left:]


def test_a_run_has_its_negatives_figures_and_size(store: Store, made: dict[str, Artifact]) -> None:
    plain, shine, mmn = all_runs("mine")
    assert shine.run == f"qd_detr+shine-{made['shine'].key[:6]}"
    assert (shine.model, shine.negatives) == ("qd_detr+shine", f"corpus+openai/{made['negatives'].key[:6]}")
    test = {"queries": 9.0, "R1@0.5": 40.0, "mIoU": 10.0}
    assert shine.figures == {"test": test, "word": {"queries": 9.0, "R1@0.5": 50.0}}
    assert (plain.below, shine.below) == ((), ("test",))
    assert shine.size == sum(shine.files().values())
    assert 5e6 < shine.size < 5.1e6
    assert str(run_folder(made["shine"]) / "last.safetensors") in shine.files()
    assert f"{made['evaluation'].path}/part-00000.parquet" in shine.files()
    assert (plain.negatives, mmn.figures) == ("", {})


def test_a_run_below_the_constant_window_is_marked_and_the_mark_is_explained(made: dict[str, Artifact]) -> None:
    output = printed("runs", "ls")
    assert output.count("test ▾") == 1
    assert "▾: mIoU no higher than the mIoU of the best constant window" in output


def test_an_unfinished_run_is_listed_and_found_by_its_key(store: Store, made: dict[str, Artifact]) -> None:
    settings = Settings.model_validate({"model": {"name": "mmn"}, "training": {"epochs": 9}})
    metrics = Artifact(root=store.root, dataset="mine", stage="metrics", key="abc0000000000000")
    checkpoints(metrics, settings, epoch=4)
    run = found_run("mmn-abc000")
    assert (run.metrics, run.finished, run.epoch, run.epochs) == (metrics, None, 4, 9)
    assert "not: epoch 4 of 9" in printed("runs", "ls")
    assert "epoch 4 of 9; its flow resumes" in printed("runs", "show", "abc")
    (run.folder / "settings.json").write_text("{")
    assert found_run("abc").model == "run", "a kill tore the file, and the list stands"
    remove(run)
    assert not run.folder.exists()
    with pytest.raises(ArtifactError, match="no run is called 'abc'; there are: mmn-"):
        found_run("abc")


def test_removing_a_run_removes_its_artifacts_unless_it_is_trained(store: Store, made: dict[str, Artifact]) -> None:
    name = f"qd_detr+shine-{made['shine'].key[:6]}"
    with store.lease(made["shine"]), pytest.raises(ArtifactError, match=r"is being trained by process \d+ on .*: stop"):
        remove(found_run(name))
    assert printed("runs", "rm", name, "--dry-run").startswith(f"would remove {name} on mine (5.0 MB)")
    assert store.has(made["shine"])
    assert printed("runs", "rm", name).startswith(f"removed {name} on mine (5.0 MB)")
    paths = [run_folder(made["shine"]), Path(made["shine"].path), Path(made["evaluation"].path)]
    assert not any(path.exists() for path in paths)
    assert store.has(made["negatives"])
    assert [run.metrics for run in all_runs()] == [made["plain"], made["mmn"]]
    assert [[it.key for it in found.parents] for found in store.find("mine", "predictions")] == [[made["plain"].key]]


def test_a_pinned_run_is_found_by_its_pin_and_stays(store: Store, made: dict[str, Artifact]) -> None:
    plain = made["plain"]
    printed("artifacts", "pin", "mine/metrics", plain.key, "--as", "best")
    assert found_run("best").metrics == found_run("mine/metrics@best").metrics == plain
    assert "@best" in penumbra("runs", "ls").output
    assert refusal("runs", "rm", "best").endswith("artifacts pin mine/metrics --as best --remove unpins it")
    assert store.has(plain)


def test_show_prints_settings_parents_files_and_figures(store: Store, made: dict[str, Artifact]) -> None:
    shown = printed("runs", "show", made["plain"].key)
    assert "training.seed = 7\n" in shown
    assert 'model.name = "qd_detr"\n' in shown
    shown = printed("runs", "show", made["shine"].key[:8])
    assert "model.losses.shine = true\n" in shown
    assert re.search(r"word .* 9 .* 50\.00", shown), shown
    assert non_default_settings({"model": {"name": "of another version", "width": 3}})["model.width"] == 3


def test_listing_imports_no_heavy_package(made: dict[str, Artifact]) -> None:
    heavy = {"torch", "prefect", "pandas", "transformers", "spacy", "pyarrow.compute", "pyarrow.dataset"}
    shown = python(
        "import sys; from penumbra.flows.commands import app; app(['runs', 'ls'], standalone_mode=False); "
        f"print(sorted({heavy} & set(sys.modules)))"
    ).stdout
    assert "mmn-" in shown
    assert shown.endswith("[]\n")
