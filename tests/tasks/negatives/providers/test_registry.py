"""The registry of providers: what it takes, what it refuses, and the parameters that are made from it."""

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from penumbra.tasks.negatives.filling import BUILT_IN, PROVIDERS, Filling
from penumbra.tasks.negatives.providers.registry import ProviderError, ProviderSettings, Registry
from tests.outside.echo_provider import Echo


class Other(Echo):
    """Another provider of the same name."""


class Nameless(ProviderSettings):
    """A provider without a name."""


class Shouting(Echo):
    """A provider whose name is no parameter's."""

    provider: ClassVar[str] = "Echo-2"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Other, "two providers are called 'echo'"),
        (Nameless, "Nameless: give it `provider`"),
        (Shouting, "Shouting: give it `provider`"),
        (dict, "is no provider"),
        (Echo(), "is no provider"),
    ],
)
def test_what_is_no_provider_is_refused(settings: Any, reason: str) -> None:
    registry = Registry()
    registry.register(Echo)
    registry.register(Echo)
    with pytest.raises(ProviderError, match=reason):
        registry.register(settings)
    assert dict(registry.close()) == {"echo": Echo}


def test_nothing_comes_in_once_the_parameters_are_made() -> None:
    registry = Registry()
    registry.close()
    with pytest.raises(ProviderError, match="too late"):
        registry.register(Echo)


def test_a_provider_has_a_group_where_it_has_parameters() -> None:
    groups = [name for name in Filling.model_fields if name in PROVIDERS]
    assert groups == ["openai", "gemini", "llama"]
    names = [settings.provider for settings in BUILT_IN]
    assert names[:5] == ["openai", "gemini", "llama", "corpus", "random"]
    with pytest.raises(ValidationError, match=r"corpus\n.*Extra inputs"):
        Filling.model_validate({"corpus": {}})
    with pytest.raises(ValidationError, match="'openai', 'gemini', 'llama', 'corpus'"):
        Filling(providers=["echo"])


def test_local_statistics_give_many_candidates_and_models_few() -> None:
    filling = Filling(candidates=9, asked_candidates=2)
    assert [filling.candidates_of(name) for name in PROVIDERS] == [2, 2, 2, 9, 9]
    assert filling.determines("corpus") == {"provider": "corpus", "candidates": 9, "seed": 0}
    assert filling.determines("gemini")["cache_key"]["service"] == "gemini"


def test_the_hosted_ones_are_those_among_the_providers() -> None:
    assert [settings.provider for settings in Filling(providers=["corpus", "gemini", "openai"]).hosted] == [
        "openai",
        "gemini",
    ]
    assert Filling().hosted == []
