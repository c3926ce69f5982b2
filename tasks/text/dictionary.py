"""Stage `dictionary`: how often each word occurs in the training split, by primitive class and fine tag.

A slot may be filled only with words of the dictionary that have its primitive class and fine tag. A subject's slot
takes only nouns that are a verb's subject more often than not ("man", not "door"): the column `is_subject`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Stage, zip_parts
from penumbra.tasks.text.relations import NOUNS, VERBS
from penumbra.tasks.text.tags import SUBJECT_ARCS

STAGE = "dictionary"
SUBJECT = "subject"  # the class under which a dictionary offers the nouns that may fill a subject's slot
MIN_SUBJECT_SHARE = 1 / 5_000  # of all subjects: most nouns with a smaller share are typing errors
COLUMNS = ["primitive", "tag", "text", "lemma"]
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


def dictionary_part(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Part:
    """Return the dictionary of the training queries, most frequent words first, from parts (annotations, tags)."""
    counts, subjects = Counter[Entry](), Counter[Entry]()
    for annotations, tags in tagged:
        queries = tags.filter(pc.equal(annotations["split"], "train"))["tokens"].combine_chunks()
        words = pa.table([pc.struct_field(queries.flatten(), name) for name in COLUMNS], COLUMNS)
        words = words.append_column("is_subject", _subjects_of_verbs(queries)).drop_null()
        for row in words.group_by(COLUMNS).aggregate([([], "count_all"), ("is_subject", "sum")]).to_pylist():
            entry = row["primitive"], row["tag"], row["text"].lower(), row["lemma"]
            counts[entry] += row["count_all"]
            subjects[entry] += row["is_subject_sum"]
    others = Counter[str]()  # occurrences of each word that are not nouns
    for (primitive, _, word, _), count in counts.items():
        others[word] += count if primitive != "noun" else 0
    total, rows = subjects.total(), list[dict[str, object]]()
    for entry, count in sorted(counts.items(), key=lambda e: (e[0][:2], -e[1], e[0][2:])):
        is_mostly_noun, is_mostly_subject = count > others[entry[2]], 2 * subjects[entry] > count
        is_subject = is_mostly_noun and is_mostly_subject and subjects[entry] >= MIN_SUBJECT_SHARE * total
        row = dict(zip(("primitive", "tag", "word", "lemma"), entry, strict=True))
        rows.append({**row, "count": count, "is_subject": entry[0] == "noun" and is_subject})
    return Part(table_of(STAGE, rows), len(rows), len(rows))


def _subjects_of_verbs(queries: pa.ListArray) -> pa.Array:
    """Return whether each token of these parsed queries is a noun and the subject of a verb."""
    tokens = queries.flatten()
    pos = pc.struct_field(tokens, "pos")
    starts = queries.offsets.to_numpy()[pc.list_parent_indices(queries).to_numpy()] - queries.offsets[0].as_py()
    heads = pa.array(starts + pc.struct_field(tokens, "head").to_numpy())
    is_subject = pc.is_in(pc.struct_field(tokens, "dep"), pa.array(sorted(SUBJECT_ARCS)))
    is_noun = pc.is_in(pos, pa.array(NOUNS))
    return pc.and_(pc.and_(is_noun, is_subject), pc.is_in(pos.take(heads), pa.array(VERBS)))


class Offer(NamedTuple):
    """The sorted words for slots of one class and tag, the index of each (`index_of`), and their total occurrences."""

    words: list[str]
    index_of: dict[str, int]
    total: int


class AllowedWords(NamedTuple):
    """The words on offer for slots of a class and tag (`key`), and the indices of words that the slot must not take."""

    key: tuple[str, str]
    offer: Offer
    excluded: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the slot may take no word."""
        return len(self.offer.words) == len(self.excluded)

    @property
    def words(self) -> list[str]:
        """The words that the slot may take, as a new list; copying all words on offer takes microseconds."""
        words = list(self.offer.words)
        for index in reversed(self.excluded):
            del words[index]
        return words


class Dictionary:
    """The dictionary, with the lookups that providers and checks need.

    `offers` are the words for each (primitive, tag), `lemmas` the most frequent lemma of each (primitive, tag, word),
    and `forms` all lemmas of each word, itself included: two words that share a lemma are inflections of each other.
    """

    def __init__(self, table: pa.Table) -> None:
        self.lemmas: dict[tuple[str, str, str], str] = {}
        self.forms: dict[str, set[str]] = {}
        self._related: dict[tuple[str, str, str], set[str]] = defaultdict(set)  # words by primitive, tag and lemma
        self._allowed: dict[tuple[str, str, str, str, bool], AllowedWords] = {}
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for row in sorted(table.to_pylist(), key=lambda row: (row["count"], row["lemma"])):
            primitive, tag, word, lemma = row["primitive"], row["tag"], row["word"], row["lemma"]
            self.forms.setdefault(word, {word}).add(lemma)
            for kind in (primitive, SUBJECT) if row.get("is_subject") else (primitive,):
                self.lemmas[kind, tag, word] = lemma
                if OFFERED.match(word):
                    counts[kind, tag][word] += row["count"]
                    self._related[kind, tag, word].add(word)
                    self._related[kind, tag, lemma].add(word)
        self.offers = {
            key: Offer(sorted(counted), {word: index for index, word in enumerate(sorted(counted))}, counted.total())
            for key, counted in counts.items()
        }

    def offer(self, primitive: str, tag: str) -> Offer:
        """Return the words for a slot; an empty offer if the training split has none."""
        return self.offers.get((primitive, tag), Offer([], {}, 0))

    def allowed(self, primitive: str, tag: str, word: str, lemma: str, is_subject: bool = False) -> AllowedWords:
        """Return the words on offer for a slot: all but its own word and the inflections of it.

        The words have the slot's tag, or the nearest one if there are no others with its tag (a rare tag, or an error
        of the tagger). A subject's slot is offered subjects, if the dictionary has any.
        """
        key = (primitive, tag, word.lower(), lemma, is_subject)
        if key not in self._allowed:
            totals = {other: offer.total for (kind, other), offer in self.offers.items() if kind == primitive}
            tags = [tag, *NEAREST.get(tag, ()), max(sorted(totals), key=totals.__getitem__, default=tag)]
            if is_subject and any(kind == SUBJECT for kind, _ in self.offers):
                primitive, tags = SUBJECT, [tag]
            for near in tags:
                offer, excluded = self.offer(primitive, near), set[int]()
                for form in self.forms.get(word.lower(), set()) | {lemma, word.lower()}:
                    excluded.update(map(offer.index_of.__getitem__, self._related.get((primitive, near, form), ())))
                self._allowed[key] = AllowedWords((primitive, near), offer, tuple(sorted(excluded)))
                if not self._allowed[key].is_empty:
                    break
        return self._allowed[key]


@dataclass(frozen=True)
class WordCounts(Stage):
    name = STAGE
    version = 2
    unit = "word"
    pieces = (0,)

    annotations: Artifact
    tags: Artifact

    def part(self, piece: int) -> Part:
        return dictionary_part(zip_parts(self.annotations, self.tags))


def load_dictionary(artifact: Artifact) -> Dictionary:
    return Dictionary(Store().table(artifact))
