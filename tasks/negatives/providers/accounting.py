"""What asking has come to so far, and what a request may take before it is answered."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from penumbra.tasks.negatives.providers.prices import Price
from penumbra.tasks.negatives.providers.service import Reply

CHARACTERS_A_TOKEN = 3.6  # of such prompts, to begin with; the answers' own counts correct it
MARGIN = 1.25  # by which the estimate may be too low when money is set aside


@dataclass
class Statistics:
    """What asking has come to so far."""

    total: int
    done: int = 0  # questions that are answered or given up
    requests: int = 0  # answered
    sent: int = 0  # including those that were lost
    in_flight: int = 0
    retries: int = 0
    limited: int = 0
    asked_again: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    lost_usd: float = 0.0  # what lost answers can have cost at most
    waits: str = ""  # how long and for whom, while nothing is sent
    seconds: list[float] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    at_start: int = 0  # questions that the cache had answered

    def book(self, reply: Reply, cost: float, seconds: float | None) -> None:
        """Count an answer, and its latency where it has one."""
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cost_usd += cost
        self.seconds += [] if seconds is None else [seconds]
        self.models[reply.model] += 1

    def latency(self, share: float) -> float:
        """The latency in seconds that this share of the answers stayed below."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def left(self) -> float | None:
        """Seconds that the rest will take at the rate so far, or None before there is one."""
        asked = self.done - self.at_start
        return (time.monotonic() - self.started) / asked * (self.total - self.done) if asked > 0 else None

    def lost(self) -> str:
        """What lost answers can have cost, for people; nothing where none is lost."""
        return f" and up to ${self.lost_usd:.4f} for lost answers" if self.lost_usd else ""

    def line(self, name: str) -> str:
        """Where it stands, for people."""
        left = self.left()
        eta = "" if left is None else f", about {left:,.0f} s left"
        return (
            f"{name}: {self.done:,} of {self.total:,} queries, {self.in_flight} requests in flight, "
            f"{self.requests:,} answered, {self.prompt_tokens + self.completion_tokens:,} tokens, "
            f"${self.cost_usd:.4f}{self.lost()}{eta}{self.waits and f', {self.waits}'}"
        )


class TokenEstimate:
    """Tokens of a prompt from its characters; the services' own counts make it better as they come in."""

    def __init__(self) -> None:
        self.characters, self.tokens = CHARACTERS_A_TOKEN, 1.0

    def prompt_tokens(self, characters: int) -> int:
        return int(characters * self.tokens / self.characters) + 1

    def learn(self, characters: int, tokens: int) -> None:
        """Take an answer's own count into account."""
        if tokens:
            self.characters += characters
            self.tokens += tokens


def most_tokens(payload: dict[str, Any]) -> int:
    """How many tokens an answer may have at most, as the request says."""
    form = payload.get("generation_config", payload)
    return int(form.get("max_tokens") or form.get("max_completion_tokens") or form.get("max_output_tokens") or 0)


def most_cost(payload: dict[str, Any], characters: int, estimate: TokenEstimate, price: Price | None) -> float:
    """What a request of so many characters can cost at most, in USD; nothing where no price is known.

    Answers that count few tokens make it no lower: a service that counts none must not make the next request free.
    """
    prompt = max(estimate.prompt_tokens(characters), characters / CHARACTERS_A_TOKEN) * MARGIN
    return price.cost(int(prompt), most_tokens(payload)) if price else 0.0
