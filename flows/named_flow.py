"""The name and the final state of a flow's runs, as the Prefect UI shows them."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, Protocol, TypeVar, cast

from prefect import Flow, State, flow
from prefect.runtime import flow_run
from prefect.states import Completed

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.stage import data_set_in_use

PRICED = "nothing was sent or made: the report dry-run has the price of the questions"


class HasPath(Protocol):
    """The result of a flow."""

    @property
    def path(self) -> str:
        """Folder of the artifact."""


P = ParamSpec("P")
T = TypeVar("T")
ResultT = TypeVar("ResultT", bound=HasPath)


def named_flow(name: str, run_name: Callable[..., str]) -> Callable[[Callable[P, State[T]]], Flow[P, T]]:
    """Return a decorator that makes a Prefect flow; `run_name` makes the name of a run from the flow's parameters."""

    def name_of_run() -> str:
        parameters = flow_run.get_parameters()
        try:
            return run_name(**parameters)
        except PenumbraError:  # the flow itself is about to raise it
            return f"{name} {parameters['dataset'].name}"

    def decorate(function: Callable[P, State[T]]) -> Flow[P, T]:
        @wraps(function)
        def hold_data_set(*arguments: P.args, **options: P.kwargs) -> State[T]:
            dataset = signature(function).bind(*arguments, **options).arguments["dataset"]
            with data_set_in_use(dataset.name):
                return function(*arguments, **options)

        return cast(Flow[P, T], flow(name=name, flow_run_name=name_of_run)(hold_data_set))

    return decorate


def completed_state(result: ResultT, *outcomes: str | None) -> State[ResultT]:
    """Return the final state of a flow: its result, and a message with outcomes and folder for the UI."""
    message = "; ".join(filter(None, outcomes))
    return Completed(message=f"{message}. In {result.path}" if message else PRICED, data=result)
