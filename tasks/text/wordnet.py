"""The shipped part of WordNet 3.0: inflected forms of common words, entailment, valence of verbs, and two-word terms.

WordNet (Fellbaum, 1998; licence in `wordnet-licence.txt`) lists the senses of each word, the most frequent ones first,
and links them. `entailments.txt` adds pairs of words. `workshop/wordnet.py` makes `wordnet.txt.gz` and `terms.txt.gz`.
"""

import gzip
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from penumbra.artifacts.files import file_digest

FILE, TERMS = (Path(__file__).with_name(name) for name in ("wordnet.txt.gz", "terms.txt.gz"))
ENTAILMENTS = Path(__file__).with_name("entailments.txt")
WORD_LISTS = Path(__file__).with_name("word_lists.txt")
PARTS = {"noun": "n", "verb": "v", "adjective": "a", "adverb": "r"}
ENDINGS = {  # ending of a form : ending of its lemma
    "n": "ies:y es: s: men:man",
    "v": "ies:y es: s: ied:y d: ed: ying:ie ing:e ing:",
    "a": "ier:y iest:y r: st: er: est:",
}
DEGREES = ("er", "est")
LEAST = 0.25  # a sense is common if it has at least this share of the word's occurrences
LEAST_VALENCE = 0.1  # a verb has the valence of a sense with at least this share ("eat" without an object is rare)
UNCOUNTED = 3  # so many first senses are common if the tagged texts of WordNet do not have the word
VERB_LEVELS = 2  # levels of hypernyms that may replace a verb; higher ones are too general ("move", "act")
OBJECT, ALONE = 1, 2  # the bits of a verb's valence

LISTS = {
    name: frozenset(words.split())
    for name, _, words in (line.partition(":") for line in WORD_LISTS.read_text("utf-8").splitlines())
}


class WordNet(NamedTuple):
    """The lines of `wordnet.txt.gz`; `_all_senses` parses the senses of a word, which are numbers of synsets."""

    words: dict[tuple[str, str], str]
    synsets: list[str]
    irregular: dict[tuple[str, str], list[str]]  # form → lemmas
    of_lemma: dict[tuple[str, str], list[str]]  # lemma → forms


@cache
def wordnet_inputs() -> dict[str, str]:
    """Return the digests of the files that this module reads, for the key of a stage."""
    return {path.name: file_digest(path) for path in (FILE, ENTAILMENTS, WORD_LISTS)}


@cache
def _wordnet() -> WordNet:
    read = WordNet({}, [], defaultdict(list), defaultdict(list))
    for line in gzip.decompress(FILE.read_bytes()).decode().split("\n"):
        kind, _, rest = line.partition(" ")
        if kind == "synset":
            read.synsets.append(rest)
        elif kind == "irregular":
            part, form, lemma = rest.split(" ")
            read.irregular[part, form].append(lemma)
            read.of_lemma[part, lemma].append(form)
        else:
            word, _, senses = rest.partition(" ")
            read.words[kind, word] = senses
    return read


# -- forms ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def forms(word: str) -> frozenset[tuple[str, str]]:
    """Return the primitives and fine tags that an English word can have; empty for a rare word or a name.

    Words of closed classes have no forms, except prepositions and particles.
    """
    word = word.lower()
    found = set[tuple[str, str]]()
    found |= {("preposition", "IN")} if word in LISTS["prepositions"] else set()
    found |= {("adverb", "RP")} if word in LISTS["particles"] else set()
    if word in LISTS["closed"] | LISTS["prepositions"] or not re.fullmatch("[a-z]{2,}", word):
        return frozenset(found)
    for primitive, part in PARTS.items():
        if word in LISTS["verbs only"] and part != "v":
            continue
        for stem in _stems(word, part):
            if _wordnet().words[part, stem].startswith("1 "):
                found |= {(primitive, tag) for tag in _tags(word, stem, part)}
    if not found.isdisjoint({("adjective", "JJR"), ("adjective", "JJS")}):
        found.discard(("adjective", "JJ"))  # WordNet has "bigger" as a lemma, too
    if ("n", word) in _wordnet().irregular:
        found.discard(("noun", "NN"))  # WordNet has "men" as a lemma, too
    return frozenset(found)


@lru_cache(maxsize=1 << 16)
def lemma(word: str, primitive: str) -> str:
    """Return the lemma of a word as a primitive, or the word itself in lower case."""
    word = word.lower()
    stems = _stems(word, PARTS.get(primitive, ""))
    return stems[0] if stems else word


