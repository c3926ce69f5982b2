"""What a shell completes: names that the file system and two small files tell, in a fraction of a second.

No torch, no Prefect, no pandas, no network: artifacts on an object store are not completed. A flow's parameters are
those that were described before (`penumbra.flows.parameter_help`); else they are described now, for the next time.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from penumbra.artifacts.locations import PROJECT, artifacts_root, data_folder, runs_folder
from penumbra.flows.registry import FLOWS, prefect_yaml, read_yaml

PRESETS = PROJECT / "tasks" / "grounding" / "training" / "presets.yaml"

Found = Iterable[str]


def beginning(found: Found, incomplete: str) -> list[str]:
    """Those that begin with what is typed."""
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def flows(incomplete: str) -> list[str]:
    """Flows."""
    return beginning(FLOWS, incomplete)


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """What a flow may be run on: the names of its deployments, which are data sets' and presets', and data sets."""
    flow = ctx.obj
    deployed = [it["name"] for it in prefect_yaml()["deployments"] if flow is None or flow in it["tags"]]
    return beginning([*deployed, *folders(data_folder())], incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Data sets that have artifacts, or files."""
    return beginning([*folders(_local_artifacts()), *folders(data_folder())], incomplete)


def references(incomplete: str) -> list[str]:
    """DATASET/STAGE, and DATASET/STAGE/KEY once a stage is typed; data sets with a slash before."""
    *above, _ = incomplete.split("/")
    root = _local_artifacts()
    if root is None or len(above) > 2:
        return []
    slash = "" if len(above) == 2 else "/" if not above else ""
    return beginning((f"{'/'.join([*above, name])}{slash}" for name in folders(root.joinpath(*above))), incomplete)


def runs(incomplete: str) -> list[str]:
    """Trainings, whose names end in the first digits of their keys."""
    return beginning(map(_run_name, sorted(runs_folder().glob("*/*/settings.json"))), incomplete)


def _run_name(file: Path) -> str:
    try:
        model = json.loads(file.read_text(encoding="utf-8"))["settings"]["model"]
        label = f"{model['name']}{'+shine' if model.get('losses', {}).get('shine') else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        label = "run"
    return f"{label}-{file.parent.name[:6]}"


def parameters(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME=, or NAME=VALUE for each value where these are known and the name is typed."""
    from penumbra.flows.parameter_help import keep_soon, kept_groups

    flow = ctx.obj
    if flow not in FLOWS:
        return []
    groups = kept_groups(flow)
    if groups is None:
        keep_soon(flow)
        return []
    name, equals, _ = incomplete.partition("=")
    told = {it.name: it.values for group in groups for it in group.parameters if "[]" not in it.name}
    told.setdefault("preset", ())
    if name in told:
        values = presets() if name == "preset" else told[name]
        return beginning((f"{name}={value}" for value in values), incomplete if equals else "") or [f"{name}="]
    return beginning((f"{it}=" for it in told), incomplete)


def presets() -> tuple[str, ...]:
    """The settings of papers."""
    return tuple(read_yaml(PRESETS))


def _local_artifacts() -> Path | None:
    root = artifacts_root()
    return None if "://" in root else Path(root).expanduser()


def folders(place: Path | None) -> Iterator[str]:
    """The names of a folder's folders that are not hidden."""
    if place is not None and place.is_dir():
        yield from sorted(it.name for it in place.iterdir() if it.is_dir() and it.name[0] not in "._")
