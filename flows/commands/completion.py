"""What a shell completes, without torch, Prefect, pandas or a network: flows, data sets, presets and parameters.

To complete the parameters of a flow, the flow is imported, which takes some seconds.
"""

from collections.abc import Iterable

import typer

from penumbra.artifacts.locations import PROJECT, data_folder
from penumbra.flows.registry import FLOWS, prefect_yaml, read_yaml

PRESETS = PROJECT / "tasks" / "grounding" / "training" / "presets.yaml"


def beginning_with(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with what is typed."""
    return [name for name in dict.fromkeys(names) if name.startswith(typed)]


def flows(incomplete: str) -> list[str]:
    """Return names of flows."""
    return beginning_with(incomplete, FLOWS)


def data_sets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of data sets, and for `penumbra run FLOW` those of the flow's deployments."""
    deployed = [it["name"] for it in prefect_yaml()["deployments"] if ctx.obj is None or ctx.obj in it["tags"]]
    folders = data_folder().iterdir() if data_folder().is_dir() else ()
    own = sorted(folder.name for folder in folders if folder.is_dir() and folder.name[0] not in "._")
    return beginning_with(incomplete, [*(deployed if ctx.command.name == "run" else ["scenes"]), *own])


def parameters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return NAME= for each parameter of the flow, or the presets after preset=."""
    if ctx.obj not in FLOWS:
        return []
    if incomplete.startswith("preset="):
        return beginning_with(incomplete, (f"preset={name}" for name in read_yaml(PRESETS)))
    from penumbra.flows.parameters import parameters_of
    from penumbra.flows.registry import flow_of

    known = [it.path for it in parameters_of(flow_of(ctx.obj)) if not it.is_group and "[]" not in it.path]
    return beginning_with(incomplete, (f"{path}=" for path in known))