def _stems(word: str, part: str) -> list[str]:
    """Return the lemmas of which a word is a form, the likeliest first: irregular forms before rare lemmas ("men")."""
    stems = [*_wordnet().irregular.get((part, word), ()), word]
    endings = (ending.split(":") for ending in ENDINGS.get(part, "").split())
    stems += [word.removesuffix(old) + new for old, new in endings if word.endswith(old)]
    return [stem for stem in dict.fromkeys(stems) if (part, stem) in _wordnet().words and _tags(word, stem, part)]


def _tags(word: str, stem: str, part: str) -> set[str]:
    """Return the fine tags under which a word is a form of a lemma."""
    irregular = _wordnet().of_lemma.get((part, stem), [])
    if part == "v":
        return _verb_tags(word, stem, irregular)
    if part == "a":
        if word == stem:
            return {"JJ"}
        is_form = word in irregular or (not irregular and _is_short(stem) and word in {_join(stem, e) for e in DEGREES})
        return {"JJS" if word.endswith("st") else "JJR"} if is_form else set()
    if part == "n":
        if word != stem:
            listed = [form for form in irregular if form != stem and not stem.endswith("s")]
            return {"NNS"} if word in (listed or [_join(stem, "s")]) else set()
        is_plural = stem.endswith("s") and stem not in LISTS["singular"] and not re.search("(ss|us|is|os|ics)$", stem)
        return {"NNS"} if is_plural or stem in LISTS["plural"] else {"NN"}
    return {"RB"} if word == stem else set()


def _verb_tags(word: str, stem: str, irregular: list[str]) -> set[str]:
    tags = {"VB", "VBP"} if word == stem else set()
    tags |= {"VBZ"} if word in ([form for form in irregular if form.endswith("s")] or [_join(stem, "s")]) else set()
    progressive = [form for form in irregular if form.endswith("ing")]
    tags |= {"VBG"} if word in (progressive or [_join(stem, "ing")]) else set()
    pasts = [form for form in irregular if form not in progressive and not form.endswith("s")]
    participles = [form for form in pasts if re.search("(n|ne)$", form) and form not in {"won", "spun"}]
    if len(pasts) > 1:
        participles += [form for form in pasts if re.search("u[nm][gk]?$", form)]
    if stem in LISTS["past is the lemma"]:
        tags |= {"VBD", "VBN"} if word == stem else set()
    elif not pasts or pasts == participles or stem in LISTS["two pasts"]:
        tags |= {"VBD", "VBN"} if word == _join(stem, "ed") else set()
    if len(pasts) == 1 and re.search("(came|ran)$", pasts[0]):  # the participle is the lemma
        tags |= {"VBD"} if word == pasts[0] else {"VBN"} if word == stem else set()
    elif word in pasts:
        tags |= {"VBN"} if word in participles else {"VBD"} if participles else {"VBD", "VBN"}
    return tags


def _join(stem: str, ending: str) -> str:
    """Return the regular form of a lemma with the ending s, ed, ing, er or est."""
    if ending == "s":
        if stem.endswith("man") and stem not in {"human", "german", "roman", "shaman"}:
            return stem[:-2] + "en"
        stem = re.sub("(?<=[^aeiou])y$", "ie", stem)
        return stem + ("es" if re.search("(s|x|z|ch|sh)$", stem) or stem in LISTS["es after o"] else "s")
    if ending == "ing":
        return (re.sub("(?<=[^eoy])e$", "", re.sub("ie$", "y", stem)) if stem[-1] == "e" else _double(stem)) + ending
    return (stem[:-1] if stem.endswith("e") else re.sub("(?<=[^aeiou])y$", "i", _double(stem))) + ending


def _double(stem: str) -> str:
    """Return a lemma with its last consonant doubled if that follows a single short vowel ("chopp")."""
    return re.sub("^([^aeiou]*[aeiou]([bdfgklmnprtvz]))$", r"\1\2", stem)


def _is_short(adjective: str) -> bool:
    """Return whether an adjective is compared with an ending ("taller", "prettier"), not with "more"."""
    return len(re.findall("[aeiouy]+", re.sub("e$", "", adjective))) == 1 or bool(re.search("[^l]y$|le$", adjective))


# -- what a word entails ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def is_entailed(fill: str, word: str, primitive: str) -> bool:
    """Return whether a sentence may still be true of a moment if `fill` takes the place of `word` in it.

    True for a form of the same lemma, a synonym, a hypernym, a hyponym, and a pair in `entailments.txt`. Rare senses
    do not count. Two hyponyms of one word exclude each other ("cup", "bowl"; "fry", "boil").
    """
    part, listed = PARTS.get(primitive, ""), _listed(primitive)
    mine, others = (_stems(form.lower(), part) or [form.lower()] for form in (fill, word))
    if not {*mine, *(w for stem in mine for w in listed[stem])}.isdisjoint([*others, "*"]):
        return True
    pairs = [(_kinds(a, part), _kinds(b, part)) for a in mine for b in others]
    return not listed["*"].isdisjoint(others) or any(
        not (above.isdisjoint(senses) and others_above.isdisjoint(own))
        for (own, above), (senses, others_above) in pairs
    )


