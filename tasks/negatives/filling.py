"""The parameters of `filling`: which providers fill the masks, how often, what that may cost, and each provider's own.

A provider of Penumbra is a class here, which imports its implementation when it is made. A provider of another package
is found by its entry point (see `penumbra.tasks.negatives.providers`), and its parameters are in `plugins`.
"""

import os
from abc import abstractmethod
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import Provider, ProviderSettings, SharedSettings, TrainingText
from penumbra.tasks.parameter_group import Parameters

if TYPE_CHECKING:
    from penumbra.tasks.negatives.providers.hosted import Service
    from penumbra.tasks.negatives.providers.questions import Prompt

GROUP = "penumbra.providers"  # of entry points
JSON_MODE_ONLY = ("gpt-3.5", "gpt-4-")  # models whose names begin so know JSON mode but no schema


class Corpus(ProviderSettings):
    """Provider corpus has no parameters of its own."""

    provider: ClassVar[str] = "corpus"
    about: ClassVar[str] = "the training text's own statistics, no key and no network"
    free: ClassVar[bool] = True

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        """Return the provider, fitted to the training split."""
        from penumbra.tasks.negatives.providers.corpus import CorpusProvider

        return CorpusProvider(training.tokens, training.dictionary, filling.seed)


class Random(ProviderSettings):
    """Provider random has no parameters of its own."""

    provider: ClassVar[str] = "random"
    about: ClassVar[str] = "any offered word, the paper's baseline"
    free: ClassVar[bool] = True

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        """Return the provider, which draws from the dictionary."""
        from penumbra.tasks.negatives.providers.random import RandomProvider

        return RandomProvider(training.dictionary, filling.seed)


class Llama(ProviderSettings):
    """The local model of provider llama."""

    provider: ClassVar[str] = "llama"
    about: ClassVar[str] = "local weights"
    on_device: ClassVar[bool] = True

    model: str = Field(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        min_length=1,
        description="A causal language model: a name on the hub or a folder, with safetensors weights.",
    )
    temperature: float = Field(
        1.0, ge=0, description="0 takes the likeliest word of a list; 1 draws each as often as the model expects it."
    )
    prompt: str = Field(
        "sentence-1", description="The text before each sentence: a file of prompts/, without the suffix .txt."
    )
    device: str = Field("auto", description="The device of the model: auto takes a GPU if there is one, else the CPU.")

    def determines(self, filling: SharedSettings) -> dict[str, Any]:
        """Return the number of words on offer, the weights, the prompt and how words are drawn."""
        from penumbra.artifacts.digests import file_digest
        from penumbra.tasks.negatives.providers.questions import load_prompt

        folder = Path(self.model)
        weights = f"sha256 {file_digest(folder)}" if folder.is_dir() else self.model
        prompt = load_prompt(self.prompt, "sentence").label
        drawn = {"temperature": self.temperature, "dtype": "auto"}
        return {"options": filling.options, "weights": weights, **drawn, "prompt": prompt}

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        """Return the provider with the model loaded."""
        from penumbra.tasks.negatives.providers.llama import LlamaProvider
        from penumbra.tasks.negatives.providers.questions import WordLists, load_prompt

        lists = WordLists.of(training, filling)
        return LlamaProvider(lists, self.model, self.device, load_prompt(self.prompt, "sentence"), self.temperature)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Price:
    """The price of a model in USD per million tokens; without `cached_input`, cached input costs as much as other."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached_input: Annotated[float | None, Field(ge=0)] = None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost of these tokens in USD; `cached_tokens` are among `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        uncached = prompt_tokens - cached_tokens
        return (uncached * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


def plain_address(url: str | None) -> str | None:
    """Return the address without a final slash; raise `ValueError` if it is no address or contains a key."""
    parts = urlsplit(url or "http://unset")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("no http(s) address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("more than an address: a key belongs in the environment or in a Secret block")
    return url.rstrip("/") if url else url


class HostedSettings(ProviderSettings):
    """The parameters that all hosted language models have."""

    by_workers: ClassVar[bool] = False  # the answers are on the disk of the run
    address_variable: ClassVar[str]
    key_variable: ClassVar[str]

    model: str
    key_block: str
    base_url: Annotated[str | None, AfterValidator(plain_address)] = Field(
        None, description="Address of the service if it is not the public one: a gateway, vLLM, Ollama, …"
    )
    temperature: float | None = Field(
        None, ge=0, le=2, description="Sampling temperature; none: the service's default."
    )
    requests_a_minute: float | None = Field(
        None, gt=0, description="Rate limit; none: requests pause when the service says so (429, Retry-After)."
    )
    price: Price | None = Field(
        None,
        description="USD per million tokens as {input: …, output: …, cached_input: …}, instead of the project's table.",
    )

    @property
    def address(self) -> str | None:
        """Address of the service, None for the public one; raises `PenumbraError` if the environment's is invalid."""
        try:
            return self.base_url or plain_address(os.environ.get(self.address_variable) or None)
        except ValueError as error:
            raise PenumbraError(f"{self.address_variable}: {error}") from None

    @property
    def discount(self) -> float:
        """The share of the price that is paid."""
        return 1.0

    @abstractmethod
    def service(self, prompt: "Prompt") -> "Service":
        """Return a client of the service."""

    def cache_key(self, prompt: str) -> dict[str, Any]:
        """Return what determines an answer besides the question's text; it contains no API key."""
        return {
            "service": self.provider,
            "address": self.address,
            "model": self.model,
            "prompt": prompt,
            "temperature": self.temperature,
            "extra": {},
        }

    def determines(self, filling: SharedSettings) -> dict[str, Any]:
        """Return the number of words on offer, and what determines an answer."""
        from penumbra.tasks.negatives.providers.questions import load_prompt

        return {"options": filling.options, "cache_key": self.cache_key(load_prompt(filling.prompt, "queries").label)}

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        """Return the provider, which reads the answers from the cache."""
        from penumbra.tasks.negatives.providers.answers import Answers
        from penumbra.tasks.negatives.providers.hosted import HostedProvider
        from penumbra.tasks.negatives.providers.questions import WordLists, load_prompt

        prompt, lists = load_prompt(filling.prompt, "queries").label, WordLists.of(training, filling)
        answers = lists.answers or Answers()
        return HostedProvider(self.provider, self.model, prompt, self.cache_key(prompt), lists, answers, run)


