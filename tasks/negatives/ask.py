"""Ask the hosted language models every question that `fills` needs an answer to; the answers are stored in the cache.

All models are asked at once in one event loop, with one budget. A question with an answer in the cache is not asked
again, so the task can be killed and repeated at any time.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.fills import Fills, masked_queries, run_id, training_tokens
from penumbra.tasks.negatives.providers import TrainingText, load_prompt
from penumbra.tasks.negatives.providers.answers import Answers, Budget, BudgetError, open_budget
from penumbra.tasks.negatives.providers.client import OVER_BUDGET, Client, all_of
from penumbra.tasks.negatives.providers.hosted import SERVICES, ServiceError
from penumbra.tasks.negatives.providers.questions import Question, WordLists, questions_of
from penumbra.tasks.negatives.providers.settings import Filling, price_table
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import NotYetError, is_planned, side_effect_task, zip_parts
from penumbra.tasks.text.dictionary import load_dictionary

REPORT_EVERY = 5.0  # seconds between two lines of progress


def send(clients: Sequence[Client], answers: Answers, filling: Filling) -> None:
    """Ask all services at once; first raise `PenumbraError` if a key, or a price for the budget, is missing."""
    for service in (client.service for client in clients):
        service.authenticate()
        if filling.max_cost_usd is not None and service.price is None:
            raise BudgetError(
                f"max_cost_usd cannot be kept: no price is known for {service.settings.model}; give "
                f"--param 'filling.{service.name}.price={{input: …, output: …}}', USD per million tokens"
            )

    async def ask_and_report(budget: Budget, run: str) -> None:
        asking = asyncio.ensure_future(all_of(client.ask(budget, run) for client in clients))
        while (await asyncio.wait([asking], timeout=REPORT_EVERY))[1]:  # as long as it is pending
            for client in clients:
                logger().info(client.line())
        await asking

    with open_budget(answers, filling.max_cost_usd) as budget:
        asyncio.run(ask_and_report(budget, run_id()))
    for client in clients:
        logger().info(client.line())


def check(clients: Sequence[Client], filling: Filling) -> None:
    """Log warnings; raise `BudgetError` if the budget is spent, `ServiceError` if no provider of the run answered."""
    for client in clients:
        for line in client.warnings():
            logger().warning("%s: %s", client.service.name, line)
    if any(client.stopped == OVER_BUDGET for client in clients):
        raise BudgetError(
            f"max_cost_usd ${filling.max_cost_usd} is reached, {' and '.join(client.cost() for client in clients)} "
            f"are spent ({', '.join(client.progress() for client in clients)}); concurrent and killed runs share the "
            "limit. All answers are kept: to continue, run again with the same or a higher --param filling.max_cost_usd"
        )
    failed = [client for client in clients if client.stopped and not client.requests and client.done < client.total]
    if failed and len(failed) == len(filling.providers):
        reasons = "; ".join(f"{client.service.name}: {client.stopped}" for client in failed)
        raise ServiceError(f"no provider answered ({reasons}): check key, address and model, and run again", "stop")


@side_effect_task("ask")
def ask_all(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str]:
    """Ask all hosted models whose fills are not made yet; return the digest of each model's open questions, if any."""
    stages = [Fills(annotations, tags, masks, dictionary, it.provider, filling) for it in filling.hosted]
    missing = [stage.provider for stage in stages if not Store().intact(stage.artifact)]
    if not missing and not filling.dry_run:
        return {}
    training = TrainingText(load_dictionary(dictionary), training_tokens(zip_parts(annotations, tags)))
    lists, prompt = WordLists(training, filling, Answers()), load_prompt(filling.prompt, "queries")

    def blocks() -> Iterator[list[Question]]:
        for tables in zip_parts(tags, masks):
            if block := questions_of(lists, masked_queries(*tables), filling.asked_candidates):
                yield block

    queries = (query for tables in zip_parts(tags, masks) for query in masked_queries(*tables))
    total = filling.asked_candidates * sum(len(query.chains()) for query in queries)
    services = [SERVICES[it.provider](it, prompt) for it in filling.hosted if it.provider in missing]
    clients = [Client(it, lists.answers, blocks, filling.queries_a_request, total) for it in services]
    if filling.dry_run:
        header = ("provider", "model", "queries", "requests", "prompt tokens", "answer tokens", "USD")
        table = markdown_table(header, [client.estimate() for client in clients])
        prices = f"Prices of {price_table()[0]}, or your own."
        publish_report(masks.dataset, "dry-run", f"# Estimated cost; nothing was sent\n\n{table}\n\n{prices}")
        return {}
    send(clients, lists.answers, filling)
    publish_report(masks.dataset, "asking", "\n".join(f"- {plain(client.line())}" for client in clients))
    check(clients, filling)
    return {client.service.name: client.unanswered() for client in clients if client.done < client.total}


def ask(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str | None]:
    """Ask the hosted models among the providers; return the digest of each provider's unanswered questions, if any.

    In a plan nothing is asked: the value of a provider with unanswered questions is None.
    """
    parents = annotations, tags, masks, dictionary
    if not is_planned():
        return ask_all(*parents, filling)
    unanswered = {settings.provider: None for settings in filling.hosted}
    for name in list(unanswered):
        with suppress(NotYetError):
            if Store().has(Fills(*parents, name, filling).artifact):  # made with answers to all questions
                del unanswered[name]
    return unanswered
