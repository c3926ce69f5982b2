"""Ask the hosted language models every question that `fills` needs an answer to; the answers are stored in the cache.

All models are asked at once in one event loop, with one budget. Nothing is asked that the cache has an answer to, so
the task can be killed and repeated at any time.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted, markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import Fills, masked_queries, run_id, training_tokens
from penumbra.tasks.negatives.providers import TrainingText, load_prompt
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.budget import Budget, BudgetError, price_of, price_table
from penumbra.tasks.negatives.providers.client import CHARACTERS_A_TOKEN, OVER_BUDGET, UNDER_WAY, Client
from penumbra.tasks.negatives.providers.hosted import ServiceError
from penumbra.tasks.negatives.providers.questions import Question, WordLists, attempt_history, questions_of
from penumbra.tasks.negatives.providers.settings import HostedSettings
from penumbra.tasks.stage import NotYetError, is_planned, logger, side_effect_task, zip_parts
from penumbra.tasks.text.dictionary import load_dictionary

REPORT_EVERY = 5.0  # seconds between two lines of progress
SLOT_TOKENS = 6  # of an answer: quotes, number, colon, letter, comma


class Requests:
    """The questions of one run to the hosted models about the masks of a data set."""

    def __init__(
        self, annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
    ) -> None:
        self.tags, self.masks, self.filling, self.run = tags, masks, filling, run_id()
        self.prompt = load_prompt(filling.prompt, "queries")
        parents = annotations, tags, masks, dictionary
        is_filled = Store().intact
        self.settings = [
            one for one in filling.hosted if not is_filled(Fills(*parents, one.provider, filling).artifact)
        ]
        if self.settings:
            tokens = training_tokens(zip_parts(annotations, tags))
            self.answers = Answers()
            self.lists = WordLists(TrainingText(load_dictionary(dictionary), tokens), filling, self.answers)

    def blocks(self) -> Iterator[list[Question]]:
        for tagged, masked in zip_parts(self.tags, self.masks):
            if block := questions_of(self.lists, masked_queries(tagged, masked), self.filling.asked_candidates):
                yield block

    def open_questions(self, settings: HostedSettings) -> Iterator[Question]:
        """Yield what is to be asked next of each question that has no final answer."""
        cache_key = settings.cache_key(self.prompt.label)
        for question in (question for block in self.blocks() for question in block):
            if following := attempt_history(question, cache_key, self.answers)[1]:
                yield following

    def estimate(self, settings: HostedSettings) -> tuple[str, ...]:
        """Return what asking a service takes, as a row of the report; tokens are estimated from characters."""
        service, size = settings.service(self.prompt), self.filling.queries_a_request
        questions = list(self.open_questions(settings))
        requests = [questions[start : start + size] for start in range(0, len(questions), size)]
        prompt = sum(int(len(json.dumps(service.payload(one))) / CHARACTERS_A_TOKEN) + 1 for one in requests)
        completion = sum(SLOT_TOKENS * len(question.open) + 2 for question in questions)
        price = price_of(settings)
        cost = f"${price.cost(prompt, completion) * settings.discount:.2f}" if price else "no price known"
        logger().info(
            f"not sent: {settings.provider} ({settings.model}): {counted(len(questions), 'query')} in "
            f"{counted(len(requests), 'request')}, about {prompt:,} + {completion:,} tokens, {cost}"
        )
        counts = (len(questions), len(requests), prompt, completion)
        return (settings.provider, settings.model, *(f"{count:,}" for count in counts), cost.lstrip("$"))

    def send(self) -> list[Client]:
        """Ask all services at once.

        Raises `PenumbraError` before anything is sent if a key is missing, or a price while there is a budget.
        """
        services = [settings.service(self.prompt) for settings in self.settings]
        for settings, service in zip(self.settings, services, strict=True):
            service.authenticate()
            if self.filling.max_cost_usd is not None and price_of(settings) is None:
                raise BudgetError(
                    f"max_cost_usd cannot be kept: no price is known for {settings.model}; give "
                    f"--param 'filling.{settings.provider}.price={{input: …, output: …}}', USD per million tokens"
                )
        chains = 0  # `MaskedQuery.chains`; the rows of masks are in the levels' order
        for masks in Store().parts(self.masks, ["level", "slots"]):
            slots, later = pc.list_value_length(masks["slots"]).to_numpy(), masks["level"].to_numpy()[1:] > 1
            chains += len(slots) - int(np.count_nonzero(later & (slots[1:] > slots[:-1])))
        with Budget(self.filling.max_cost_usd, self.answers) as budget:
            clients = []
            for service in services:
                kind: type[Client] = Client
                if service.settings.discount < 1.0:
                    from penumbra.tasks.negatives.providers.batch import BatchClient as kind  # noqa: N813
                size = self.filling.queries_a_request
                total = self.filling.asked_candidates * chains
                clients.append(kind(service, self.answers, budget, self.run, size, total))
            asyncio.run(self._ask(clients))
        return clients

    async def _ask(self, clients: Sequence[Client]) -> None:
        reports = asyncio.create_task(_report_progress(clients))
        try:
            results = await asyncio.gather(*(c.ask(self.blocks()) for c in clients), return_exceptions=True)
        finally:
            reports.cancel()
            with suppress(asyncio.CancelledError):
                await reports
        for result in results:
            if isinstance(result, BaseException):
                raise result  # only now: the answers of the others are stored

    def unanswered(self, settings: HostedSettings) -> str:
        """Return a digest of the questions that have no final answer, '' if there are none."""
        cache_key = settings.cache_key(self.prompt.label)
        keys = "".join(question.key(cache_key) for question in self.open_questions(settings))
        return hashlib.sha256(keys.encode()).hexdigest()[:16] if keys else ""


async def _report_progress(clients: Sequence[Client]) -> None:
    while True:
        await asyncio.sleep(REPORT_EVERY)
        for client in clients:
            logger().info(client.line())


def check(clients: Sequence[Client], filling: Filling) -> None:
    """Log what went wrong; raise if the budget is spent, jobs are under way, or no provider of the run answered."""
    for client in clients:
        name, statistics = client.service.name, client.statistics
        asked = client.settings.model
        lines = [f"{asked} was asked, {model} answered" for model in statistics.models if model != asked]
        lines += [f"{number} × {reason}" for reason, number in (statistics.faults + statistics.refused).most_common()]
        if client.stopped not in ("", OVER_BUDGET, UNDER_WAY):
            lines.append(f"stopped: {client.stopped}; the next run asks for the rest")
        for line in lines:
            logger().warning("%s: %s", name, line)
    if any(client.stopped == OVER_BUDGET for client in clients):
        raise BudgetError(
            f"max_cost_usd ${filling.max_cost_usd} is reached, {' and '.join(c.statistics.cost() for c in clients)} "
            f"are spent ({', '.join(c.progress() for c in clients)}); runs at the same time and killed ones share the "
            "limit. All answers are kept: run again, with a higher --param filling.max_cost_usd or the same, to "
            "continue"
        )
    if waiting := sum(client.statistics.in_flight for client in clients if client.stopped == UNDER_WAY):
        raise NotYetError(
            f"batch jobs with {counted(waiting, 'request')} are under way: run the same again to collect them"
        )
    failed = [c for c in clients if c.stopped and not c.statistics.requests and c.statistics.done < c.statistics.total]
    if failed and len(failed) == len(filling.providers):
        reasons = "; ".join(f"{client.service.name}: {client.stopped}" for client in failed)
        raise ServiceError(f"no provider answered ({reasons}): check key, address and model, and run again", "stop")


@side_effect_task("ask")
def ask_all(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str]:
    """Ask all hosted models; return, for each with open questions, their digest."""
    requests = Requests(annotations, tags, masks, dictionary, filling)
    if filling.dry_run:
        header = ("provider", "model", "queries", "requests", "prompt tokens", "answer tokens", "USD")
        table = markdown_table(header, [requests.estimate(settings) for settings in requests.settings])
        prices = f"Prices of {price_table()[0]}, or your own."
        publish_report(masks.dataset, "dry-run", f"# Estimated cost; nothing was sent\n\n{table}\n\n{prices}")
        return {}
    if not requests.settings:
        return {}
    clients = requests.send()
    for client in clients:
        logger().info(client.line())
    publish_report(masks.dataset, "asking", "\n".join(f"- {plain(client.line())}" for client in clients))
    check(clients, filling)
    return {
        client.service.name: requests.unanswered(client.settings)
        for client in clients
        if client.statistics.done < client.statistics.total
    }


def ask(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str | None]:
    """Ask the hosted models among the providers; return, for each with unanswered questions, their digest.

    In a plan nothing is asked: a provider that has not answered everything has None.
    """
    parents = annotations, tags, masks, dictionary
    if is_planned():
        unanswered = {settings.provider: None for settings in filling.hosted}
        for name in list(unanswered):
            with suppress(NotYetError):
                if Store().has(Fills(*parents, name, filling).artifact):  # it has answered everything
                    del unanswered[name]
        return unanswered
    return ask_all(*parents, filling)