class OpenAI(HostedSettings):
    """The parameters of OpenAI, or of a server that speaks its protocol."""

    provider: ClassVar[str] = "openai"
    about: ClassVar[str] = "OpenAI's models, or a server that speaks its protocol, over the network"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"

    model: str = Field("gpt-5.6-luna", description="The model's name at the service, such as gpt-3.5-turbo.")
    key_block: str = Field(
        "openai-api-key", description="Prefect Secret block with the API key, used if OPENAI_API_KEY is not set."
    )
    mode: Literal["live", "batch"] = Field(
        "live", description="batch: the Batch API, half the price, answers within a day; run again to collect them."
    )

    @property
    def structure(self) -> str:
        """The response format: json_schema, or json_object for old models."""
        is_old = self.model == "gpt-4" or self.model.startswith(JSON_MODE_ONLY)
        return "json_object" if is_old else "json_schema"

    @property
    def discount(self) -> float:
        """The share of the price that is paid: half of it in a batch job."""
        return 0.5 if self.mode == "batch" else 1.0

    def service(self, prompt: "Prompt") -> "Service":
        """Return a client of the service."""
        from penumbra.tasks.negatives.providers.openai import OpenAIService

        return OpenAIService(self, prompt)

    def cache_key(self, prompt: str) -> dict[str, Any]:
        """Return what determines an answer besides the question's text; it contains no API key."""
        return {**super().cache_key(prompt), "structure": self.structure}


class Gemini(HostedSettings):
    """The parameters of Google's Gemini."""

    provider: ClassVar[str] = "gemini"
    about: ClassVar[str] = "Google's Gemini, over the network"
    address_variable: ClassVar[str] = "GEMINI_BASE_URL"
    key_variable: ClassVar[str] = "GEMINI_API_KEY"

    model: str = Field("gemini-3.1-flash-lite", description="The model's name at the service.")
    key_block: str = Field(
        "gemini-api-key", description="Prefect Secret block with the API key, used if GEMINI_API_KEY is not set."
    )

    def service(self, prompt: "Prompt") -> "Service":
        """Return a client of the service."""
        from penumbra.tasks.negatives.providers.gemini import GeminiService

        return GeminiService(self, prompt)


# -- all providers ----------------------------------------------------------------------------------------------------

