"""Ask the hosted language models every question that `fills` needs an answer to; the answers are stored in the cache.

All models are asked at once in one event loop, with one budget. Nothing is asked that the cache has an answer to, so
the task can be killed and repeated at any time.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted, markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.fills import Fills, masked_queries, run_id, training_tokens
from penumbra.tasks.negatives.providers import TrainingText, load_prompt
from penumbra.tasks.negatives.providers.answers import Answers, BudgetError, open_budget
from penumbra.tasks.negatives.providers.client import CHARACTERS_A_TOKEN, OVER_BUDGET, Client, all_of
from penumbra.tasks.negatives.providers.hosted import SERVICES, Service, ServiceError
from penumbra.tasks.negatives.providers.questions import Question, WordLists, open_questions, questions_of
from penumbra.tasks.negatives.providers.settings import Filling, price_table
from penumbra.tasks.stage import NotYetError, is_planned, logger, side_effect_task, zip_parts
from penumbra.tasks.text.dictionary import load_dictionary

REPORT_EVERY = 5.0  # seconds between two lines of progress
SLOT_TOKENS = 6  # of an answer: quotes, number, colon, letter, comma


class Requests:
    """The questions of one run, and the services whose fills are not made yet."""

    def __init__(
        self, annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
    ) -> None:
        self.tags, self.masks, self.filling = tags, masks, filling
        prompt, self.services = load_prompt(filling.prompt, "queries"), list[Service]()
        for settings in filling.hosted:
            stage = Fills(annotations, tags, masks, dictionary, settings.provider, filling)
            if not Store().intact(stage.artifact):
                self.services.append(SERVICES[settings.provider](settings, prompt))
        if self.services:
            training = TrainingText(load_dictionary(dictionary), training_tokens(zip_parts(annotations, tags)))
            self.lists = WordLists(training, filling, Answers())

    def blocks(self) -> Iterator[list[Question]]:
        for tagged, masked in zip_parts(self.tags, self.masks):
            if block := questions_of(self.lists, masked_queries(tagged, masked), self.filling.asked_candidates):
                yield block

    def open(self, service: Service) -> Iterator[Question]:
        """Yield what is to be asked a service next."""
        return chain.from_iterable(
            open_questions(block, service.cache_key, self.lists.answers) for block in self.blocks()
        )

    def estimate(self, service: Service) -> tuple[str, ...]:
        """Return what asking a service takes, as a row of the report; tokens are estimated from characters."""
        size, model, questions = self.filling.queries_a_request, service.settings.model, list(self.open(service))
        queries = len({question.query.qid for question in questions})
        requests = [questions[start : start + size] for start in range(0, len(questions), size)]
        prompt = sum(int(len(json.dumps(service.payload(one))) / CHARACTERS_A_TOKEN) + 1 for one in requests)
        completion = sum(SLOT_TOKENS * len(question.open) + 2 for question in questions)
        cost = f"${service.price.cost(prompt, completion):.2f}" if service.price else "no price known"
        logger().info(
            f"not sent: {service.name} ({model}): {counted(queries, 'query')} in "
            f"{counted(len(requests), 'request')}, about {prompt:,} + {completion:,} tokens, {cost}"
        )
        counts = (queries, len(requests), prompt, completion)
        return (service.name, model, *(f"{count:,}" for count in counts), cost.lstrip("$"))

    def send(self) -> list[Client]:
        """Ask all services at once.

        Raises `PenumbraError` before anything is sent if a key is missing, or a price while there is a budget.
        """
        filling, answers, run = self.filling, self.lists.answers, run_id()
        for service in self.services:
            service.authenticate()
            if filling.max_cost_usd is not None and service.price is None:
                raise BudgetError(
                    f"max_cost_usd cannot be kept: no price is known for {service.settings.model}; give "
                    f"--param 'filling.{service.name}.price={{input: …, output: …}}', USD per million tokens"
                )
        queries = (query for tables in zip_parts(self.tags, self.masks) for query in masked_queries(*tables))
        total = filling.asked_candidates * sum(len(query.chains()) for query in queries)

        async def ask_and_report() -> None:
            asking = asyncio.ensure_future(all_of(client.ask(self.blocks()) for client in clients))
            while (await asyncio.wait([asking], timeout=REPORT_EVERY))[1]:  # as long as it is pending
                for client in clients:
                    logger().info(client.line())
            await asking

        with open_budget(answers, filling.max_cost_usd) as budget:
            clients = [Client(it, answers, budget, run, filling.queries_a_request, total) for it in self.services]
            asyncio.run(ask_and_report())
        return clients


def check(clients: Sequence[Client], filling: Filling) -> None:
    """Log what went wrong; raise if the budget is spent, or no provider of the run answered."""
    for client in clients:
        asked = client.service.settings.model
        lines = [f"{asked} was asked, {model} answered" for model in client.models if model != asked]
        lines += [f"{number} × {reason}" for reason, number in client.problems.most_common()]
        if client.stopped not in ("", OVER_BUDGET):
            lines.append(f"stopped: {client.stopped}; the next run asks for the rest")
        for line in lines:
            logger().warning("%s: %s", client.service.name, line)
    if any(client.stopped == OVER_BUDGET for client in clients):
        raise BudgetError(
            f"max_cost_usd ${filling.max_cost_usd} is reached, {' and '.join(client.cost() for client in clients)} "
            f"are spent ({', '.join(client.progress() for client in clients)}); runs at the same time and killed ones "
            "share the limit. All answers are kept: run again, with a higher --param filling.max_cost_usd or the same, "
            "to continue"
        )
    failed = [client for client in clients if client.stopped and not client.requests and client.done < client.total]
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
        table = markdown_table(header, [requests.estimate(service) for service in requests.services])
        prices = f"Prices of {price_table()[0]}, or your own."
        publish_report(masks.dataset, "dry-run", f"# Estimated cost; nothing was sent\n\n{table}\n\n{prices}")
        return {}
    if not requests.services:
        return {}
    clients = requests.send()
    for client in clients:
        logger().info(client.line())
    publish_report(masks.dataset, "asking", "\n".join(f"- {plain(client.line())}" for client in clients))
    check(clients, filling)
    unanswered = dict[str, str]()
    for client in clients:
        if client.done < client.total:
            keys = "".join(map(client.key, requests.open(client.service)))
            unanswered[client.service.name] = hashlib.sha256(keys.encode()).hexdigest()[:16]
    return unanswered


def ask(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str | None]:
    """Ask the hosted models among the providers; return, for each with unanswered questions, their digest.

    In a plan nothing is asked: a provider that has not answered everything has None.
    """
    parents = annotations, tags, masks, dictionary
    if not is_planned():
        return ask_all(*parents, filling)
    unanswered = {settings.provider: None for settings in filling.hosted}
    for name in list(unanswered):
        with suppress(NotYetError):
            if Store().has(Fills(*parents, name, filling).artifact):  # it has answered everything
                del unanswered[name]
    return unanswered
