"""The names of the flows and of their deployments, and the module of each flow, which is imported when it runs."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.locations import DEPLOYMENTS

if TYPE_CHECKING:
    from prefect import Flow

FLOWS = {
    "build-negatives": "build_negatives",
    "import-negatives": "import_negatives",
    "train-grounding": "train_grounding",
    "evaluate-grounding": "evaluate_grounding",
    "extract-features": "extract_features",
    "full-pipeline": "full_pipeline",
    "ablation": "ablation",
}  # each is a function in the module of the same name


class ParameterError(PenumbraError):
    """A flow or parameter of this name does not exist, or a value does not fit the parameter."""


def flow_of(name: str) -> "Flow[..., Any]":
    """Import and return the flow of this name; raise `ParameterError` if there is none."""
    if name not in FLOWS:
        raise ParameterError(f"no flow {name!r}; {what_there_is(name, list(FLOWS))}")
    flow: Flow[..., Any] = getattr(import_module(f"penumbra.flows.{FLOWS[name]}"), FLOWS[name])
    return flow


@cache
def prefect_yaml() -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    """Return the definitions of prefect.yaml by flow, and its deployments by flow and name; callers change neither."""
    import yaml

    text = DEPLOYMENTS.read_text(encoding="utf-8")
    content = yaml.load(text, yaml.CSafeLoader)  # ten times as fast as SafeLoader
    return content["definitions"], {(it["tags"][0], it["name"]): it for it in content["deployments"]}
