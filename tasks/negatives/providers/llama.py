"""Provider `llama`: a language model on this machine proposes words for a slot and scores the sentences with them.

Some of the data set's own sentences stand before each sentence, so the model expects similar sentences. For a slot, it
proposes the likeliest words of the slot's primitive class and fine tag: words of the dictionary and, with an open
vocabulary, other English words (`penumbra.tasks.text.wordnet`). It reads from left to right, so a verb, adjective or
adverb is proposed as the missing word of the whole sentence: a line with a blank, after lines that show the word for a
blank. Words that repeat a word, or verbs that can't take the object, are left out; so are words that may be true of
the same moment, if others fit. The others are scored by the change of log P up to a few words after the slot, and by
the largest fall of one of these words, such as the object of an odd verb. Words that the data set or captions have in
the same relations ("closes", "door"), words of a term and nouns of the same kind are preferred.

A beam of fillings is kept from slot to slot and from level to level: see `penumbra.tasks.negatives.providers.beam`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from heapq import nlargest, nsmallest
from math import inf, nan
from typing import Any

import numpy as np

from penumbra.tasks.negatives.language_model import LanguageModel, Scores
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, SharedSettings, TrainingText, load_prompt
from penumbra.tasks.negatives.providers.beam import BLANK, Beam, State
from penumbra.tasks.negatives.providers.vocabulary import Context, Vocabulary
from penumbra.tasks.progress import counting
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.relations import Tokens

PROMPT, MISSING_WORD = "sentence-2", "missing-word-1"
SENTENCES = 16  # sentences of the data set before each sentence
MEASURED = 48  # further sentences of the data set, whose log P gives a threshold for filled sentences (`LIKELIER`)
FEW = 16  # with fewer measured sentences, there is no threshold
EXAMPLES = 16  # lines with a missing word and its answer, before a line that asks for one
LONGEST = 20  # tokens of these sentences and lines, at most
MISSING = ("verb", "adjective", "adverb")  # the classes whose words are proposed as the missing word of the sentence
READ = 8  # fillings of a query whose plausibility is read at the end of a level
QUERIES = 512  # filled at once: bounds the memory whatever the size of a part

PLAUSIBLE = 3.0  # weight of a sentence's plausibility, in nats of log P for each nat of log-odds
LEAST = -20.0  # the least log P plus number of words of a filled sentence; the quantile LIKELIER replaces it if lower
LIKELIER = 0.25  # quantile of the measured sentences; of fills below both limits, one in five reads naturally


class LlamaProvider(Provider):
    """Fills slots with words that a local language model finds likely; raises `PenumbraError` if it can't be loaded."""

    name = "llama"

    def __init__(self, training: TrainingText, filling: SharedSettings, model: str, temperature: float) -> None:
        queries = list(training.tokens)
        prompt = load_prompt(PROMPT, "sentences")
        sentences = example_sentences(queries, filling.seed)
        before = _text(prompt, sentences=sentences[:SENTENCES])
        self.language_model = LanguageModel.load(model, before)
        self.least = self._least(sentences[SENTENCES:])
        missing = load_prompt(MISSING_WORD, "examples")
        self.missing_word = dict[str, LanguageModel]()
        for primitive in MISSING:
            examples = missing_words(queries, primitive, filling.seed)
            self.missing_word[primitive] = self.language_model.after(_text(missing, examples=examples))
        self.vocabulary = Vocabulary(training.dictionary, self.language_model, filling.vocabulary == "open")
        self.context = Context(queries)
        self.model, self.prompt = self.language_model.name, prompt.label
        self.temperature, self.seed = temperature, filling.seed

    def _least(self, sentences: Sequence[str]) -> float:
        """Return the least log P plus number of words of a filled sentence; `sentences` are of the data set."""
        scores = self.language_model.log_probabilities(sentences) if len(sentences) >= FEW else []
        values = [score + len(sentence.split()) for sentence, score in zip(sentences, scores, strict=False)]
        return min(LEAST, float(np.nanquantile(values, LIKELIER))) if values else -inf

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level, the best ones first: at most eight for each level."""
        chains = [chain for query in queries for chain in query.chains()]
        for start in range(0, len(chains), QUERIES):
            beams = [Beam(chain, self.vocabulary, self.context) for chain in chains[start : start + QUERIES]]
            texts = [beam.text({}) for beam in beams]
            if self.least > -inf:
                scores = self.language_model.log_probabilities(texts)
            else:  # without a threshold, the score only says whether a sentence is too long (NaN)
                lines = self.language_model.tokens([f"{text}\n" for text in texts])
                scores = [nan if len(line) > self.language_model.longest else 0.0 for line in lines]
            for beam, score in zip(beams, scores, strict=True):
                beam.begin(score, self.least)
            report = counting("slots", sum(len(beam.turns) for beam in beams))
            for turn in range(max((len(beam.turns) for beam in beams), default=0)):
                open_beams = [beam for beam in beams if turn < len(beam.turns)]
                self._fill(open_beams, turn)
                report(len(open_beams))
            for beam in beams:
                yield from beam.fills(candidates)

    def _fill(self, beams: Sequence[Beam], turn: int) -> None:
        """Fill the same turn of several queries; texts that several queries share are scored once."""
        states = [(beam, state) for beam in beams for state in beam.states]
        proposed = self._propose(states, turn)
        choices = [
            tuple(beam.text_up_to(state, turn, word) for word in ("", *words)) if words else ()
            for (beam, state), words in zip(states, proposed, strict=True)
        ]
        distinct = [choice for choice in dict.fromkeys(choices) if choice]
        changes = dict(zip(distinct, self.language_model.compare(distinct), strict=True))
        children: dict[int, list[State]] = {id(beam): [] for beam in beams}
        for (beam, state), words, choice in zip(states, proposed, choices, strict=True):
            if choice:
                children[id(beam)] += beam.children(state, turn, words, *changes[choice])
        if hasattr(self.language_model.model, "plausibility"):  # the adapter's head
            self._keep_plausible([beam for beam in beams if beam.turns[turn].is_last], children, turn)
        for beam in beams:
            beam.select(turn, children[id(beam)], self.temperature, self.seed)

    def _keep_plausible(self, beams: Sequence[Beam], children: dict[int, list[State]], turn: int) -> None:
        """Leave out the implausible fillings at the end of a level, and set the plausibility of the others."""
        best = [nlargest(READ, children[id(beam)], key=lambda child: child.rank) for beam in beams]
        texts = [
            beam.text(words)
            for beam, own in zip(beams, best, strict=True)
            for words in ({}, *(child.words for child in own))
        ]
        values = iter(self.language_model.plausibilities(texts))
        for beam, own in zip(beams, best, strict=True):
            query, pairs = next(values), [(child, next(values)) for child in own]
            children[id(beam)] = [
                replace(child, plausibility=PLAUSIBLE * (value - query))
                for child, value in pairs
                if beam.is_plausible(turn, child, value, query)
            ]

    def _propose(self, states: Sequence[tuple[Beam, State]], turn: int) -> list[dict[str, float]]:
        """Return for each filling the words to score in a turn's slot, with the preference for each."""
        lefts = [beam.left(state, turn) for beam, state in states]
        words = [
            self.vocabulary.words(beam.turns[turn].slot, left) for (beam, _), left in zip(states, lefts, strict=True)
        ]
        asked = [(left.rstrip(), own.first) for left, own in zip(lefts, words, strict=True)]
        expected = self.language_model.next_tokens(asked)
        fitting = list[Scores | None]([None] * len(states))
        for primitive, model in self.missing_word.items():
            places = [i for i, (beam, _) in enumerate(states) if beam.turns[turn].slot.primitive == primitive]
            asked = [(question(states[i][0].masked(states[i][1], turn)), words[i].missing) for i in places]
            for i, scores in zip(places, model.next_tokens(asked), strict=True):
                fitting[i] = scores
        return [
            beam.propose(state, turn, own, likely, fits)
            for (beam, state), own, likely, fits in zip(states, words, expected, fitting, strict=True)
        ]


