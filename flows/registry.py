"""The flows by name, the names and final states of their runs, and the deployments of prefect.yaml.

A flow's module is imported only when the flow runs, because it imports Prefect, which takes seconds.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.locations import DEPLOYMENTS

if TYPE_CHECKING:
    from prefect import Flow, State

FLOWS = {
    "build-negatives": "build_negatives",
    "import-negatives": "import_negatives",
    "train-grounding": "train_grounding",
    "evaluate-grounding": "evaluate_grounding",
    "extract-features": "extract_features",
    "full-pipeline": "full_pipeline",
    "ablation": "ablation",
}  # each is a function in the module of the same name
PRICED = "nothing was sent or made; the report `dry-run` contains the price of the questions"

P = ParamSpec("P")
T = TypeVar("T")
Outcome = tuple[T, str | None]  # the result of a flow, which has a `path`, and a line about it for the UI


class ParameterError(PenumbraError):
    """A flow or parameter of this name does not exist, or a value does not fit the parameter."""


def named_flow(name: str) -> "Callable[[Callable[P, Outcome[T]]], Flow[P, T]]":
    """Return a decorator that makes a Prefect flow, whose runs have the name of the data set."""
    from prefect import flow
    from prefect.states import Completed

    from penumbra.artifacts.store import Store
    from penumbra.tasks.progress import clean_console_log
    from penumbra.tasks.stage import is_planned

    def decorate(function: Callable[P, Outcome[T]]) -> "Flow[P, T]":
        @wraps(function)
        def hold_data_set(*arguments: P.args, **options: P.kwargs) -> "State[T]":
            clean_console_log()  # also in the process that a worker of Prefect starts for a run
            dataset = signature(function).bind(*arguments, **options).arguments["dataset"]
            with nullcontext() if is_planned() else Store().use(dataset.name):  # `artifacts rm` then refuses
                result, outcome = function(*arguments, **options)
            message = f"{outcome}. In {cast(Any, result).path}" if outcome else PRICED
            return Completed(message=message, data=result)

        return cast("Flow[P, T]", flow(name=name, flow_run_name=f"{name} {{dataset.name}}")(hold_data_set))

    return decorate


def flow_of(name: str) -> "Flow[..., Any]":
    """Import and return the flow of this name; raise `ParameterError` if there is none."""
    if name not in FLOWS:
        raise ParameterError(f"no flow {name!r}; {what_there_is(name, list(FLOWS))}")
    flow: Flow[..., Any] = getattr(import_module(f"penumbra.flows.{FLOWS[name]}"), FLOWS[name])
    return flow


@cache
def prefect_yaml() -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    """Return the definitions of prefect.yaml by flow, and its deployments by flow and name; do not modify them."""
    import yaml

    text = DEPLOYMENTS.read_text(encoding="utf-8")
    content = yaml.load(text, yaml.CSafeLoader)  # ten times as fast as SafeLoader
    return content["definitions"], {(it["tags"][0], it["name"]): it for it in content["deployments"]}