@lru_cache(maxsize=1 << 14)
def _kinds(stem: str, part: str) -> tuple[frozenset[int], set[int]]:
    """Return the common senses of a lemma, and these with their hypernyms (`_above`)."""
    senses = _senses(stem, part)
    return senses, _above(senses, VERB_LEVELS if part == "v" else 99)


def _senses(stem: str, part: str, least: float = LEAST) -> frozenset[int]:
    """Return the common senses of a lemma."""
    counted = [(synset, count) for synset, count, _ in _all_senses(stem, part)]
    total = sum(count for _, count in counted)
    common = [pair for pair in counted if pair[1] >= least * total] if total else counted[:UNCOUNTED]
    return frozenset(synset for synset, _ in common)


def _all_senses(stem: str, part: str) -> list[tuple[int, int, int]]:
    """Return the senses of a lemma as (synset, occurrences, valence), the most frequent ones first."""
    line = _wordnet().words.get((part, stem), "")
    fields = ((*sense.split(","), "", "")[:3] for sense in line.split(" ")[1:])
    return [(int(synset), int(count or 0), int(valence or 0)) for synset, count, valence in fields]


def _above(senses: frozenset[int], levels: int) -> set[int]:
    """Return synsets, their near-synonyms, and their hypernyms up to a number of levels."""
    found, layer = set(senses), set(senses)
    for synset in senses:
        found.update(map(int, _wordnet().synsets[synset].split(",")[1].split()))
    for _ in range(levels):
        layer = {int(up) for synset in layer for up in _wordnet().synsets[synset].split(",")[0].split()} - found
        if not layer:
            break
        found |= layer
    return found


@cache
def _listed(primitive: str) -> dict[str, set[str]]:
    """Return, for each word, the words that it may replace according to `entailments.txt`."""
    listed = defaultdict[str, set[str]](set)
    for line in ENTAILMENTS.read_text(encoding="utf-8").splitlines():
        kind, _, rule = line.partition("#")[0].partition(":")
        left, sign, right = re.split("([<>]|$)", rule, maxsplit=1)
        fills, words = left.split(), (right if sign else left).split()
        for fill, word in product(fills, words) if kind == primitive else ():
            listed[fill].add(word)
            if sign == ">":
                listed[word].add(fill)
    return listed


def takes_object(verb: str) -> bool:
    """Return whether a verb (a lemma) can take a direct object by its common senses; True if unknown."""
    return verb in LISTS["take an object, too"] or _has_valence(verb, OBJECT)


def stands_alone(verb: str) -> bool:
    """Return whether a verb (a lemma) can do without a direct object by its common senses; True if unknown."""
    return _has_valence(verb, ALONE)


@lru_cache(maxsize=1 << 16)
def _has_valence(verb: str, bit: int) -> bool:
    common = _senses(verb, "v", LEAST_VALENCE)
    return not common or any(valence & bit for synset, _, valence in _all_senses(verb, "v") if synset in common)


@cache
def terms() -> Mapping[str, Sequence[str]]:
    """Return, for each noun, the nouns and adjectives that precede it in two-word terms ("bread knife")."""
    lines = gzip.decompress(TERMS.read_bytes()).decode().splitlines()
    return {noun: modifiers.split(" ") for noun, _, modifiers in (line.partition(" ") for line in lines)}


@lru_cache(maxsize=1 << 18)
def likeness(word: str, other: str, primitive: str) -> float:
    """Return the similarity of two words, 0 to 1: the Dice coefficient of the sets of their synsets and hypernyms.

    The closest pair of their common senses counts. With one hypernym each it is Wu and Palmer's similarity (ACL 1994).
    """
    mine, others = (_above_each(form.lower(), PARTS.get(primitive, "")) for form in (word, other))
    return max((2 * len(a & b) / (len(a) + len(b)) for a in mine for b in others), default=0.0)


@lru_cache(maxsize=1 << 14)
def _above_each(word: str, part: str) -> list[set[int]]:
    """Return each common sense of a word together with its hypernyms (`_above`)."""
    return [_above(frozenset({sense}), 99) for stem in _stems(word, part) for sense in _senses(stem, part)]
