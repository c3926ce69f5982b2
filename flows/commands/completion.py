"""What a shell completes. Names come from folders and from prefect.yaml, without torch, Prefect, pandas or a network.

Artifacts on an object store are not completed. To complete the parameters of a flow, the flow is imported, which takes
some seconds.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import typer

from penumbra.artifacts.locations import PROJECT, artifacts_root, data_folder, runs_folder
from penumbra.flows.registry import FLOWS, prefect_yaml, read_yaml

PRESETS = PROJECT / "tasks" / "grounding" / "training" / "presets.yaml"


def beginning_with(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with what is typed."""
    return [name for name in dict.fromkeys(names) if name.startswith(typed)]


def flows(incomplete: str) -> list[str]:
    """Return names of flows."""
    return beginning_with(incomplete, FLOWS)


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return what a flow can run on: names of its deployments, which are data sets' and presets', and data sets."""
    flow = ctx.obj
    deployed = [it["name"] for it in prefect_yaml()["deployments"] if flow is None or flow in it["tags"]]
    return beginning_with(incomplete, [*deployed, *_folders(data_folder())])


def data_sets(incomplete: str) -> list[str]:
    """Return names of data sets that have artifacts, or files."""
    return beginning_with(incomplete, [*_folders(_local_artifacts()), *_folders(data_folder())])


def references(incomplete: str) -> list[str]:
    """Return DATASET/, then DATASET/STAGE, then DATASET/STAGE/KEY."""
    *above, _ = incomplete.split("/")
    root = _local_artifacts()
    if root is None or len(above) > 2:
        return []
    end = "" if above else "/"
    return beginning_with(incomplete, (f"{'/'.join([*above, name])}{end}" for name in _folders(root.joinpath(*above))))


def runs(incomplete: str) -> list[str]:
    """Return names of trainings, which end in the first digits of their keys."""
    return beginning_with(incomplete, map(_run_name, sorted(runs_folder().glob("*/*/settings.json"))))


def _run_name(file: Path) -> str:
    try:
        model = json.loads(file.read_text(encoding="utf-8"))["settings"]["model"]
        label = f"{model['name']}{'+shine' if model.get('losses', {}).get('shine') else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        label = "run"
    return f"{label}-{file.parent.name[:6]}"


def parameters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return NAME= for each parameter of the flow, or NAME=VALUE if the name is typed and its values are known."""
    flow = ctx.obj
    if flow not in FLOWS:
        return []
    name, equals, _ = incomplete.partition("=")
    if name == "preset":
        return beginning_with(incomplete, (f"preset={value}" for value in presets()))
    from penumbra.flows.parameter_help import known_values
    from penumbra.flows.parameters import parameters_of
    from penumbra.flows.registry import flow_of

    known = [it for it in parameters_of(flow_of(flow)) if not it.is_group and "[]" not in it.path]
    values = [f"{name}={value}" for it in known if it.path == name for value in known_values(it.annotation)]
    if values:
        return beginning_with(incomplete if equals else "", values)
    return beginning_with(incomplete, (f"{it.path}=" for it in known))


def presets() -> list[str]:
    """Return names of presets."""
    return list(read_yaml(PRESETS))


def _local_artifacts() -> Path | None:
    root = artifacts_root()
    return None if "://" in root else Path(root).expanduser()


def _folders(place: Path | None) -> list[str]:
    if place is None or not place.is_dir():
        return []
    return sorted(it.name for it in place.iterdir() if it.is_dir() and it.name[0] not in "._")
