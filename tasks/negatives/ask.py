"""Ask the hosted language models: everything that `fills` needs of them goes into the cache of answers.

All of them at once in one event loop, with one budget. Nothing is asked whose answer the cache holds, so the task can
be killed and repeated at any time.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import markdown_table
from penumbra.artifacts.prefect_ui import LiveArtifact, publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import Fills, masked_queries, run_id, training_sentences
from penumbra.tasks.negatives.providers.accounting import Statistics
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.asking import OVER_BUDGET, UNDER_WAY, ServiceClient
from penumbra.tasks.negatives.providers.budget import Budget, BudgetError
from penumbra.tasks.negatives.providers.cost_estimate import CostEstimate, estimate_cost
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.hosted import questions
from penumbra.tasks.negatives.providers.options import Options
from penumbra.tasks.negatives.providers.prices import table
from penumbra.tasks.negatives.providers.prompts import load_prompt
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.service import ServiceSettings
from penumbra.tasks.progress import ProgressEvent
from penumbra.tasks.stage import NotYetError, is_planned, logger, side_effect_task, zip_parts
from penumbra.tasks.text.dictionary import load_dictionary

REPORT_EVERY = 5.0  # seconds between two lines of progress


class UnansweredError(PenumbraError):
    """No provider that the run may use answered anything."""


class UnderWayError(PenumbraError):
    """Batch jobs have not ended yet: nothing is wrong, the run is to be repeated later."""


class Requests:
    """What one run asks the hosted models about one data set's masks."""

    def __init__(
        self, annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
    ) -> None:
        self.tags, self.masks, self.filling = tags, masks, filling
        self.store, self.answers, self.run = Store(), Answers(), run_id()
        self.prompt = load_prompt(filling.prompt, "queries")
        self.settings = [
            settings
            for settings in filling.hosted
            if not self.store.intact(Fills(annotations, tags, masks, dictionary, settings.provider, filling).artifact)
        ]
        if self.settings:
            sentences = training_sentences(zip_parts(annotations, tags))
            words = load_dictionary(dictionary)
            self.options = Options(sentences, words, filling.options, filling.seed, self.answers)

    @cached_property
    def total(self) -> int:
        """How many questions there are."""
        masks = self.store.parts(self.masks, ["level", "slots"])
        return self.filling.asked_candidates * sum(map(chains, masks))

    def blocks(self) -> Iterator[list[Question]]:
        """The questions, part by part."""
        for tagged, masked in zip_parts(self.tags, self.masks):
            if some := questions(self.options, masked_queries(tagged, masked), self.filling.asked_candidates):
                yield some

    def cost_estimates(self) -> list[CostEstimate]:
        """What each service would be asked, and what that would cost."""
        return [
            estimate_cost(s.service(self.prompt), s, self.blocks(), self.answers, self.filling.queries_a_request)
            for s in self.settings
        ]

    def send(self) -> list[ServiceClient]:
        """Ask all services at once; raises `BudgetError` where a price is wanted and unknown."""
        unpriced = [settings for settings in self.settings if not settings.known_price]
        if unpriced and self.filling.max_cost_usd is not None:
            raise BudgetError(
                f"max_cost_usd can't be kept: no price is known for {', '.join(s.model for s in unpriced)}; give "
                f"--param 'filling.{unpriced[0].provider}.price={{input: …, output: …}}', USD a million tokens"
            )
        queries, run = self.filling.queries_a_request, self.run
        with Budget(self.filling.max_cost_usd, self.answers) as budget:
            clients = [
                settings.client(self.prompt, self.answers, budget, run, queries, self.store, self.total)
                for settings in self.settings
            ]
            asyncio.run(self._ask(clients))
        return clients

    async def _ask(self, clients: Sequence[ServiceClient]) -> None:
        watch = asyncio.create_task(_watch(clients, self.masks.dataset))
        try:
            ended = await asyncio.gather(*(c.ask(self.blocks()) for c in clients), return_exceptions=True)
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        for fault in (end for end in ended if isinstance(end, BaseException)):
            raise fault  # only now: what the others had under way is kept

    def unanswered(self, settings: ServiceSettings) -> str:
        """A digest of the questions that have no answer yet, '' where all have."""
        cache_key = settings.cache_key(self.prompt.label)
        digest = hashlib.sha256()
        count = 0
        for question in (question for block in self.blocks() for question in block):
            left = dialogue(question, cache_key, self.answers).next
            if left:
                count += 1
                digest.update(left.key(cache_key).encode())
        return digest.hexdigest()[:16] if count else ""


def chains(masks: pa.Table) -> int:
    """How many chains of levels (`MaskedQuery.chains`) a part of masks has; its rows are in the order of the levels."""
    slots = pc.list_value_length(masks["slots"]).to_numpy()
    later = masks["level"].to_numpy()[1:] > 1
    return len(slots) - int(np.count_nonzero(later & (slots[1:] > slots[:-1])))


async def _watch(clients: Sequence[ServiceClient], dataset: str) -> None:
    """Say every few seconds how far each client is, in the log and as progress bars in the UI."""
    log = logger()
    with ExitStack() as shown:
        names = (client.service.name for client in clients)
        bars = {name: shown.enter_context(LiveArtifact("progress", dataset, f"asking {name}")) for name in names}
        while True:
            await asyncio.sleep(REPORT_EVERY)
            for number, client in enumerate(clients):
                name, statistics = client.service.name, client.statistics
                line, total = statistics.line(name), max(1, statistics.total)
                log.info(
                    line,
                    extra=ProgressEvent(
                        "ask", done=statistics.done, total=total, unit="queries", part=number, text=line
                    ).as_log_extra(),
                )
                await asyncio.to_thread(bars[name].show, 100.0 * statistics.done / total)


