"""The name and the final state of a flow's runs, as the Prefect UI shows them."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow, State, flow
from prefect.states import Completed

from penumbra.artifacts.store import Store
from penumbra.tasks.progress import clean_console_log
from penumbra.tasks.stage import is_planned

PRICED = "nothing was sent or made: the report dry-run has the price of the questions"

P = ParamSpec("P")
T = TypeVar("T")
Outcome = tuple[T, str | None]  # the result of a flow, which has a `path`, and a line about it for the UI


def named_flow(name: str) -> Callable[[Callable[P, Outcome[T]]], Flow[P, T]]:
    """Return a decorator that makes a Prefect flow, whose runs have the name of the data set."""

    def decorate(function: Callable[P, Outcome[T]]) -> Flow[P, T]:
        @wraps(function)
        def hold_data_set(*arguments: P.args, **options: P.kwargs) -> State[T]:
            clean_console_log()  # also in the process that a worker of Prefect starts for a run
            dataset = signature(function).bind(*arguments, **options).arguments["dataset"]
            with nullcontext() if is_planned() else Store().use(dataset.name):  # keeps `artifacts rm` from it
                result, outcome = function(*arguments, **options)
            path = cast(Any, result).path
            return Completed(message=f"{outcome}. In {path}" if outcome else PRICED, data=result)

        return cast(Flow[P, T], flow(name=name, flow_run_name=f"{name} {{dataset.name}}")(hold_data_set))

    return decorate
