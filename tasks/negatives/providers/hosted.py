"""A hosted language model as a provider: its fills are read from the cache of answers, after it has been asked.

One of them is a `Hosted` with a `Service`, in a file of its own.

Every attempt is a row, so that tokens and money add up: an answer's tokens are shared among the queries that it was
for, and a query's share among the levels that were still open.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider
from penumbra.tasks.negatives.providers.answers import Answers, portion
from penumbra.tasks.negatives.providers.asking import Client, ServiceClient
from penumbra.tasks.negatives.providers.budget import Budget
from penumbra.tasks.negatives.providers.dialogue import Attempt, dialogue
from penumbra.tasks.negatives.providers.options import Options
from penumbra.tasks.negatives.providers.prompts import Prompt, load_prompt
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.registry import Shared, TrainingText
from penumbra.tasks.negatives.providers.service import Service, ServiceSettings

UNANSWERED = "not answered yet"


def questions(options: Options, queries: Sequence[MaskedQuery], candidates: int) -> list[Question]:
    """What to ask about these queries: for each candidate and chain of levels a question with lists of its own."""
    chains = [chain for query in queries for chain in query.chains()]
    return [
        Question(chain, tuple(lists), candidate, options.name(chain, candidate))
        for candidate in range(candidates)
        for chain, lists in zip(chains, options.draw(chains, candidate), strict=True)
    ]


class Hosted(ServiceSettings):
    """A hosted model's own parameters, its service, and the provider that reads its answers."""

    by_workers: ClassVar[bool] = False  # the answers lie on the disk of the run

    @abstractmethod
    def service(self, prompt: Prompt) -> Service:
        """What requests go to; its library is imported only now."""

    def client(
        self,
        prompt: Prompt,
        answers: Answers,
        budget: Budget,
        run: str,
        queries_a_request: int,
        store: Store,
        total: int = 0,
    ) -> ServiceClient:
        """What asks the service `total` questions of this prompt; `store` is where it may write down what it awaits."""
        return Client(self.service(prompt), answers, self, budget, run, queries_a_request, total)

    def determines(self, filling: Shared) -> dict[str, Any]:
        """The number of words on offer, and what determines an answer."""
        return {"options": filling.options, "cache_key": self.cache_key(load_prompt(filling.prompt, "queries").label)}

    def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
        """What reads the answers to this prompt."""
        answers, prompt = Answers(), load_prompt(filling.prompt, "queries").label
        options = Options(training.sentences(), training.dictionary, filling.options, filling.seed, answers)
        return HostedProvider(self.provider, self.model, prompt, self.cache_key(prompt), options, answers, run)


@dataclass(frozen=True)
class HostedProvider:
    """Reads fills; `cache_key` is what determines an answer besides the question's text, `run` the run that reads."""

    name: str
    model: str
    prompt: str
    cache_key: dict[str, Any]
    options: Options
    answers: Answers
    run: str

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield a fill for each level of each question, and a problem for each attempt that failed."""
        for question in questions(self.options, queries, candidates):
            yield from self._fills(question)

    def _fills(self, question: Question) -> Iterator[Fill]:
        query, open_levels = question.query, dict(places(question))
        for level, slots in list(open_levels.items()):
            stuck = next((query.levels[-1][place] for place in slots if not question.options[place]), None)
            if stuck:
                del open_levels[level]
                problem = f"no other {stuck.primitive} than {stuck.word!r} in the training split"
                yield Fill(query.qid, level, (), problem, attempts=0)
        if not open_levels:
            return
        talk = dialogue(question, self.cache_key, self.answers)
        for attempt in talk.attempts:
            yield from self._attempt(attempt, open_levels)
        if talk.next:
            for level in open_levels:
                yield Fill(query.qid, level, (), UNANSWERED, talk.next.attempt - 1)

    def _attempt(self, attempt: Attempt, open_levels: dict[int, list[int]]) -> Iterator[Fill]:
        """The rows of one attempt; the levels that it fills are taken away."""
        question, answer = attempt.question, attempt.answer
        prompt, completion, cost = answer.share(attempt.number) if answer and not attempt.shared else (0, 0, 0.0)
        words = {**question.chosen, **attempt.words}
        levels = list(open_levels.items())
        for turn, (level, slots) in enumerate(levels):
            filled = all(place in words for place in slots)
            yield Fill(
                question.query.qid,
                level,
                tuple(words[place] for place in slots) if filled else (),
                "" if filled else attempt.problem,
                question.attempt,
                portion(prompt, len(levels), turn),
                portion(completion, len(levels), turn),
                cost / len(levels),
                cached=attempt.shared or (answer is not None and answer.run != self.run),
                model=answer.model if answer else "",
            )
            if filled:
                del open_levels[level]


def places(question: Question) -> Iterator[tuple[int, list[int]]]:
    """For each level, the places of its slots among those of the last level."""
    place = {slot.token: i for i, slot in enumerate(question.query.levels[-1])}
    for level, slots in enumerate(question.query.levels, question.query.first):
        yield level, [place[slot.token] for slot in slots]
