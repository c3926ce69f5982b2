"""The parameters of `filling`: the providers that fill the masks, the number of candidates, and the cost limit."""

from typing import Any, Literal

from pydantic import Field

from penumbra.artifacts.markdown import counted
from penumbra.tasks.negatives.providers import ProviderSettings
from penumbra.tasks.negatives.providers.settings import Corpus, Gemini, HostedSettings, Llama, OpenAI, Random
from penumbra.tasks.parameter_group import Parameters

FEW = 1_000  # training queries from which the local model, which reads more naturally, is too slow to be the default
ProviderName = Literal["openai", "gemini", "llama", "corpus", "random"]
PROVIDERS: dict[str, type[ProviderSettings]] = {
    settings.provider: settings for settings in (OpenAI, Gemini, Llama, Corpus, Random)
}


class Filling(Parameters):
    """The providers that fill the masks, the number of candidates, and the cost limit."""

    providers: list[ProviderName] = Field(
        [],
        description=f"Providers of the candidates; none: llama up to {counted(FEW - 1, 'training query')}, corpus "
        "for more. A text that two of them give counts for the first one. "
        + "; ".join(f"{settings.provider}: {settings.about}" for settings in PROVIDERS.values())
        + ".",
    )
    candidates: int = Field(
        16,
        ge=1,
        le=64,
        description="Candidates for each query and level from corpus and from random; llama gives six or fewer.",
    )
    asked_candidates: int = Field(
        1, ge=1, le=16, description="Candidates for each query and level from a hosted model."
    )
    seed: int = Field(0, description="The same seed gives the same fills, and the same words on offer, everywhere.")
    options: int = Field(6, ge=2, le=26, description="Words on offer to a hosted model for each slot.")
    vocabulary: Literal["open", "dictionary"] = Field(
        "open",
        description="Words that llama may take: of the dictionary and other English words, or of the dictionary alone, "
        "as in the paper.",
    )
    queries_a_request: int = Field(
        16, ge=1, le=100, description="Queries in one request to a hosted model; more are cheaper, fewer more accurate."
    )
    prompt: str = Field(
        "fill-slots-1", description="Prompt of the hosted models: a file of prompts/, without the suffix .txt."
    )
    substitute: bool = Field(
        True, description="Whether corpus fills what no hosted model answered; otherwise it is left out."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="The most that a run may spend on hosted models; answers already received are kept."
    )
    dry_run: bool = Field(False, description="Report what the hosted models would cost, send nothing, and stop.")
    openai: OpenAI = OpenAI()
    gemini: Gemini = Gemini()
    llama: Llama = Llama()

    def settings(self, provider: str) -> ProviderSettings:
        settings: ProviderSettings = getattr(self, provider, None) or PROVIDERS[provider]()
        return settings

    @property
    def hosted(self) -> list[HostedSettings]:
        settings = (self.settings(name) for name in PROVIDERS if name in self.providers)
        return [one for one in settings if isinstance(one, HostedSettings)]

    def candidates_of(self, provider: str) -> int:
        return self.candidates if self.settings(provider).free else self.asked_candidates

    def determines(self, provider: str) -> dict[str, Any]:
        settings = self.settings(provider)
        shared = {"provider": provider, "candidates": self.candidates_of(provider), "seed": self.seed}
        version = {"version": settings.version} if settings.version > 1 else {}
        return shared | version | settings.determines(self)
