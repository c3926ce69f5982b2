"""Write synthetic captions with gold trees, and convert a treebank to CLEAR-style trees.

A web treebank has hardly any captions such as "person opening a door.": lower case, no articles, a gerund as the main
verb. A tagger that is trained on it alone reads the gerund as a noun. These sentences have the constructions of
captions and words of the treebank, so that they contain no sentence of a data set.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import yaml
from spacy.tokens import Doc
from spacy.vocab import Vocab

from workshop.scenes.world import third_person

WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
RELATIONS: dict[str, str] = WORDS["relations"]  # Universal Dependencies -> CLEAR
NOMINAL = ("NOUN", "PROPN", "PRON", "NUM", "DET", "SYM", "X")
COMPLEMENTS = {**dict.fromkeys(NOMINAL, "attr"), "ADJ": "acomp", "ADV": "advmod"}  # of a copula
CLAUSAL = set(WORDS["clausal"].split())


@dataclass
class Word:
    """A CoNLL-U line; `head` is the index of the head in the sentence; the root is its own head."""

    text: str
    lemma: str
    pos: str
    tag: str
    morph: str
    head: int
    dep: str
    space_after: bool


def read_conllu(path: Path) -> Iterator[list[Word]]:
    """Yield the sentences of a CoNLL-U file without multi-word ranges and empty nodes."""
    words: list[Word] = []
    for line in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        columns = line.split("\t")
        if len(columns) == 10 and columns[0].isdigit():
            head = int(columns[6]) - 1
            head = len(words) if head < 0 else head
            words.append(Word(*columns[1:6], head, columns[7], "SpaceAfter=No" not in columns[9]))
        elif not line.strip() and words:
            yield words
            words = []


def to_clear_style(words: list[Word]) -> list[Word]:
    """Return the sentence with prepositions, copulas and names as heads, and CLEAR's relation names."""
    words = [Word(**vars(word)) for word in words]
    for word in words:
        word.dep = RELATIONS.get(word.dep) or RELATIONS.get(word.dep.split(":")[0], "dep")
    _head_names_last(words)
    for word in words:
        if word.dep == "cc" and words[word.head].dep == "conj":
            word.head = words[word.head].head
    _lift_copulas(words)
    _lift_prepositions(words)
    for i, word in enumerate(words):
        if word.tag == "TO" and word.dep == "mark":
            word.dep = "aux"
        elif word.dep == "advmod" and word.lemma in ("not", "n't"):
            word.dep = "neg"
        if word.head == i:
            word.dep = "ROOT"
    return words


def _children(words: list[Word], head: int) -> list[int]:
    return [i for i, word in enumerate(words) if word.head == head and i != head]


def _replace(words: list[Word], old: int, new: int) -> None:
    """Attach `new` in the place of `old`, and `old` to `new`, still without a relation."""
    words[new].head = new if words[old].head == old else words[old].head
    words[new].dep = words[old].dep
    words[old].head = new


def _head_names_last(words: list[Word]) -> None:
    for i in range(len(words)):
        parts = [c for c in _children(words, i) if words[c].dep == "compound" and c > i]
        if parts and words[i].pos == "PROPN":
            others = [c for c in _children(words, i) if c != parts[-1]]
            _replace(words, i, parts[-1])
            words[i].dep = "compound"
            for child in others:
                words[child].head = parts[-1]


def _lift_copulas(words: list[Word]) -> None:
    for i, word in enumerate(words):
        if word.dep != "cop" or words[word.head].dep == "cop":
            continue
        predicate = word.head
        children = [c for c in _children(words, predicate) if c != i]
        _replace(words, predicate, i)
        words[predicate].dep = COMPLEMENTS.get(words[predicate].pos, "ccomp")
        if any(words[c].dep == "case" for c in children):
            words[predicate].dep = "npadvmod"  # becomes prep + pobj below
        for child in children:
            clausal = words[child].dep in CLAUSAL or (words[child].dep == "advmod" and child < i)
            if clausal and not (words[child].dep == "punct" and child > predicate and words[predicate].pos == "X"):
                words[child].head = i


def _lift_prepositions(words: list[Word]) -> None:
    for i in range(len(words)):
        cases = [c for c in _children(words, i) if words[c].dep == "case" and words[c].tag != "POS"]
        before = [c for c in cases if c < i]
        if not before:
            for case in cases:
                words[case].dep = "prep"  # "the whole day through"
            continue
        first = inner = before[0]
        _replace(words, i, first)
        words[first].dep = "ROOT" if words[first].head == first else "prep"
        for case in before[1:]:
            words[case].head, words[case].dep = inner, "prep"
            inner = case
        words[i].head, words[i].dep = inner, "pobj"
        for child in _children(words, first):
            if words[child].dep in ("advmod", "fixed") and words[child].pos == "ADP":
                words[child].dep = "prep"


