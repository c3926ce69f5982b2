"""The one place where a plain formulation hands over to the form of it that is faster on a CPU."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")
CPUForm = Callable[..., Tensor | None]


def on_cpu(form: CPUForm) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Decorate a plain formulation, whose first argument is a tensor: `form` takes the same and computes the same.

    It is called for tensors of a CPU, unless a compiler traces them, which makes the plain one fast by itself. Where
    it returns None it would be no faster, and the plain one is called.
    """

    def decorate(plain: Callable[P, Tensor]) -> Callable[P, Tensor]:
        @wraps(plain)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            result = form(*args, **kwargs) if _is_eager_on_cpu(args[0]) else None
            return plain(*args, **kwargs) if result is None else result

        return dispatch

    return decorate


def _is_eager_on_cpu(values: object) -> bool:
    return isinstance(values, Tensor) and values.device.type == "cpu" and not torch.compiler.is_compiling()