BUILT_IN: tuple[type[ProviderSettings], ...] = (OpenAI, Gemini, Llama, Corpus, Random)
PROVIDERS: dict[str, type[ProviderSettings] | EntryPoint] = {
    **{entry.name: entry for entry in entry_points(group=GROUP)},
    **{settings.provider: settings for settings in BUILT_IN},
}


def provider_class(name: str) -> type[ProviderSettings]:
    """Return the parameters' class of a provider.

    Raises `PenumbraError` if the provider is unknown, or if another package's cannot be imported or is no provider.
    """
    entry = PROVIDERS.get(name)
    if entry is None:
        raise PenumbraError(f"no provider {name!r}: there are {', '.join(PROVIDERS)}")
    if isinstance(entry, EntryPoint):
        package = entry.dist.name if entry.dist else "its package"
        try:
            settings = entry.load()
        except Exception as error:  # whatever a module may raise when it is imported
            raise PenumbraError(
                f"provider {name!r} of {package} cannot be imported ({type(error).__name__}: {error}): "
                f"repair or uninstall {package}"
            ) from error
        if not (isinstance(settings, type) and issubclass(settings, ProviderSettings)):
            raise PenumbraError(f"provider {name!r} of {package} is no subclass of ProviderSettings")
        entry = PROVIDERS[name] = settings
    return entry


def _known(name: str) -> str:
    if name not in PROVIDERS:
        raise ValueError(f"no provider {name!r}: there are {', '.join(PROVIDERS)}")
    return name


ProviderName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(PROVIDERS)})]


class Filling(Parameters):
    """Which providers fill the masks, how often, and what that may cost."""

    providers: list[ProviderName] = Field(
        ["corpus"],
        min_length=1,
        description="Providers whose candidates are chosen from; a text that two of them give is the first one's. "
        + "; ".join(f"{settings.provider}: {settings.about}" for settings in BUILT_IN)
        + ".",
    )
    candidates: int = Field(
        16, ge=1, le=64, description="Candidates for each query and level from corpus and from random."
    )
    asked_candidates: int = Field(
        1, ge=1, le=16, description="Candidates for each query and level from a language model."
    )
    seed: int = Field(0, description="The same seed gives the same fills, and the same words on offer, everywhere.")
    options: int = Field(6, ge=2, le=26, description="Words on offer to a language model for each slot.")
    queries_a_request: int = Field(
        16, ge=1, le=100, description="Queries in one request to a hosted model; more are cheaper, fewer more accurate."
    )
    prompt: str = Field(
        "fill-slots-1", description="Prompt of the hosted models: a file of prompts/, without the suffix .txt."
    )
    substitute: bool = Field(
        True, description="Whether corpus fills what no provider filled; otherwise it is left out."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="The most that a run may spend on hosted models; answers that it received are kept."
    )
    dry_run: bool = Field(False, description="Report what the hosted models would cost, send nothing, and stop.")
    openai: OpenAI = OpenAI()
    gemini: Gemini = Gemini()
    llama: Llama = Llama()
    plugins: dict[str, dict[str, Any]] = Field(
        {}, description="Parameters of other packages' providers by the provider's name, such as {echo: {place: 1}}."
    )

    @model_validator(mode="after")
    def _plugins_are_valid(self) -> "Filling":
        for name, values in self.plugins.items():
            try:
                provider_class(name)(**values)
            except PenumbraError as error:
                raise ValueError(str(error)) from None
        return self

    def settings(self, provider: str) -> ProviderSettings:
        """Return a provider's own parameters."""
        settings = getattr(self, provider, None)
        if isinstance(settings, ProviderSettings):
            return settings
        return provider_class(provider)(**self.plugins.get(provider, {}))

    @property
    def hosted(self) -> list[HostedSettings]:
        """The parameters of the hosted models among the providers."""
        settings = (self.settings(name) for name in PROVIDERS if name in self.providers)
        return [one for one in settings if isinstance(one, HostedSettings)]

    def candidates_of(self, provider: str) -> int:
        """Return how many candidates a provider gives."""
        return self.candidates if self.settings(provider).free else self.asked_candidates

    def determines(self, provider: str) -> dict[str, Any]:
        """Return the parameters that determine a provider's fills."""
        settings = self.settings(provider)
        shared = {"provider": provider, "candidates": self.candidates_of(provider), "seed": self.seed}
        version = {"version": settings.version} if settings.version > 1 else {}
        return shared | version | settings.determines(self)
