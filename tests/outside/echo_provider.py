"""A provider of another package: nothing of Penumbra names it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, ProviderSettings, SharedSettings, Slot, TrainingText
from penumbra.tasks.text.dictionary import Dictionary


class Echo(ProviderSettings):
    """The parameters of Echo."""

    provider: ClassVar[str] = "echo"
    about: ClassVar[str] = "always the same word"

    place: int = Field(0, description="Place of the word among those on offer, in the dictionary's order.")

    def determines(self, filling: SharedSettings) -> dict[str, Any]:
        """Return the place."""
        return {"place": self.place}

    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> "EchoProvider":
        """Return the provider."""
        return EchoProvider(training.dictionary, self.place)


@dataclass(frozen=True)
class EchoProvider:
    """Fills every slot with the word at one place of its offer."""

    dictionary: Dictionary
    place: int
    name: str = "echo"
    model: str = "echo-1"
    prompt: str | None = None

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield one fill a query and level: a second candidate would be the first again."""
        for query in queries:
            for level, slots in enumerate(query.levels, query.first):
                words = tuple(self._word(slot) for slot in slots)
                yield Fill(query.qid, level, words if all(words) else (), "" if all(words) else "no word on offer")

    def _word(self, slot: Slot) -> str:
        offer, own = slot.choice(self.dictionary)
        others = [word for i, word in enumerate(offer.words) if i not in own]
        return others[self.place % len(others)] if others else ""
