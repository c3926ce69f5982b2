"""What fills slots: one module a provider, all with the same small interface.

A provider is asked for words, never for sentences, and may choose only among the dictionary words of a slot's own
primitive class and fine tag. So a fill can't change an unmasked word or leave the dictionary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from penumbra.tasks.text.dictionary import Dictionary, Offer


@dataclass(frozen=True)
class Slot:
    """A masked token: its index among the query's tokens, its class and fine tag, and the word that stood there."""

    token: int
    primitive: str
    tag: str
    word: str
    lemma: str

    def choice(self, dictionary: Dictionary) -> tuple[Offer, tuple[int, ...]]:
        """What the slot is offered, and the places in it that it may not take: its own word and its inflections."""
        return dictionary.choice(self.primitive, self.tag, self.word, self.lemma)

    def may_take(self, word: str, dictionary: Dictionary) -> bool:
        """Whether a word is on offer for the slot and not a form of its own word."""
        offer, own = self.choice(dictionary)
        return word in offer.places and offer.places[word] not in own

    def surface(self, word: str) -> str:
        """The word as it stands in the slot: with the capital of the word that it replaces."""
        return word.capitalize() if self.word[:1].isupper() else word

    def offered_class(self, dictionary: Dictionary) -> tuple[str, str]:
        """The primitive class and fine tag whose words the slot is offered; the tag is nearly always its own."""
        return self.primitive, dictionary.offered_tag(self.primitive, self.tag, self.word, self.lemma)


@dataclass(frozen=True)
class MaskedQuery:
    """A query with the slots of each level; `levels[0]` is level `first`.

    `part` says which of how many equal parts of a slot's words are on offer.
    """

    qid: str
    tokens: list[dict[str, Any]]
    levels: tuple[tuple[Slot, ...], ...]
    first: int = 1
    part: tuple[int, int] = (0, 1)

    def chains(self) -> list["MaskedQuery"]:
        """The query cut wherever a level has the same slots as the level before (one of two words: 1, 1, 2 slots).

        Within a chain a level can keep the words of the level before and add to them. Where nothing is added, only
        other words tell two levels apart: so the chains of a query are offered different words.
        """
        starts = [i for i, slots in enumerate(self.levels) if i == 0 or slots == self.levels[i - 1]]
        return [
            MaskedQuery(self.qid, self.tokens, self.levels[start:end], self.first + start, (turn, len(starts)))
            for turn, (start, end) in enumerate(pairwise([*starts, len(self.levels)]))
        ]


@dataclass(frozen=True)
class Fill:
    """One candidate for a query at a level: a word a slot, or the problem that kept the provider from it.

    `attempts` says at which attempt; `model` which model answered, where it is not simply the provider's.
    """

    qid: str
    level: int
    words: tuple[str, ...]
    problem: str = ""
    attempts: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    cached: bool = False
    model: str = ""


class Provider(Protocol):
    """Fills slots. `name` is what users type, `model` what exactly answered, `prompt` the prompt's digest if any."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def prompt(self) -> str | None: ...

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield `candidates` fills for every query and level, in any order, the same for the same seed."""
        ...
