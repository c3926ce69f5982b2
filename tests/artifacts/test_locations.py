"""Locations of data in a checkout and in an installed package."""

from pathlib import Path

import pytest

from penumbra.artifacts import locations
from penumbra.artifacts.locations import PROJECT, answers_folder, artifacts_root, data_folder, runs_folder


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in locations.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_data_of_a_checkout_are_beside_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (data_folder(), artifacts_root()) == (PROJECT / "datasets", str(PROJECT / "artifacts" / "data"))
    assert runs_folder() == PROJECT / "artifacts" / "data" / ".runs"
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "~/mine")
    monkeypatch.setenv("PENUMBRA_RUNS", "/runs")
    assert (answers_folder(), runs_folder()) == (Path.home() / "mine" / ".answers", Path("/runs"))


def test_data_of_an_installed_package_are_in_the_user_s_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locations, "IS_CHECKOUT", False)
    ours = tmp_path / "penumbra"
    assert (data_folder(), artifacts_root()) == (ours / "datasets", str(ours / "artifacts"))
    assert (answers_folder(), runs_folder()) == (ours / "artifacts" / ".answers", ours / "artifacts" / ".runs")
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "s3://bucket/folder")
    assert artifacts_root() == "s3://bucket/folder"
    assert runs_folder() == ours / "artifacts" / ".runs", "checkpoints are always on a disk"
