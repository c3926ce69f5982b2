"""Make the data set "scenes": Compositional-Temporal-Grounding files and the scripts of the videos.

    python -m workshop.scenes.generate --output DIR [--videos N] [--seed S]

Writes train.json, test_trivial.json, novel_composition.json and novel_word.json (a video's sentences, timestamps and
duration, and in the novel splits the novel words) and scripts.jsonl (a video's room, agents and events).
The same seed gives the same bytes on every machine.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from workshop.scenes import world
from workshop.scenes.script import Event, Script, write_script
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


TYPES = ("v-n", "a-n", "n-n", "v-adv", "p-n")
HELD_OUT = {"v-n": 0.10, "a-n": 0.12, "n-n": 0.15, "v-adv": 0.10, "p-n": 0.10}  # share of all occurrences
COMMONEST = 0.03  # largest share of its type that a held-out pair may have
PILOT = 150  # scripts in which the pairs are counted
TRIES = 10  # wordings for an event
SHARES = {"train": 0.51, "test_trivial": 0.13, "novel_composition": 0.22, "novel_word": 0.14}  # of the videos

NOVEL_WORDS = {world.NOVEL_AGENT, world.NOVEL_COLOUR, world.NOVEL_PATTERN}
NOVEL_WORDS |= {noun for noun, kind in world.NOUNS.items() if kind.novel}
NOVEL_WORDS |= {*world.NOVEL_ADVERBS.values(), *world.NOVEL_SIZE_WORDS.values(), *world.NOVEL_PREPOSITIONS.values()}
NOVEL_WORDS |= {verb for verbs in world.NOVEL_VERBS.values() for verb in verbs}

Label = dict[str, list[list[str]]] | dict[str, list[str]]
Acceptance = Callable[[Sentence], bool]


@dataclass
class AnnotatedVideo:
    """A script with its sentences, and in the novel splits a label for each sentence."""

    script: Script
    sentences: list[Sentence]
    labels: list[Label] = field(default_factory=list)


class TrainingVocabulary:
    def __init__(self, videos: list[AnnotatedVideo]) -> None:
        sentences = [sentence for video in videos for sentence in video.sentences]
        self.texts = {sentence.text for sentence in sentences}
        self.words = {word for sentence in sentences for word in sentence.words}
        self.lemmas = {lemma for sentence in sentences for _, lemma in sentence.lemmas}
        self.pairs = {pair for sentence in sentences for pair in sentence.pairs}


def hold_out(chance: random.Random) -> frozenset[Pair]:
    """Return pairs for Novel-Composition of each type, at most a quarter of the occurrences of a word."""
    counts, budget = Counter[Pair](), Counter[str]()
    for _ in range(PILOT):
        script = write_script(chance)
        writer = SentenceWriter(script, chance)
        for index in range(len(script.events)):
            for _ in range(2):
                counts.update(writer.describe(index).pairs)
    for pair, count in counts.items():
        budget.update(dict.fromkeys(pair[1:], count))
    held: set[Pair] = set()
    for kind, share in HELD_OUT.items():
        of_kind = {pair: count for pair, count in counts.items() if pair[0] == kind}
        left, most = share * sum(of_kind.values()), max(2, COMMONEST * sum(of_kind.values()))
        named = [pair for pair in sorted(of_kind) if kind == "v-adv" or pair[2] in world.NOUNS]
        candidates = [pair for pair in named if 2 <= of_kind[pair] <= most]  # neither rare nor common
        chance.shuffle(candidates)
        for pair in candidates:
            count = counts[pair]
            if count <= left and 4 * count <= min(budget[word] for word in pair[1:]):
                left -= count
                held.add(pair)
                budget.subtract(dict.fromkeys(pair[1:], 4 * count))
    return frozenset(held)


def annotated_videos(count: int, accept: Acceptance, chance: random.Random, *, novel=False) -> list[AnnotatedVideo]:
    videos = list[AnnotatedVideo]()
    for _ in range(600 * count):
        script, sentences = write_script(chance, novel=novel), dict[str, Sentence]()
        writer = SentenceWriter(script, chance, novel=novel)
        for index in range(len(script.events)):
            wanted = len(sentences) + chance.choice((1, 2, 2))
            for _ in range(TRIES):
                if len(sentences) < wanted and accept(sentence := writer.describe(index)):
                    sentences.setdefault(sentence.text, sentence)
        if sentences and len(sentences) >= min(2, len(script.events)):
            videos.append(AnnotatedVideo(script, list(sentences.values())))
        if len(videos) == count:
            return videos
    raise ValueError(f"no {count} videos with fitting sentences: ask for more videos or another seed")


def composition_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[list[str]]]:
    fresh = sorted(sentence.pairs - seen.pairs)
    label = {kind: [list(pair[1:]) for pair in fresh if pair[0] == kind] for kind in TYPES}
    return {kind: pairs for kind, pairs in label.items() if pairs}


def word_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[str]]:
    fresh = sorted((pos, lemma) for pos, lemma in sentence.lemmas if lemma not in seen.lemmas)
    return {pos: [lemma for _, lemma in group] for pos, group in groupby(fresh, key=itemgetter(0))}


def _has_novel_pair(sentence: Sentence, kind: str, held: frozenset[Pair], seen: TrainingVocabulary) -> bool:
    fresh = any(pair[0] == kind for pair in sentence.pairs & held) and sentence.pairs - held <= seen.pairs
    return fresh and sentence.words <= seen.words


def _has_novel_word(sentence: Sentence, held: frozenset[Pair], seen: TrainingVocabulary) -> bool:
    fresh = {lemma for _, lemma in sentence.lemmas} - seen.lemmas
    unseen = sentence.words - seen.words
    old_pairs = {pair for pair in sentence.pairs if fresh.isdisjoint(pair[1:])}
    return bool(fresh) and fresh <= NOVEL_WORDS and len(fresh) == len(unseen) and old_pairs <= seen.pairs - held


def make_splits(videos: int, chance: random.Random) -> dict[str, list[AnnotatedVideo]]:
    """Return the four splits, with `videos` videos in all. The others depend on the training split."""
    counts = {name: round(share * videos) for name, share in SHARES.items()}
    counts["train"] += videos - sum(counts.values())
    held = hold_out(chance)
    train = annotated_videos(counts["train"], lambda sentence: held.isdisjoint(sentence.pairs), chance)
    seen = TrainingVocabulary(train)
    trivial = annotated_videos(
        counts["test_trivial"],
        lambda it: it.pairs <= seen.pairs and it.text not in seen.texts and it.words <= seen.words,
        chance,
    )
    composition, count = list[AnnotatedVideo](), counts["novel_composition"]
    for i, kind in enumerate(TYPES):
        wanted = count // len(TYPES) + (i < count % len(TYPES))
        composition += annotated_videos(wanted, lambda it, kind=kind: _has_novel_pair(it, kind, held, seen), chance)
    word = annotated_videos(counts["novel_word"], lambda it: _has_novel_word(it, held, seen), chance, novel=True)
    for some, label in ((composition, composition_label), (word, word_label)):
        for video in some:
            video.labels = [label(sentence, seen) for sentence in video.sentences]
    return {"train": train, "test_trivial": trivial, "novel_composition": composition, "novel_word": word}


VIDEOS = 440
SEED = 2024
LABELS = {"novel_composition": "novels", "novel_word": "news"}  # split -> key of its labels


def annotation(video: AnnotatedVideo, split: str) -> dict[str, Any]:
    labels = {LABELS[split]: video.labels} if split in LABELS else {}
    texts, windows = zip(*((sentence.text, sentence.window) for sentence in video.sentences), strict=True)
    return {"sentences": texts, "timestamps": windows, "duration": video.script.duration, **labels}


def data_set(videos: int = VIDEOS, seed: int = SEED) -> dict[str, str]:
    """Return the content of each file; a video's id does not depend on its split."""
    chance = random.Random(seed)
    splits, files, scripts = make_splits(videos, chance), dict[str, str](), dict[str, str]()
    numbers = list(range(1, sum(map(len, splits.values())) + 1))
    chance.shuffle(numbers)
    for split, several in splits.items():
        rows = {}
        for video in several:
            vid = f"S{numbers.pop():04d}"
            for index, sentence in enumerate(video.sentences):
                for event in sentence.events:
                    video.script.events[event].sentences.append(index)
            rows[vid] = f"{json.dumps(vid)}: {json.dumps(annotation(video, split))}"
            scripts[vid] = json.dumps(video.script.record(vid, split), separators=(",", ":"))
        files[f"{split}.json"] = "{" + ",\n".join(rows[vid] for vid in sorted(rows)) + "}\n"
    files["scripts.jsonl"] = "".join(f"{scripts[vid]}\n" for vid in sorted(scripts))
    return files


def main(output: Annotated[Path, typer.Option()], videos: int = VIDEOS, seed: int = SEED) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name, text in data_set(videos, seed).items():
        (output / name).write_bytes(text.encode())


if __name__ == "__main__":
    typer.run(main)
