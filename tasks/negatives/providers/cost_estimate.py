"""What asking a service would take, before anything is sent."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from penumbra.tasks.negatives.providers.accounting import TokenEstimate
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.service import Service, ServiceSettings

SLOT_TOKENS = 6  # of an answer: quotes, label, colon, word, comma


@dataclass(frozen=True)
class CostEstimate:
    """Requests, tokens and money; `cost_usd` is None where no price is known."""

    provider: str
    model: str
    queries: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None

    def __str__(self) -> str:
        """One line for people."""
        cost = "at no known price" if self.cost_usd is None else f"${self.cost_usd:.2f}"
        return (
            f"{self.provider} ({self.model}): {self.queries:,} queries in {self.requests:,} requests, about "
            f"{self.prompt_tokens:,} + {self.completion_tokens:,} tokens, {cost}"
        )


def estimate_cost(
    service: Service,
    settings: ServiceSettings,
    blocks: Iterable[Sequence[Question]],
    answers: Answers,
    queries_a_request: int,
) -> CostEstimate:
    """Count what the cache does not know yet. Tokens are estimated from the requests' own characters."""
    questions = chain.from_iterable(blocks)
    unknown = [talk.next for q in questions if (talk := dialogue(q, service.cache_key, answers)).next]
    batches = [unknown[start : start + queries_a_request] for start in range(0, len(unknown), queries_a_request)]
    estimate = TokenEstimate()
    prompt = sum(estimate.prompt_tokens(len(json.dumps(service.payload(batch)))) for batch in batches)
    completion = sum(SLOT_TOKENS * len(question.open) + 2 for question in unknown)
    price = settings.known_price
    cost = price.cost(prompt, completion) * settings.discount if price else None
    return CostEstimate(service.name, settings.model, len(unknown), len(batches), prompt, completion, cost)