def to_doc(vocab: Vocab, words: list[Word], *, lower: bool = False) -> Doc:
    texts, lemmas, pos, tags, morphs, heads, deps, spaces = map(list, zip(*map(astuple, words), strict=True))
    texts = [text.lower() for text in texts] if lower else texts
    morphs = ["" if morph == "_" else morph for morph in morphs]
    return Doc(vocab, texts, spaces, tags=tags, pos=pos, morphs=morphs, lemmas=lemmas, heads=heads, deps=deps)


AGENTS = ("person", "man", "woman", "boy", "girl", "guy", "child", "dog", "player", "lady")
PARTICLES = ("up", "down", "off", "out", "away", "back", "over", "around")
PREPOSITIONS = tuple(WORDS["prepositions"].split())
AUXILIARIES = {"be", "have", "do"}
START = ("start", "begin", "continue", "stop", "keep", "finish")
DETERMINERS = (("a", "DT"), ("the", "DT"), ("some", "DT"), ("their", "PRP$"), ("his", "PRP$"), ("her", "PRP$"))


class TreebankLexicon:
    """Words of a treebank, and nouns, adjectives and verbs of a dictionary, because a web treebank lacks common words.

    `common` maps "noun", "adj" and "verb" to lemmas; `irregular` maps a verb's irregular forms to its lemmas.
    """

    def __init__(
        self, sentences: Iterable[list[Word]], common: dict[str, set[str]], irregular: dict[str, list[str]]
    ) -> None:
        forms: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        morphs: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        transitive: Counter[str] = Counter()
        for words in sentences:
            for word in words:
                text = word.text.lower()
                morphs[text, word.tag][word.morph] += 1
                morphs["", word.tag][word.morph] += 1
                if not text.isalpha() or len(text) < 2:
                    continue
                if word.pos == "VERB":
                    forms[word.lemma][word.tag][text] += 1
                elif word.tag in ("NN", "NNS", "JJ", "RB") and word.pos in ("NOUN", "ADJ", "ADV"):
                    counts[word.tag][text, word.lemma] += 1
                if word.dep == "obj" and words[word.head].pos == "VERB":
                    transitive[words[word.head].lemma] += 1
        self._morphs = {key: seen.most_common(1)[0][0] for key, seen in morphs.items()}
        self.verbs = {
            lemma: {tag: seen.most_common(1)[0][0] for tag, seen in tags.items()}
            for lemma, tags in forms.items()
            if {"VB", "VBG"} <= tags.keys() and lemma not in AUXILIARIES and lemma.isalpha()
        }
        for lemma, tags in self.verbs.items():
            tags.setdefault("VBZ", third_person(lemma))
            tags.setdefault("VBD", tags.get("VBN", lemma))
            tags.setdefault("VBN", tags["VBD"])
            tags["VBP"] = tags["VB"]
        self.transitive = [verb for verb in self.verbs if transitive[verb]]
        self.words = {
            tag: [text for (text, _), n in seen.items() for _ in range(min(n, 4))] for tag, seen in counts.items()
        }
        self.words["RB"] = [text for text in self.words["RB"] if text.endswith("ly")]
        self.words["NN"] += sorted(common["noun"])
        self.words["NNS"] += [third_person(noun) for noun in sorted(common["noun"])]
        self.words["JJ"] += sorted(common["adj"])
        irregulars: dict[str, list[str]] = defaultdict(list)
        for form, (lemma, *_) in irregular.items():
            irregulars[lemma].append(form)
        for lemma in sorted(common["verb"] - self.verbs.keys() - AUXILIARIES):
            gerunds = [form for form in irregulars[lemma] if form.endswith("ing")] or [_regular(lemma, "ing")]
            pasts = [form for form in irregulars[lemma] if not form.endswith("ing")] or [_regular(lemma, "ed")]
            of_lemma = (lemma, lemma, third_person(lemma), gerunds[0], pasts[0], pasts[-1])
            self.verbs[lemma] = dict(zip(("VB", "VBP", "VBZ", "VBG", "VBD", "VBN"), of_lemma, strict=True))
            self.transitive.append(lemma)
        self.intransitive = list(self.verbs)

    def morph(self, text: str, tag: str) -> str:
        """Return the most common features of a word with this fine tag."""
        return self._morphs.get((text, tag)) or self._morphs.get(("", tag), "_")


