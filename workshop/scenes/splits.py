"""The compositional splits: what is held out of training, and which sentences each split may have.

As in Compositional-Temporal-Grounding: `novel_composition` puts seen words together as no training sentence does,
`novel_word` has words that no training sentence has, `test_trivial` has neither. A video is in one split only.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from workshop.scenes.actions import NOVEL_ADVERBS, NOVEL_PREPOSITIONS, NOVEL_SIZE_WORDS, NOVEL_VERBS
from workshop.scenes.clauses import Pair
from workshop.scenes.script import Script, write_script
from workshop.scenes.sentences import Sentence, SentenceWriter
from workshop.scenes.world import NOUNS, NOVEL_AGENT, NOVEL_COLOUR, NOVEL_PATTERN

TYPES = ("v-n", "a-n", "n-n", "v-adv", "p-n")
HELD_OUT = {"v-n": 0.10, "a-n": 0.12, "n-n": 0.15, "v-adv": 0.10, "p-n": 0.10}  # share of all occurrences
COMMONEST = 0.03  # a pair that makes up more of its type is never held out
PILOT = 150  # scripts from which the pairs are counted
TRIES = 10  # wordings tried for an event
SHARES = {"train": 0.51, "test_trivial": 0.13, "novel_composition": 0.22, "novel_word": 0.14}  # of the videos
FEWEST_VIDEOS = 150

NOVEL_WORDS = {noun for noun, kind in NOUNS.items() if kind.novel} | {NOVEL_AGENT, NOVEL_COLOUR, NOVEL_PATTERN}
NOVEL_WORDS |= {*NOVEL_ADVERBS.values(), *NOVEL_SIZE_WORDS.values(), *NOVEL_PREPOSITIONS.values()}
NOVEL_WORDS |= {verb for verbs in NOVEL_VERBS.values() for verb in verbs}

Label = dict[str, list[list[str]]] | dict[str, list[str]]
Acceptance = Callable[[Sentence], bool]


@dataclass
class AnnotatedVideo:
    """A script with its sentences, and in the novel splits a label for each: what is novel about it."""

    script: Script
    sentences: list[Sentence]
    labels: list[Label] = field(default_factory=list)


@dataclass
class TrainingVocabulary:
    """What the training sentences have: whole texts, words as they are written, lemmas and pairs."""

    texts: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    lemmas: set[str] = field(default_factory=set)
    pairs: set[Pair] = field(default_factory=set)

    def add(self, sentence: Sentence) -> None:
        """Take in a training sentence."""
        self.texts.add(sentence.text)
        self.words.update(words_of(sentence.text))
        self.lemmas.update(lemma for _, lemma in sentence.lemmas)
        self.pairs.update(sentence.pairs)


def words_of(text: str) -> list[str]:
    """The words of a query as they are written."""
    return text.rstrip(".").split()


def _count_pairs(chance: random.Random) -> Counter[Pair]:
    counts: Counter[Pair] = Counter()
    for _ in range(PILOT):
        script = write_script(chance)
        writer = SentenceWriter(script, chance)
        for index in range(len(script.events)):
            counts.update(writer.describe(index).pairs)
            counts.update(writer.describe(index).pairs)
    return counts


def _names_things(pair: Pair) -> bool:
    """Whether its noun stands for a thing (as "kitchen", "toy" and "floor" do not)."""
    return pair[0] == "v-adv" or pair[2] in NOUNS


def _candidates(counts: Counter[Pair], kind: str) -> list[Pair]:
    """The pairs of a type that are neither rare nor common."""
    total = sum(count for pair, count in counts.items() if pair[0] == kind)
    of_kind = sorted(pair for pair in counts if pair[0] == kind and _names_things(pair))
    return [pair for pair in of_kind if 2 <= counts[pair] <= max(2, COMMONEST * total)]


def hold_out(chance: random.Random) -> frozenset[Pair]:
    """Pairs for Novel-Composition: some of each type, never more than a quarter of what a word occurs in."""
    counts = _count_pairs(chance)
    budget: Counter[str] = Counter()
    for pair, count in counts.items():
        budget.update(dict.fromkeys(pair[1:], count))
    held: set[Pair] = set()
    for kind, share in HELD_OUT.items():
        left = share * sum(count for pair, count in counts.items() if pair[0] == kind)
        candidates = _candidates(counts, kind)
        chance.shuffle(candidates)
        for pair in candidates:
            count = counts[pair]
            if count <= left and 4 * count <= min(budget[word] for word in pair[1:]):
                left -= count
                held.add(pair)
                budget.subtract(dict.fromkeys(pair[1:], 4 * count))
    return frozenset(held)


def _describe_events(script: Script, accept: Acceptance, chance: random.Random, *, novel: bool) -> list[Sentence]:
    """One or two acceptable sentences an event, where there are any."""
    writer = SentenceWriter(script, chance, novel=novel)
    sentences: dict[str, Sentence] = {}
    for index in range(len(script.events)):
        wanted = len(sentences) + chance.choice((1, 2, 2))
        for _ in range(TRIES):
            if len(sentences) == wanted:
                break
            sentence = writer.describe(index)
            if accept(sentence):
                sentences.setdefault(sentence.text, sentence)
    return list(sentences.values())


def annotated_videos(
    count: int, accept: Acceptance, chance: random.Random, *, novel: bool = False
) -> list[AnnotatedVideo]:
    """So many videos with acceptable sentences."""
    videos: list[AnnotatedVideo] = []
    for _ in range(600 * count):
        script = write_script(chance, novel=novel)
        sentences = _describe_events(script, accept, chance, novel=novel)
        if sentences and len(sentences) >= min(2, len(script.events)):
            videos.append(AnnotatedVideo(script, sentences))
        if len(videos) == count:
            return videos
    raise ValueError(f"no {count} videos with fitting sentences: ask for more videos or another seed")


def composition_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[list[str]]]:
    """The pairs that no training sentence has, by type."""
    fresh = sorted(sentence.pairs - seen.pairs)
    label = {kind: [list(pair[1:]) for pair in fresh if pair[0] == kind] for kind in TYPES}
    return {kind: pairs for kind, pairs in label.items() if pairs}


def word_label(sentence: Sentence, seen: TrainingVocabulary) -> dict[str, list[str]]:
    """The lemmas that no training sentence has, by part of speech."""
    label: dict[str, list[str]] = {}
    for pos, lemma in sorted(sentence.lemmas):
        if lemma not in seen.lemmas:
            label.setdefault(pos, []).append(lemma)
    return label


def _composition(
    count: int, held: frozenset[Pair], seen: TrainingVocabulary, chance: random.Random
) -> list[AnnotatedVideo]:
    videos: list[AnnotatedVideo] = []
    for i, kind in enumerate(TYPES):
        wanted = frozenset(pair for pair in held if pair[0] == kind)

        def accept(sentence: Sentence, wanted: frozenset[Pair] = wanted) -> bool:
            fresh = not wanted.isdisjoint(sentence.pairs) and sentence.pairs - held <= seen.pairs
            return fresh and seen.words.issuperset(words_of(sentence.text))

        videos += annotated_videos(count // len(TYPES) + (i < count % len(TYPES)), accept, chance)
    return videos


def _accept_novel_word(held: frozenset[Pair], seen: TrainingVocabulary) -> Acceptance:
    def accept(sentence: Sentence) -> bool:
        fresh = {lemma for _, lemma in sentence.lemmas} - seen.lemmas
        unseen = set(words_of(sentence.text)) - seen.words
        old_pairs = {pair for pair in sentence.pairs if fresh.isdisjoint(pair[1:])}
        return bool(fresh) and fresh <= NOVEL_WORDS and len(fresh) == len(unseen) and old_pairs <= seen.pairs - held

    return accept


def make_splits(videos: int, chance: random.Random) -> dict[str, list[AnnotatedVideo]]:
    """All four splits, `videos` videos together. Training comes first: the others are judged by it."""
    counts = {name: round(share * videos) for name, share in SHARES.items()}
    counts["train"] += videos - sum(counts.values())
    held, seen = hold_out(chance), TrainingVocabulary()
    train = annotated_videos(counts["train"], lambda sentence: held.isdisjoint(sentence.pairs), chance)
    for sentence in _sentences(train):
        seen.add(sentence)
    trivial = annotated_videos(
        counts["test_trivial"],
        lambda it: it.pairs <= seen.pairs and it.text not in seen.texts and seen.words.issuperset(words_of(it.text)),
        chance,
    )
    composition = _composition(counts["novel_composition"], held, seen, chance)
    word = annotated_videos(counts["novel_word"], _accept_novel_word(held, seen), chance, novel=True)
    for video in composition:
        video.labels = [composition_label(sentence, seen) for sentence in video.sentences]
    for video in word:
        video.labels = [word_label(sentence, seen) for sentence in video.sentences]
    return {"train": train, "test_trivial": trivial, "novel_composition": composition, "novel_word": word}


def _sentences(videos: list[AnnotatedVideo]) -> Iterator[Sentence]:
    return (sentence for video in videos for sentence in video.sentences)
