"""The parameters of filling: who fills the masks, how often, what it may cost, and each provider's own.

To add a provider to Penumbra is to add its file to `providers/` and its class to `BUILT_IN`; another package's comes in
as an entry point (`penumbra.tasks.negatives.providers.registry`).
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from penumbra.tasks.negatives.providers.corpus import Corpus
from penumbra.tasks.negatives.providers.gemini import Gemini
from penumbra.tasks.negatives.providers.hosted import Hosted
from penumbra.tasks.negatives.providers.llama import Llama
from penumbra.tasks.negatives.providers.openai import OpenAI
from penumbra.tasks.negatives.providers.random import Random
from penumbra.tasks.negatives.providers.registry import (
    ProviderError,
    ProviderSettings,
    close,
    register,
    register_installed,
)
from penumbra.tasks.stage import Parameters

BUILT_IN: tuple[type[ProviderSettings], ...] = (OpenAI, Gemini, Llama, Corpus, Random)

for _built_in in BUILT_IN:
    register(_built_in)
register_installed()
PROVIDERS = close()

if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(PROVIDERS)]


class _Filling(Parameters):
    """Who fills the masks, how often, and what it may cost."""

    providers: list[Name] = Field(
        ["corpus"],
        min_length=1,
        description="Whose candidates are chosen from; where two give the same text, it is the first one's. "
        + "; ".join(f"{name}: {settings.about}" for name, settings in PROVIDERS.items())
        + ".",
    )
    candidates: int = Field(16, ge=1, le=64, description="Candidates a query and level from corpus and random.")
    asked_candidates: int = Field(1, ge=1, le=16, description="Candidates a query and level from a language model.")
    seed: int = Field(0, description="The same seed gives the same fills, and the same words on offer, everywhere.")
    options: int = Field(6, ge=2, le=26, description="Words that a language model may choose from, for a slot.")
    queries_a_request: int = Field(
        16,
        ge=1,
        le=100,
        description="Queries in one request to a hosted model: more are cheaper, fewer are better read.",
    )
    prompt: str = Field("fill-slots-1", description="Prompt of the hosted models: a file of prompts/, without .txt.")
    substitute: bool = Field(
        True, description="Whether corpus fills what no provider filled; otherwise it is left out."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="What a run may spend on hosted models; the answers that it got are kept."
    )
    dry_run: bool = Field(False, description="Say what the hosted models would cost, send nothing, and stop.")

    def settings(self, provider: str) -> ProviderSettings:
        """A provider's own parameters."""
        own = PROVIDERS[provider]
        settings: ProviderSettings = getattr(self, provider) if own.model_fields else own()
        return settings

    @property
    def hosted(self) -> list[Hosted]:
        """The settings of the hosted models among the providers."""
        several = (self.settings(name) for name in PROVIDERS if name in self.providers)
        return [settings for settings in several if isinstance(settings, Hosted)]

    def candidates_of(self, provider: str) -> int:
        """How many candidates a provider gives."""
        return self.candidates if PROVIDERS[provider].free else self.asked_candidates

    def determines(self, provider: str) -> dict[str, Any]:
        """The parameters that determine a provider's fills."""
        settings = self.settings(provider)
        shared = {"provider": provider, "candidates": self.candidates_of(provider), "seed": self.seed}
        version = {"version": settings.version} if settings.version > 1 else {}
        return shared | version | settings.determines(self)


def _groups() -> dict[str, Any]:
    """A field for each provider that has parameters of its own."""
    taken = [name for name in PROVIDERS if hasattr(_Filling, name) or name in _Filling.model_fields]
    if taken:
        raise ProviderError(f"no provider can be called {taken[0]!r}: filling.{taken[0]} is something else")
    return {name: (settings, settings()) for name, settings in PROVIDERS.items() if settings.model_fields}


if TYPE_CHECKING:

    class Filling(_Filling):
        """With a field for each provider that has parameters of its own."""

        def __getattr__(self, name: str) -> Any: ...
else:
    Filling = create_model("Filling", __base__=_Filling, __module__=__name__, __doc__=_Filling.__doc__, **_groups())