def _estimate_page(estimates: list[CostEstimate]) -> str:
    header = ("provider", "model", "queries", "requests", "prompt tokens", "answer tokens", "USD")
    rows = [
        (
            p.provider,
            p.model,
            f"{p.queries:,}",
            f"{p.requests:,}",
            f"{p.prompt_tokens:,}",
            f"{p.completion_tokens:,}",
            "no price known" if p.cost_usd is None else f"{p.cost_usd:.2f}",
        )
        for p in estimates
    ]
    return (
        f"# Not sent: what asking would take\n\n{markdown_table(header, rows)}\n\nPrices of {table()[0]}, or your own."
    )


def _report_page(clients: Sequence[ServiceClient]) -> str:
    header = (
        "provider",
        "queries",
        "requests",
        "sent again",
        "waits for a limit",
        "asked again",
        "latency, median / 95 %",
        "tokens",
        "USD",
        "answered by",
        "stopped",
    )
    return markdown_table(header, [(c.service.name, *_report_row(c.statistics), c.stopped or "no") for c in clients])


def _report_row(t: Statistics) -> tuple[str, ...]:
    return (
        f"{t.done:,} of {t.total:,}, {t.at_start:,} from the cache",
        f"{t.requests:,}",
        f"{t.retries:,}",
        f"{t.limited:,}",
        f"{t.asked_again:,}",
        f"{t.latency(0.5):.2f} s / {t.latency(0.95):.2f} s",
        f"{t.prompt_tokens + t.completion_tokens:,}",
        f"{t.cost_usd:.4f}{t.lost()}",
        ", ".join(t.models) or "–",
    )


def check(clients: Sequence[ServiceClient], filling: Filling) -> None:
    """Say what went wrong; raises where the run has nothing to go on with, or no money."""
    log = logger()
    for client in clients:
        name, statistics = client.service.name, client.statistics
        for answered in statistics.models:
            if answered != client.settings.model:
                log.warning("%s: %s was asked, %s answered", name, client.settings.model, answered)
        for counts in (statistics.faults, statistics.refused):
            for reason, number in counts.most_common():
                log.warning("%s: %d × %s", name, number, reason)
        if client.stopped not in ("", OVER_BUDGET, UNDER_WAY):
            log.warning("%s: stopped: %s; the next run asks for the rest", name, client.stopped)
    if any(client.stopped == OVER_BUDGET for client in clients):
        spent = sum(client.statistics.cost_usd for client in clients)
        lost = sum(client.statistics.lost_usd for client in clients)
        done = ", ".join(f"{c.service.name} {c.statistics.done:,} of {c.statistics.total:,} queries" for c in clients)
        raise BudgetError(
            f"${spent:.4f} of max_cost_usd ${filling.max_cost_usd} are spent ({done}), and up to ${lost:.4f} for lost "
            "answers; runs at the same time, and before this one if they were killed, share the limit. All answers are "
            "kept: run again, with a higher --param filling.max_cost_usd or the same once more, to go on from here"
        )
    waiting = [client for client in clients if client.stopped == UNDER_WAY]
    if waiting:
        number = sum(client.statistics.in_flight for client in waiting)
        raise UnderWayError(f"batch jobs with {number:,} requests are under way: run the same again to collect them")
    failed = [c for c in clients if c.stopped and not c.statistics.requests and c.statistics.done < c.statistics.total]
    if failed and len(failed) == len(filling.providers):
        reasons = "; ".join(f"{client.service.name}: {client.stopped}" for client in failed)
        raise UnansweredError(f"no provider answered anything ({reasons}): check key, address and model, and run again")


def ask(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str | None]:
    """Fill the cache of answers; returns, for each provider with unanswered questions, their digest.

    In a plan nobody is asked: whoever has not answered all has None.
    """
    read = annotations, tags, masks, dictionary
    if not is_planned():
        return ask_all(*read, filling)
    fills = [Fills(*read, settings.provider, filling) for settings in filling.hosted]
    return {it.provider: None for it in fills if not _answered(it)}


def _answered(fills: Fills) -> bool:
    """Whether the fills of a provider that answered all are there."""
    try:
        return Store().has(fills.artifact)
    except NotYetError:
        return False


@side_effect_task("ask")
def ask_all(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str]:
    """See `ask`."""
    requests = Requests(annotations, tags, masks, dictionary, filling)
    if filling.dry_run:
        estimates = requests.cost_estimates()
        publish_report(masks.dataset, "dry-run", _estimate_page(estimates))
        for estimate in estimates:
            logger().info("not sent: %s", estimate)
        return {}
    if not requests.settings:
        return {}
    clients = requests.send()
    publish_report(masks.dataset, "asking", _report_page(clients))
    for client in clients:
        logger().info(client.statistics.line(client.service.name))
    check(clients, filling)
    return {
        client.service.name: requests.unanswered(client.settings)
        for client in clients
        if client.statistics.done < client.statistics.total
    }
