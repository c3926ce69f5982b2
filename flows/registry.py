"""The names of the flows and of their deployments, and the module of each flow, which is imported when it runs."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import DEPLOYMENTS

if TYPE_CHECKING:
    from prefect import Flow

FLOWS = {
    "build-negatives": ("penumbra.flows.build_negatives", "build_negatives"),
    "import-negatives": ("penumbra.flows.import_negatives", "import_negatives"),
    "train-grounding": ("penumbra.flows.train_grounding", "train_grounding"),
    "evaluate-grounding": ("penumbra.flows.evaluate_grounding", "evaluate_grounding"),
    "extract-features": ("penumbra.flows.extract_features", "extract_features"),
    "full-pipeline": ("penumbra.flows.full_pipeline", "full_pipeline"),
    "ablation": ("penumbra.flows.ablation", "ablation"),
}


@cache
def prefect_yaml() -> dict[str, Any]:
    """What prefect.yaml says; nobody writes into it."""
    return read_yaml(DEPLOYMENTS)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file of our own."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return dict(yaml.load(file.read_text(encoding="utf-8"), loader))  # noqa: S506 (it is safe)


class ParameterError(PenumbraError):
    """A flow or parameter of this name does not exist, or a value does not fit the parameter."""


def deployments() -> list[dict[str, Any]]:
    """The deployments of prefect.yaml."""
    return list(prefect_yaml()["deployments"])


def flow_of(name: str) -> "Flow[..., Any]":
    """The flow of this name, imported only now; raises `ParameterError` naming an unknown one."""
    if name not in FLOWS:
        raise ParameterError(f"no flow {name!r}; there is: {', '.join(FLOWS)}")
    module, function = FLOWS[name]
    flow: Flow[..., Any] = getattr(import_module(module), function)
    return flow
