"""Sentences that say what happens in a script, in the register of Charades."""

import random
from dataclasses import dataclass

from workshop.scenes.clauses import ClauseWriter, Lemma, Pair
from workshop.scenes.script import Script


@dataclass(frozen=True)
class Sentence:
    """A query, the window and the events (by index) that it describes, and what it composes."""

    text: str
    window: tuple[float, float]
    events: tuple[int, ...]
    pairs: frozenset[Pair]
    lemmas: frozenset[Lemma]


class SentenceWriter:
    """Tells a script: every call gives another sentence. Novel words come in only if asked for."""

    def __init__(self, script: Script, chance: random.Random, *, novel: bool = False) -> None:
        self.script, self.chance = script, chance
        self.writer = ClauseWriter(script.room, chance, novel=novel)

    def describe(self, index: int) -> Sentence:
        """A sentence for an event; at times it takes in the next one."""
        events = self.script.events
        chosen = [index]
        follower = next((i for i in range(index + 1, len(events)) if events[i].agent == events[index].agent), None)
        if index + 1 < len(events) and events[index + 1].start == events[index].start:
            chosen += [index + 1] if self.writer.maybe(0.4) else []
            return self._sentence(chosen, "while")
        if follower is not None and events[follower].start - events[index].end < 2 and self.writer.maybe(0.12):
            chosen.append(follower)
        return self._sentence(chosen, self.chance.choice(("then", "and then")))

    def _sentence(self, chosen: list[int], joint: str) -> Sentence:
        events = [self.script.events[i] for i in chosen]
        form = self.chance.choice(("third", "third", "progressive", "gerund"))
        clauses = [self.writer.clause(events[0], form, subject=True)]
        for event in events[1:]:
            alone = joint == "while"
            then = "progressive" if alone else form.replace("progressive", "gerund")
            clauses.append(self.writer.clause(event, then, subject=alone, opening=False))
        text = f" {joint} ".join(" ".join(clause.words) for clause in clauses) + "."
        window = (min(event.start for event in events), max(event.end for event in events))
        pairs = frozenset[Pair]().union(*(clause.pairs for clause in clauses))
        lemmas = frozenset[Lemma]().union(*(clause.lemmas for clause in clauses))
        return Sentence(text, window, tuple(chosen), pairs, lemmas)
