"""The door for providers: Penumbra's own and those of other packages come in by the same one.

A provider is a group of parameters that knows how to make it:

    class Echo(ProviderSettings):
        \"\"\"How Echo fills.\"\"\"

        provider: ClassVar[str] = "echo"
        about: ClassVar[str] = "the first word on offer"

        loud: bool = False  # what users set as filling.echo.loud

        def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
            return EchoProvider(training.dictionary, self.loud)

A package names such a class under the entry-point group `penumbra.providers`, so that every process finds it:

    [project.entry-points."penumbra.providers"]
    echo = "my_package:Echo"

A script may call `register(Echo)` instead, before it imports `penumbra.tasks.negatives.filling`; processes that the
script did not start don't know of it.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import Provider
from penumbra.tasks.stage import Parameters
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.relations import Tokens

GROUP = "penumbra.providers"
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class ProviderError(PenumbraError):
    """A provider can't be registered."""


class Shared(Protocol):
    """What users set for all providers together."""

    @property
    def seed(self) -> int: ...

    @property
    def options(self) -> int: ...  # words on offer to a language model, a slot

    @property
    def prompt(self) -> str: ...  # of the hosted models


@dataclass(frozen=True)
class TrainingText:
    """The training split as providers read it: its dictionary, and the tokens of its queries, to be read once."""

    dictionary: Dictionary
    tokens: Iterable[Tokens]

    def sentences(self) -> Iterator[list[str]]:
        """The queries' words, lower-cased."""
        return sentences(self.tokens)


def sentences(tokens: Iterable[Tokens]) -> Iterator[list[str]]:
    """The lower-cased words of tokenised queries."""
    return ([token["text"].lower() for token in query] for query in tokens)


class ProviderSettings(Parameters):
    """A provider's own parameters, `filling.NAME.…`, and how it is made; its name is what users type."""

    provider: ClassVar[str]
    about: ClassVar[str]  # what it is, in half a line
    free: ClassVar[bool] = False  # whether a candidate costs next to nothing, so that it gives many
    version: ClassVar[int] = 1  # raised by every change of what it fills, beside the stage's
    by_workers: ClassVar[bool] = True  # whether each of several workers, on any host, may make one
    on_device: ClassVar[bool] = False  # whether one takes a GPU, or all cores: of workers only a cluster's make one

    def determines(self, filling: Shared) -> dict[str, Any]:
        """What determines its fills, besides the masks, the dictionary, the seed and the number of candidates."""
        return {}

    @abstractmethod
    def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
        """The provider; `run` is the flow run that fills."""


class Registry:
    """Providers by name, in the order in which they came in."""

    def __init__(self) -> None:
        self._providers: dict[str, type[ProviderSettings]] = {}
        self._closed = False

    def register(self, settings: type[ProviderSettings]) -> type[ProviderSettings]:
        """Add a provider to those that `filling.providers` may name.

        Raises `ProviderError` for what is no provider, for a name that another one has, and when it is too late.
        """
        if not (isinstance(settings, type) and issubclass(settings, ProviderSettings)):
            raise ProviderError(f"{settings!r} is no provider: derive it from {ProviderSettings.__name__}")
        name = getattr(settings, "provider", "")
        if not NAME.match(name) or not getattr(settings, "about", ""):
            raise ProviderError(
                f"{_path(settings)}: give it `provider`, a name in lower case, and `about`, half a line"
            )
        other = self._providers.get(name, settings)
        if other is not settings:
            raise ProviderError(f"two providers are called {name!r}: {_path(other)} and {_path(settings)}")
        if self._closed and name not in self._providers:
            raise ProviderError(
                f"provider {name!r} comes too late: register it before penumbra.tasks.negatives.filling is imported, "
                f"or as an entry point of the group {GROUP}"
            )
        self._providers[name] = settings
        return settings

    def register_installed(self) -> None:
        """Register the providers of installed packages; raises `ProviderError` naming one that can't be imported."""
        for entry in sorted(entry_points(group=GROUP)):
            try:
                settings = entry.load()
            except Exception as error:  # whatever a module may raise when it is imported
                package = entry.dist.name if entry.dist else "its package"
                raise ProviderError(
                    f"provider {entry.name!r} of {package} can't be imported ({type(error).__name__}: {error}): "
                    f"mend or uninstall {package}"
                ) from error
            self.register(settings)

    def close(self) -> Mapping[str, type[ProviderSettings]]:
        """Let no more in, for the parameters are now made; returns all."""
        self._closed = True
        return MappingProxyType(self._providers)


_registry = Registry()
register, register_installed, close = _registry.register, _registry.register_installed, _registry.close


def _path(settings: type) -> str:
    return f"{settings.__module__}.{settings.__qualname__}"
