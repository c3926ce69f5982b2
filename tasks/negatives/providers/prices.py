"""What tokens cost: a dated table that a parameter overrides, and the budget of a run.

Token counts are the services' own and are the truth; money is computed from them.
"""

import asyncio
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from penumbra.artifacts.errors import PenumbraError

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


class BudgetError(PenumbraError):
    """The next request could cost more than is left of `max_cost_usd`."""


@dataclass
class Budget:
    """What a run may spend over all its services, in USD; what a request may cost at most is set aside beforehand."""

    limit: float | None
    spent: float = 0.0
    set_aside: float = 0.0
    holders: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def reserve(self, most: float) -> bool:
        """Set an amount aside; False where it would go beyond the limit."""
        if self.limit is not None and self.spent + self.set_aside + most > self.limit:
            return False
        self.set_aside += most
        self.holders += 1
        return True

    async def wait_and_reserve(self, most: float) -> bool:
        """As `reserve`, but waits for requests under way: most give back some of what they have set aside."""
        while not self.reserve(most):
            if not self.holders:
                return False
            self.released.clear()
            await self.released.wait()
        return True

    def charge(self, most: float, cost: float) -> None:
        """Give a reserved amount back and book what the request did cost."""
        self.set_aside -= most
        self.spent += cost
        self.holders -= 1
        self.released.set()
