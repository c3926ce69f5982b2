"""How a flow shows in the Prefect UI: what its runs are called, and the sentence that each ends with."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar, cast

from prefect import Flow, State, flow
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from penumbra.artifacts.errors import MissingError, PenumbraError
from penumbra.tasks.stage import logger

PRICED = "nothing was sent or made: the report dry-run tells what asking would cost"


class Made(Protocol):
    """What a flow makes."""

    @property
    def path(self) -> str:
        """Where it lies."""


P = ParamSpec("P")
T = TypeVar("T")
MadeT = TypeVar("MadeT", bound=Made)


def named_flow(name: str, called: Callable[..., str]) -> Callable[[Callable[P, State[T]]], Flow[P, T]]:
    """A Prefect flow of this name; `called` takes its parameters and says what such a run does.

    Where data are missing, a run that a schedule began is Cancelled, with a message that says what to fetch; a run that
    people began fails with the same words.
    """

    def decorate(function: Callable[P, State[T]]) -> Flow[P, T]:
        @wraps(function)
        def run(*arguments: P.args, **options: P.kwargs) -> State[T]:
            try:
                return function(*arguments, **options)
            except MissingError as error:
                if not _by_schedule():
                    raise
                logger().warning("cancelled: %s", error)
                return Cancelled(message=str(error))

        return cast(Flow[P, T], flow(name=name, flow_run_name=lambda: _name(name, called))(run))

    return decorate


def _name(flow_name: str, called: Callable[..., str]) -> str:
    parameters = flow_run.get_parameters()
    try:
        return called(**parameters)
    except PenumbraError:  # the flow itself is about to say what is wrong with them
        return f"{flow_name} {parameters['dataset'].name}"


def _by_schedule() -> bool:
    context = FlowRunContext.get()
    return bool(context and context.flow_run and context.flow_run.auto_scheduled)


def completed_state(made: MadeT, *outcomes: str | None) -> State[MadeT]:
    """What a flow returns: its caller gets what was made; the UI shows how it ended, and where that lies."""
    told = "; ".join(filter(None, outcomes))
    return Completed(message=f"{told}. In {made.path}" if told else PRICED, data=made)