def _regular(lemma: str, ending: str) -> str:
    """Return the regular past or gerund: close-d, stopp-ed, carri-ed."""
    if lemma.endswith("e") and not lemma.endswith(("ee", "ye", "oe")):
        return lemma[:-1] + ending
    if ending == "ed" and lemma.endswith("y") and lemma[-2:-1] not in "aeiou":
        return lemma[:-1] + "ied"
    ends = lemma[-1] not in "aeiouwxy" and lemma[-2:-1] in "aeiou" and lemma[-3:-2] not in "aeiou"
    return lemma + lemma[-1] * (ends and len(lemma) <= 4) + ending


class Sentence:
    """An incomplete sentence; `add` appends a word, whose head may be set later."""

    determiners = 0.78  # share of the noun phrases with one

    def __init__(self, lexicon: TreebankLexicon, chance: random.Random) -> None:
        self.lexicon, self.chance, self.words = lexicon, chance, list[Word]()

    def add(self, text: str, tag: str, pos: str, head: int, dep: str, lemma: str = "") -> int:
        morph = self.lexicon.morph(text, tag)
        self.words.append(Word(text, lemma or text, pos, tag, morph, head, dep, True))
        return len(self.words) - 1

    def attach(self, parts: Iterable[int], head: int) -> None:
        for part in parts:
            self.words[part].head = head

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def noun_phrase(self, head: int, dep: str) -> int:
        """Add (det) (adj) (noun) noun (of noun); return the index of the head noun."""
        start = len(self.words)
        if self.maybe(0.06):
            return self.add(self.chance.choice(("it", "them", "him")), "PRP", "PRON", head, dep)
        if self.maybe(0.05):
            return self.add("something", "NN", "PRON", head, dep)
        if self.maybe(self.determiners):
            text, tag = self.chance.choice(DETERMINERS[:2] * 4 + DETERMINERS)
            self.add(text, tag, "DET" if tag == "DT" else "PRON", -1, "det" if tag == "DT" else "poss")
        if self.maybe(0.18):
            self.add(*self._open_class("JJ", "ADJ"), head=-1, dep="amod")
        if self.maybe(0.22):
            self.add(*self._open_class("NN", "NOUN"), head=-1, dep="compound")
        tag = "NNS" if self.maybe(0.2) else "NN"
        noun = self.add(*self._open_class(tag, "NOUN"), head=head, dep=dep)
        self.attach(range(start, noun), noun)
        if self.maybe(0.06):
            of = self.add("of", "IN", "ADP", noun, "prep")
            self.add(*self._open_class("NN", "NOUN"), head=of, dep="pobj")
        return noun

    def _open_class(self, tag: str, pos: str) -> tuple[str, str, str]:
        return self.chance.choice(self.lexicon.words[tag]), tag, pos

    def preposition(self, head: int) -> None:
        prep = self.add(self.chance.choice(PREPOSITIONS), "IN", "ADP", head, "prep")
        if self.words[prep].text == "next":
            self.words[prep] = Word("next", "next", "ADV", "RB", "_", head, "advmod", True)
            prep = self.add("to", "IN", "ADP", prep, "prep")
        self.noun_phrase(prep, "pobj")

    def verb(self, tag: str, head: int, dep: str, *, objects: float = 0.55) -> int:
        """Add a verb with object, particle, prepositional phrases and manner; return its index."""
        transitive = self.maybe(objects)
        lemma = self.chance.choice(self.lexicon.transitive if transitive else self.lexicon.intransitive)
        verb = self.add(self.lexicon.verbs[lemma][tag], tag, "VERB", head, dep, lemma)
        particle = self.chance.choice(PARTICLES) if self.maybe(0.22) else ""
        late = transitive and self.maybe(0.4)
        if particle and not late:
            self.add(particle, "RP", "ADP", verb, "prt")
        if transitive:
            self.noun_phrase(verb, "dobj")
        if particle and late:
            self.add(particle, "RP", "ADP", verb, "prt")
        for probability in (0.35, 0.08):
            if self.maybe(probability if transitive else 1.6 * probability):
                self.preposition(verb)
        if self.maybe(0.08):
            self.add(*self._open_class("RB", "ADV"), head=verb, dep="advmod")
        return verb

    def subject(self) -> list[int]:
        """Add a man | person | one person | person they | a smiling woman; return the indices of its heads."""
        style = self.chance.random()
        agent = self.chance.choice(("person",) * 6 + AGENTS)
        if style < 0.12:
            return [self.add(self.chance.choice(("he", "she", "they")), "PRP", "PRON", -1, "nsubj")]
        if style < 0.22:
            noun = self.add(agent, "NN", "NOUN", -1, "dep")
            return [noun, self.add(self.chance.choice(("he", "she", "they", "they")), "PRP", "PRON", -1, "nsubj")]
        if style < 0.60:
            self.add(self.chance.choice(("a", "the", "another", "a", "the")), "DT", "DET", -1, "det")
        elif style < 0.63:
            self.add("one", "CD", "NUM", -1, "nummod")
        elif style < 0.66:
            self.add(self.chance.choice(("second", "other", "same", "young", "first")), "JJ", "ADJ", -1, "amod")
        if self.maybe(0.04):
            lemma = self.chance.choice(self.lexicon.intransitive)
            self.add(self.lexicon.verbs[lemma]["VBG"], "VBG", "VERB", -1, "amod", lemma)
        noun = self.add(agent, "NN", "NOUN", -1, "nsubj")
        self.attach(range(noun), noun)
        return [noun]

    def clause(self) -> None:
        """Add a caption: a subject, a main verb of any form, at most one more verb, a full stop."""
        subject = self.subject()
        form = self.chance.random()
        if form < 0.28:  # bare gerund: "person opening a door"
            root = self.verb("VBG", -1, "ROOT")
        elif form < 0.42:  # progressive
            aux = self.add(self.chance.choice(("is", "is", "are", "was")), "VBZ", "AUX", -1, "aux", "be")
            self.words[aux].tag = {"is": "VBZ", "are": "VBP", "was": "VBD"}[self.words[aux].text]
            root = self.words[aux].head = self.verb("VBG", -1, "ROOT")
        elif form < 0.52:  # "person starts laughing", "person begin to open a door"
            lemma = self.chance.choice([verb for verb in START if verb in self.lexicon.verbs])
            tag = self.chance.choice(("VBZ", "VBZ", "VBP", "VBD"))
            root = self.add(self.lexicon.verbs[lemma][tag], tag, "VERB", -1, "ROOT", lemma)
            self._complement(root, gerund=self.maybe(0.5))
        elif form < 0.57:  # "a person is in the kitchen"
            root = self.add("is", "VBZ", "AUX", -1, "ROOT", "be")
            self.preposition(root)
        else:  # captions often drop the ending: "person open a door"
            root = self.verb(self.chance.choice(("VBZ", "VBZ", "VBZ", "VBP", "VBP", "VBD")), -1, "ROOT")
        self.attach([*subject, root], root)
        self._second_verb(root)
        self._full_stop(root, 0.9)

    def _full_stop(self, root: int, probability: float) -> None:
        if self.maybe(probability):
            self.words[-1].space_after = False
            self.add(".", ".", "PUNCT", root, "punct")

    def _complement(self, head: int, *, gerund: bool, dep: str = "xcomp") -> None:
        if gerund:
            self.verb("VBG", head, dep)
            return
        to = self.add("to", "TO", "PART", -1, "aux")
        self.words[to].head = self.verb("VB", head, dep)

    def _second_verb(self, root: int) -> None:
        style = self.chance.random()
        if style < 0.14:  # "... holding a bag"
            self._complement(root, gerund=True, dep="advcl")
        elif style < 0.18:  # "... to read a book"
            self._complement(root, gerund=False, dep="advcl")
        elif style < 0.24:  # "... and closes the door"
            self.add(self.chance.choice(("and", "then")), "CC", "CCONJ", root, "cc")
            self.verb(self.words[root].tag, root, "conj")
        elif style < 0.27:  # "... as they close the door", "... while eating"
            mark = self.add(self.chance.choice(("as", "while")), "IN", "SCONJ", -1, "mark")
            heads = [mark]
            if self.words[mark].text == "as":
                heads.append(self.add(self.chance.choice(("he", "she", "they")), "PRP", "PRON", -1, "nsubj"))
            self.attach(heads, self.verb("VBZ" if len(heads) > 1 else "VBG", root, "advcl"))


def caption_trees(lexicon: TreebankLexicon, count: int, seed: int = 0) -> list[list[Word]]:
    chance = random.Random(seed)
    captions = [Sentence(lexicon, chance) for _ in range(count)]
    for sentence in captions:
        sentence.clause()
    return [sentence.words for sentence in captions]