# -- the lines before a sentence --------------------------------------------------------------------------------------


def _text(prompt: Any, **lines: list[str]) -> str:
    return f"{prompt.static}\n{prompt.fill(**{name: chr(10).join(several) for name, several in lines.items()})}\n"


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


def example_sentences(queries: Iterable[Tokens], seed: int) -> list[str]:
    """Return distinct short sentences, drawn by their digests: `SENTENCES` examples, then `MEASURED` further ones."""
    texts = {render(list(tokens), {}) for tokens in queries if len(tokens) <= LONGEST}  # type: ignore[arg-type]
    return nsmallest(SENTENCES + MEASURED, sorted(texts), key=lambda text: _digest(f"{seed} {text}"))


def missing_words(queries: Iterable[Tokens], primitive: str, seed: int) -> list[str]:
    """Return lines of a sentence with a blank and its word, of different words of a class, drawn by their digests."""
    places = {
        (render(list(tokens), {i: BLANK}), token["text"].lower())  # type: ignore[arg-type]
        for tokens in queries
        for i, token in enumerate(tokens)
        if len(tokens) <= LONGEST and token["primitive"] == primitive
    }
    lines: dict[str, str] = {}
    for masked, word in sorted(places, key=lambda place: (_digest(f"{seed} {place[0]}"), place)):
        lines.setdefault(word, f"{question(masked)} {word}")
    return [*lines.values()][:EXAMPLES]


def question(masked: str) -> str:
    """Return the line that asks for the missing word of a sentence."""
    return f"{masked} →"
