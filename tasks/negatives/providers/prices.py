"""What tokens cost: a dated table that a parameter overrides.

Token counts are the services' own and are the truth; money is computed from them.
"""

import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

TABLE = Path(__file__).with_name("prices.yaml")


class Price(BaseModel):
    """USD a million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(None, ge=0, description="Input that the service's prompt cache already held.")

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """USD for these tokens; `cached_tokens` are some of `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


@cache
def table() -> tuple[str, dict[str, Price]]:
    """The date of the project's prices, and the prices by model."""
    content = yaml.safe_load(TABLE.read_text())
    return str(content["date"]), {name: Price(**price) for name, price in content["models"].items()}


def price_of(model: str) -> Price | None:
    """A model's price; a dated snapshot ("gpt-4o-2024-08-06") costs what the longest name that begins it does."""
    prices = table()[1]
    names = [name for name in prices if re.fullmatch(rf"{re.escape(name)}(-\d[-\d]*)?", model)]
    return prices[max(names, key=len)] if names else None
