"""Write sentences that describe the events of a script, with the pairs of words that they combine."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from workshop.scenes import world
from workshop.scenes.script import Event, Script
from workshop.scenes.world import Item, gerund, prepositions, third_person

Pair = tuple[str, str, str]  # type (v-n, a-n, n-n, v-adv, p-n) and two lemmas
Lemma = tuple[str, str]  # part of speech and lemma

_PARTICLE_VERBS = ("pick", "turn", "put", "lift")  # "picks up the box" and "picks the box up"
_ADVERBS = ("away", "around")  # directions that are not particles


@dataclass
class Clause:
    """An incomplete clause: its words, pairs, and lemmas of open classes and prepositions."""

    opening: bool = True  # whether it is the first clause, whose nouns are not yet known
    words: list[str] = field(default_factory=list)
    pairs: set[Pair] = field(default_factory=set)
    lemmas: set[Lemma] = field(default_factory=set)

    def add(self, pos: str, lemma: str, word: str = "") -> None:
        self.words.append(word or lemma)
        self.lemmas.add((pos, lemma))

    def pair(self, kind: str, first: str, seconds: Iterable[str]) -> None:
        self.pairs.update((kind, first, second) for second in seconds)


@dataclass(frozen=True)
class Sentence:
    """A query, its window, the indices of the events that it describes, its pairs and lemmas."""

    text: str
    window: tuple[float, float]
    events: tuple[int, ...]
    pairs: frozenset[Pair]
    lemmas: frozenset[Lemma]

    @property
    def words(self) -> set[str]:
        return set(self.text.rstrip(".").split())


class SentenceWriter:
    """Writes sentences about the events of a script; every call gives another one. `novel` adds novel words."""

    def __init__(self, script: Script, chance: random.Random, *, novel: bool = False) -> None:
        self.events, self.room, self.chance, self.novel = script.events, script.room, chance, novel
        self.nouns = Counter(item.noun for item in self.room.items.values())

    def describe(self, index: int) -> Sentence:
        """Write about the event of this index, and sometimes about another one at the same time or soon after it."""
        events, chosen = self.events, [index]
        if index + 1 < len(events) and events[index + 1].start == events[index].start:
            chosen += [index + 1] if self.maybe(0.4) else []
            return self._sentence(chosen, "while")
        follower = next((i for i in range(index + 1, len(events)) if events[i].agent == events[index].agent), None)
        if follower is not None and events[follower].start - events[index].end < 2 and self.maybe(0.12):
            chosen.append(follower)
        return self._sentence(chosen, self.chance.choice(("then", "and then")))

    def _sentence(self, chosen: list[int], joint: str) -> Sentence:
        events = [self.events[i] for i in chosen]
        form = self.chance.choice(("third", "third", "progressive", "gerund"))
        clauses = [self.clause(events[0], form, subject=True)]
        for event in events[1:]:
            alone = joint == "while"
            then = "progressive" if alone else form.replace("progressive", "gerund")
            clauses.append(self.clause(event, then, subject=alone, opening=False))
        text = f" {joint} ".join(" ".join(clause.words) for clause in clauses) + "."
        window = (min(event.start for event in events), max(event.end for event in events))
        pairs = frozenset[Pair]().union(*(clause.pairs for clause in clauses))
        lemmas = frozenset[Lemma]().union(*(clause.lemmas for clause in clauses))
        return Sentence(text, window, tuple(chosen), pairs, lemmas)

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def clause(self, event: Event, form: str, *, subject: bool, opening: bool = True) -> Clause:
        """Return [a person] [is] [slowly] putting [the box] [down] [under the table] [slowly]."""
        clause = Clause(opening)
        if subject:
            words = world.AGENTS[self.room.agents[event.agent].noun]
            word = self.chance.choice(words[:1] * 2 + words)
            if word != "person" or not self.maybe(0.8 if form == "gerund" else 0.4):
                second = event.agent == "agent2" and word == "person"
                clause.words.append("another" if second else self.chance.choice(("a", "a", "the")))
            clause.add("NOUN", word)
        clause.words += ["is"] if form == "progressive" else []
        novel_verbs = world.NOVEL_VERBS.get(event.move.action, ()) if self.novel else ()
        verb = self.chance.choice((*world.ACTIONS[event.move.action].verbs, *novel_verbs))
        manner = event.manner if event.manner and self.maybe(0.8) else None
        early = manner is not None and self.maybe(0.5)
        if early:
            self._adverb(clause, verb, manner)
        clause.add("VERB", verb, third_person(verb) if form == "third" else gerund(verb))
        self._arguments(clause, event, verb)
        if manner and not early:
            self._adverb(clause, verb, manner)
        return clause

    def _adverb(self, clause: Clause, verb: str, manner: str) -> None:
        word = world.NOVEL_ADVERBS.get(manner, manner) if self.novel and self.maybe(0.3) else manner
        clause.add("ADV", word)
        clause.pair("v-adv", verb, [word])

    def _arguments(self, clause: Clause, event: Event, verb: str) -> None:
        move = event.move
        needed = not world.ACTIONS[move.action].bare or move.direction in ("on", "off")
        direction = move.direction if needed or move.relation == "from" or self.maybe(0.7) else None
        particle = direction if move.object and move.action in _PARTICLE_VERBS and self.maybe(0.5) else None
        self._direction(clause, verb, particle)
        if move.object:
            clause.pair("v-n", verb, self._item(clause, self.room.items[move.object], event))
        if particle is None:
            self._direction(clause, verb, direction)
        if move.target and ((needed and move.relation != "from") or self.maybe(0.8)):
            self._target(clause, event, verb)

    def _direction(self, clause: Clause, verb: str, direction: str | None) -> None:
        if direction:
            clause.add("ADV" if direction in _ADVERBS else "ADP", direction)
            clause.pair("v-adv", verb, [direction])

    def _target(self, clause: Clause, event: Event, verb: str) -> None:
        move, target = event.move, event.move.target or ""
        novel = self.novel and target not in (world.FLOOR, self.room.place)
        preposition = self.chance.choice(prepositions(move.action, move.relation or "", novel=novel))
        clause.add("ADP", preposition)
        if target in self.room.items:
            nouns = self._item(clause, self.room.items[target], event)
        else:
            agent = self.room.agents.get(target)
            nouns = [self.chance.choice(world.AGENTS[agent.noun][-2:]) if agent else target]
            clause.words.append("the")
            clause.add("NOUN", nouns[0])
        clause.pair("v-adv", verb, [preposition])
        clause.pair("p-n", preposition, nouns)
        clause.pair("v-n", verb, nouns)

    def _item(self, clause: Clause, item: Item, event: Event) -> list[str]:
        modifier, head = item.modifier, item.noun
        own_door = "door" in item.kind.affords and "door" not in self.nouns
        if own_door and event.move.action in ("open", "close") and self.maybe(0.5):
            modifier, head, adjectives = item.noun, "door", list[str]()
        else:
            adjectives = self._adjectives(item)
            modifier = modifier if len(adjectives) < 2 and self.maybe(0.5) else None
        nouns = [modifier, head] if modifier else [head]
        article = self.chance.choice(("a", "the", "the")) if clause.opening else "the"
        first = [*adjectives, *nouns][0]
        clause.words.append("an" if article == "a" and first[0] in "aeiou" else article)
        for adjective in adjectives:
            clause.add("ADJ", adjective)
            clause.pair("a-n", adjective, [head])
        for noun in nouns:
            clause.add("NOUN", noun)
        if modifier:
            clause.pair("n-n", modifier, [head])
        return nouns

    def _adjectives(self, item: Item) -> list[str]:
        count = self.chance.choice((0, 0, 1, 1, 1, 2))
        kinds = ["size", "colour", "colour", "material"]
        self.chance.shuffle(kinds)
        chosen = {*kinds[:count], *(["colour"] if self.nouns[item.noun] > 1 else [])}
        size = world.NOVEL_SIZE_WORDS.get(item.size or "") if self.novel else None
        if item.size and not (size and self.maybe(0.8)):
            size = self.chance.choice(world.SIZE_WORDS[item.size])
        words = {"size": size, "colour": item.colour, "material": item.material}
        return [word for kind, word in words.items() if kind in chosen and word]
