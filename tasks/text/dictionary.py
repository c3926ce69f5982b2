"""Stage `dictionary`: how often each word occurs in the training split, by primitive class and fine tag.

A slot may be filled only with words of the dictionary that have its primitive class and fine tag.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Stage, run, zip_parts

STAGE = "dictionary"
# The measure "template kept" needs one token of this form for each slot; other words are never offered.
OFFERED = re.compile(r"[a-z']*[a-z][a-z']*\Z")

# Tags with a similar grammatical role: a slot is offered their words if its own tag has no other word.
NEAREST = {
    "JJR": ("JJ",),
    "JJS": ("JJ",),
    "NNS": ("NN",),
    "RB": ("RP", "IN"),
    "RP": ("RB", "IN"),
    "VB": ("VBP",),
    "VBD": ("VBN", "VBZ"),
    "VBN": ("VBD",),
    "VBP": ("VB",),
}

Entry = tuple[str, str, str, str]  # primitive, tag, word, lemma


def count_words(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Counter[Entry]:
    """Count the primitives of the training queries in lower case; `tagged` yields annotations and tags of each part."""
    counts: Counter[Entry] = Counter()
    columns = ["primitive", "tag", "text", "lemma"]
    for annotations, tags in tagged:
        queries = tags.filter(pc.equal(annotations["split"], "train"))
        tokens = pc.list_flatten(queries["tokens"].combine_chunks())
        words = pa.table({name: pc.struct_field(tokens, name) for name in columns}).filter(
            pc.field("primitive").is_valid()
        )
        several = words.group_by(columns).aggregate([([], "count_all")]).select([*columns, "count_all"])
        for primitive, tag, text, lemma, count in zip(*several.to_pydict().values(), strict=True):
            counts[primitive, tag, text.lower(), lemma] += count
    return counts


def dictionary_part(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Part:
    """Return the dictionary, with the most frequent words first within a class and tag."""
    counts = count_words(tagged)
    rows = [
        {"primitive": primitive, "tag": tag, "word": word, "lemma": lemma, "count": count}
        for (primitive, tag, word, lemma), count in sorted(counts.items(), key=lambda e: (e[0][:2], -e[1], e[0][2:]))
    ]
    return Part(table_of(STAGE, rows), len(rows), len(rows))


@dataclass
class Offer:
    """The words for slots of one class and tag, with their counts, sorted by word."""

    words: list[str] = field(default_factory=list)
    lemmas: list[frozenset[str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @cached_property
    def places(self) -> dict[str, int]:
        """The index of each word."""
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def by_lemma(self) -> dict[str, list[int]]:
        """The indices of the words of each lemma."""
        places: dict[str, list[int]] = {}
        for place, lemmas in enumerate(self.lemmas):
            for lemma in lemmas:
                places.setdefault(lemma, []).append(place)
        return places


@dataclass(frozen=True)
class Dictionary:
    """The dictionary, with the lookups that providers and checks need."""

    table: pa.Table
    _places: dict[Entry, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def offers(self) -> dict[tuple[str, str], Offer]:
        """The words for each (primitive, tag)."""
        gathered: dict[tuple[str, str], dict[str, tuple[set[str], int]]] = {}
        for row in self.table.to_pylist():
            if not OFFERED.match(row["word"]):
                continue
            words = gathered.setdefault((row["primitive"], row["tag"]), {})
            lemmas, count = words.get(row["word"], (set(), 0))
            words[row["word"]] = (lemmas | {row["lemma"]}, count + row["count"])
        offers = {}
        for key, of_slot in sorted(gathered.items()):
            lemmas_of = [frozenset(lemmas | {word}) for word, (lemmas, _) in sorted(of_slot.items())]
            offers[key] = Offer(sorted(of_slot), lemmas_of, [of_slot[word][1] for word in sorted(of_slot)])
        return offers

    def offer(self, primitive: str, tag: str) -> Offer:
        """Return the words for a slot; an empty offer if the training split has none."""
        return self.offers.get((primitive, tag), Offer())

    def offered_tag(self, primitive: str, tag: str, word: str, lemma: str) -> str:
        """Return the fine tag whose words a slot is offered: its own, or the nearest if its own has no other word.

        A tag with a single word is rare (a participle in a tiny data set) or an error of the tagger. Without this rule
        such a slot, and therefore the query's level, could not be filled.
        """
        for near in (tag, *NEAREST.get(tag, ())):
            if len(self.offer(primitive, near).words) > len(self._own_places(primitive, near, word, lemma)):
                return near
        totals = {other: sum(offer.counts) for (kind, other), offer in self.offers.items() if kind == primitive}
        return max(sorted(totals), key=totals.__getitem__, default=tag)

    def _own_places(self, primitive: str, tag: str, word: str, lemma: str) -> tuple[int, ...]:
        key = (primitive, tag, word.lower(), lemma)
        if key not in self._places:
            own = self.forms.get(word.lower(), frozenset()) | {lemma, word.lower()}
            by_lemma = self.offer(primitive, tag).by_lemma
            self._places[key] = tuple(sorted({place for form in own for place in by_lemma.get(form, ())}))
        return self._places[key]

    def choice(self, primitive: str, tag: str, word: str, lemma: str) -> tuple[Offer, tuple[int, ...]]:
        """Return the offer of a slot, and the indices that it must not use: its own word and inflections of it."""
        tag = self.offered_tag(primitive, tag, word, lemma)
        return self.offer(primitive, tag), self._own_places(primitive, tag, word, lemma)

    def lemma(self, primitive: str, tag: str, word: str) -> str:
        """Return the most frequent lemma of a word."""
        return self._lemmas.get((primitive, tag, word), word)

    @cached_property
    def _lemmas(self) -> dict[tuple[str, str, str], str]:
        rows = sorted(self.table.to_pylist(), key=lambda row: (row["count"], row["lemma"]))
        return {(row["primitive"], row["tag"], row["word"]): row["lemma"] for row in rows}

    @cached_property
    def forms(self) -> dict[str, frozenset[str]]:
        """All lemmas of each word, itself included; two words that share a lemma are inflections of each other."""
        lemmas_of: dict[str, set[str]] = {}
        for word, lemma in zip(self.table["word"].to_pylist(), self.table["lemma"].to_pylist(), strict=True):
            lemmas_of.setdefault(word, {word}).add(lemma)
        return {word: frozenset(lemmas) for word, lemmas in lemmas_of.items()}


@dataclass(frozen=True)
class WordCounts(Stage):
    """The number of occurrences of each primitive in the training split."""

    name = STAGE
    version = 1
    unit = "word"
    pieces = (0,)

    annotations: Artifact
    tags: Artifact

    def part(self, piece: int) -> Part:
        """Count all queries; the dictionary has one part."""
        return dictionary_part(zip_parts(self.annotations, self.tags))


def count(annotations: Artifact, tags: Artifact) -> Artifact:
    """Count the primitives of the training split."""
    return run(WordCounts(annotations, tags))


def load_dictionary(artifact: Artifact) -> Dictionary:
    """Read the dictionary from its artifact."""
    return Dictionary(Store().table(artifact))
