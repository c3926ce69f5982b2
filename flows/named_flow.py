"""The name and the final state of a flow's runs, as the Prefect UI shows them."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar, cast

from prefect import Flow, State, flow
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from penumbra.artifacts.errors import MissingError, PenumbraError
from penumbra.tasks.stage import logger

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
    """Return a decorator that makes a Prefect flow; `run_name` makes the name of a run from the flow's parameters.

    If data are missing, a run that a schedule started is Cancelled, with a message that says what to fetch. A run that
    a person started fails with the same message.
    """

    def decorate(function: Callable[P, State[T]]) -> Flow[P, T]:
        @wraps(function)
        def run(*arguments: P.args, **options: P.kwargs) -> State[T]:
            try:
                return function(*arguments, **options)
            except MissingError as error:
                context = FlowRunContext.get()
                if not (context and context.flow_run and context.flow_run.auto_scheduled):
                    raise
                logger().warning("cancelled: %s", error)
                return Cancelled(message=str(error))

        def name_of_run() -> str:
            parameters = flow_run.get_parameters()
            try:
                return run_name(**parameters)
            except PenumbraError:  # the flow itself is about to raise it
                return f"{name} {parameters['dataset'].name}"

        return cast(Flow[P, T], flow(name=name, flow_run_name=name_of_run)(run))

    return decorate


def completed_state(result: ResultT, *outcomes: str | None) -> State[ResultT]:
    """Return the final state of a flow: its result, and a message with outcomes and folder for the UI."""
    message = "; ".join(filter(None, outcomes))
    return Completed(message=f"{message}. In {result.path}" if message else PRICED, data=result)
