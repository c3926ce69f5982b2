"""Write what Penumbra ships of WordNet, from the files of Debian's `wordnet-base`.

    apt-get download wordnet-base && dpkg-deb -x wordnet-base_*.deb build/wordnet
    python -m workshop.wordnet build/wordnet/usr/share/wordnet [--tasks tasks]

A line of `text/wordnet.txt.gz` has one of these forms, with n, v, a or r for the part of speech; synsets are numbered
in their order:

    v stir 1 71034,5,1 71035,,2       a lemma, whether it is common, its senses: synset, occurrences, valence
    synset 12 14,70                   the synsets that are more general or entailed, and those that mean nearly the same
    irregular v stirred stir          a form and its lemma

A line of `text/terms.txt.gz` is a noun and the words that stand before it in terms of two words: knife bread butter.
Proper names, abbreviations and longer terms are left out, and the synsets that only they lead to.
A line of `negatives/quality/sentences.txt.gz` is an example in a gloss.
"""

import gzip
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import typer

FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
OBJECT_FRAMES = {8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 24, 25, 30, 31}  # "Somebody ----s something", …
SHARE = 0.05  # of a word's occurrences in the tagged texts, from which a part of speech of it is a common one
CONCRETE = {"06", "13"}  # the files of the lexicographers for artefacts and food
OFFENSIVE = {"n06717170", "n06718862", "n07124340"}  # synsets of usage: disparagement, ethnic slur, obscenity


@dataclass
class Data:
    """What the files data.* say; a synset is named by its part of speech and offset."""

    up: dict[str, list[str]] = field(default_factory=dict)  # more general and entailed synsets
    near: dict[str, list[str]] = field(default_factory=dict)
    valences: Counter[tuple[str, str]] = field(default_factory=Counter)  # of a synset and word: 1 object, 2 alone
    words: set[tuple[str, str]] = field(default_factory=set)  # as they are written
    mentions: Counter[str] = field(default_factory=Counter)  # glosses and compounds that have a word
    concrete: set[str] = field(default_factory=set)
    offensive: set[str] = field(default_factory=set)

    def read(self, pos: str, line: str) -> None:
        """Read a line, see the manual page wndb."""
        head, _, gloss = line.partition("|")
        fields = head.split()
        synset, end = pos + fields[0], 4 + 2 * int(fields[3], 16)
        words = [re.sub(r"\(.*\)", "", word) for word in fields[4:end:2]]
        after = end + 1 + 4 * int(fields[end])
        pointers = list(zip(*(fields[end + 1 + i : after : 4] for i in range(3)), strict=True))
        self.words |= {(pos, word) for word in words}
        self.mentions.update({*re.findall("[a-z]+", gloss), *(x for w in words for x in re.split("[_-]", w)[1:])})
        self.up[synset] = [kind + offset for symbol, offset, kind in pointers if symbol in {"@", "*"}]
        near = {"&", "$", "\\"} if pos == "r" else {"&", "$"}
        self.near[synset] = [kind + offset for symbol, offset, kind in pointers if symbol in near]
        self.concrete |= {synset} if fields[1] in CONCRETE else set()
        self.offensive |= {synset} if OFFENSIVE & {kind + offset for _, offset, kind in pointers} else set()
        frames = fields[after + 1 :] if pos == "v" else []
        for frame, which in zip(frames[1::3], frames[2::3], strict=True):
            for word in words if which == "00" else [words[int(which, 16) - 1]]:
                self.valences[synset, word] |= 1 if int(frame) in OBJECT_FRAMES else 2


def lines(folder: Path) -> tuple[list[str], list[str]]:
    data, senses = Data(), dict[tuple[str, str], list[str]]()
    for pos, name in FILES.items():
        for line in (folder / f"data.{name}").read_text().splitlines():
            if not line.startswith(" "):
                data.read(pos, line)
        for fields in map(str.split, (folder / f"index.{name}").read_text().splitlines()):
            if re.fullmatch("[a-z]{2,}", fields[0]) and (pos, fields[0]) in data.words:
                senses[pos, fields[0]] = [pos + offset for offset in fields[-int(fields[2]) :]]
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for key, sense, count in map(str.split, (folder / "cntlist.rev").read_text().splitlines()):
        word, _, kind = key.partition("%")
        counts["nvara"[int(kind[0]) - 1], word][int(sense)] += int(count)
    numbers = numbered(data, [synset for several in senses.values() for synset in several])
    text = []
    for (pos, word), synsets in senses.items():
        of_word, total = counts[pos, word], sum(counts[other, word].total() for other in FILES)
        least = 1 if pos == "v" or data.concrete.intersection(synsets) else 2
        is_common = of_word.total() > 0 or data.mentions[word] >= least
        is_common &= of_word.total() + 1 >= SHARE * (total + 1) and synsets[0] not in data.offensive
        values = [(numbers[s], of_word[i] or "", data.valences[s, word] or "") for i, s in enumerate(synsets, 1)]
        text.append(f"{pos} {word} {int(is_common)} " + " ".join(f"{n},{c},{v}".rstrip(",") for n, c, v in values))
    for synset in numbers:
        up, near = ([str(numbers[s]) for s in others[synset] if s in numbers] for others in (data.up, data.near))
        text.append(f"synset {' '.join(up)},{' '.join(near)}")
    for pos, name in FILES.items():
        for form, *lemmas in map(str.split, (folder / f"{name}.exc").read_text().splitlines()):
            text += [f"irregular {pos} {form} {w}" for w in lemmas if (pos, w) in senses and form.isalpha()]
    common = {line.split(" ")[1] for line in text if line[0] in "na" and line.split(" ")[2] == "1"}
    return text, terms(data, common)


def terms(data: Data, common: set[str]) -> list[str]:
    """Return the nouns with what stands before them in terms of two common words."""
    modifiers = defaultdict[str, list[str]](list)
    for pos, term in sorted(data.words):
        modifier, _, noun = term.partition("_")
        if pos == "n" and modifier in common and noun in common:
            modifiers[noun].append(modifier)
    return [f"{noun} {' '.join(several)}" for noun, several in modifiers.items()]


def numbered(data: Data, synsets: list[str]) -> dict[str, int]:
    """Return the numbers of synsets and of all synsets above them."""
    found = set[str]()
    while synsets:
        if (synset := synsets.pop()) not in found:
            found.add(synset)
            synsets += data.up[synset]
    return {synset: number for number, synset in enumerate(sorted(found))}


def sentences(folder: Path) -> list[str]:
    """Return the examples of at least three words in the glosses of all synsets, each once."""
    lines = [line for name in FILES.values() for line in (folder / f"data.{name}").read_text().splitlines()]
    glosses = [line.partition(" | ")[2] for line in lines if not line.startswith("  ")]
    found = [" ".join(text.split()) for gloss in glosses for text in re.findall(r'"([^"]+)"', gloss)]
    return [text for text in dict.fromkeys(found) if len(text.split()) >= 3]


def main(wordnet: Path, tasks: Path = Path("tasks")) -> None:
    words, terms = lines(wordnet)
    files = {"text/wordnet": words, "text/terms": terms, "negatives/quality/sentences": [*sentences(wordnet), ""]}
    for name, several in files.items():
        (tasks / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(several).encode(), mtime=0))


if __name__ == "__main__":
    typer.run(main)
