"""Universal Dependencies to the trees that spaCy's English code expects.

UD attaches content words to content words ("sat -obl-> table -case-> at", "tall" as the root of "he is
tall"). spaCy's `noun_chunks` and most code written for its English pipelines expect the older CLEAR style
(Choi & Palmer 2012): the preposition governs its object, the copula governs its predicate. The conversion
only moves heads and renames relations; tokens, tags and projectivity are the treebank's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spacy.tokens import Doc
from spacy.vocab import Vocab

RELATIONS = {
    "root": "ROOT",
    "nsubj": "nsubj",
    "nsubj:pass": "nsubjpass",
    "nsubj:outer": "nsubj",
    "csubj": "csubj",
    "csubj:pass": "csubjpass",
    "csubj:outer": "csubj",
    "obj": "dobj",
    "iobj": "dative",
    "obl": "npadvmod",
    "nmod": "npadvmod",
    "nmod:poss": "poss",
    "xcomp": "xcomp",
    "ccomp": "ccomp",
    "advcl": "advcl",
    "advcl:relcl": "advcl",
    "acl": "acl",
    "acl:relcl": "relcl",
    "amod": "amod",
    "advmod": "advmod",
    "det": "det",
    "det:predet": "predet",
    "nummod": "nummod",
    "compound": "compound",
    "compound:prt": "prt",
    "flat": "compound",
    "cc": "cc",
    "cc:preconj": "preconj",
    "conj": "conj",
    "mark": "mark",
    "aux": "aux",
    "aux:pass": "auxpass",
    "cop": "cop",
    "case": "case",
    "expl": "expl",
    "discourse": "intj",
    "vocative": "npadvmod",
    "parataxis": "parataxis",
    "appos": "appos",
    "fixed": "advmod",
    "punct": "punct",
}
NOMINAL = {"NOUN", "PROPN", "PRON", "NUM", "DET", "SYM", "X"}
CLAUSAL = {
    "nsubj",
    "nsubjpass",
    "csubj",
    "csubjpass",
    "aux",
    "auxpass",
    "mark",
    "expl",
    "punct",
    "cc",
    "conj",
    "advcl",
    "parataxis",
    "intj",
    "dislocated",
    "npadvmod",
}


@dataclass
class Word:
    """One CoNLL-U line; `head` is the index of the head in the sentence, its own index at the root."""

    text: str
    lemma: str
    pos: str
    tag: str
    morph: str
    head: int
    dep: str
    space_after: bool


def read_conllu(path: Path) -> Iterator[list[Word]]:
    """Yield the sentences of a CoNLL-U file, multi-word ranges and empty nodes left out."""
    words: list[Word] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            columns = line.rstrip("\n").split("\t")
            if len(columns) == 10 and columns[0].isdigit():
                head = int(columns[6]) - 1
                words.append(
                    Word(
                        text=columns[1],
                        lemma=columns[2],
                        pos=columns[3],
                        tag=columns[4],
                        morph=columns[5],
                        head=len(words) if head < 0 else head,
                        dep=columns[7],
                        space_after="SpaceAfter=No" not in columns[9],
                    )
                )
            elif not line.strip() and words:
                yield words
                words = []
    if words:
        yield words


def to_clear_style(words: list[Word]) -> list[Word]:
    """Return the sentence with prepositions, copulas and names as heads, and CLEAR's relation names."""
    words = [Word(**vars(word)) for word in words]
    for word in words:
        word.dep = RELATIONS.get(word.dep) or RELATIONS.get(word.dep.split(":")[0], "dep")
    _head_names_last(words)
    _attach_conjunctions_left(words)
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
    """Put `new` where `old` hangs; `old` becomes its child with no relation yet."""
    root = words[old].head == old
    words[new].head = new if root else words[old].head
    words[new].dep = words[old].dep
    words[old].head = new


def _head_names_last(words: list[Word]) -> None:
    for i in range(len(words)):
        parts = [c for c in _children(words, i) if words[c].dep == "compound" and c > i]
        if not parts or words[i].pos != "PROPN":
            continue
        last = parts[-1]
        others = [c for c in _children(words, i) if c != last]
        _replace(words, i, last)
        words[i].dep = "compound"
        for child in others:
            words[child].head = last


def _attach_conjunctions_left(words: list[Word]) -> None:
    for word in words:
        if word.dep == "cc" and words[word.head].dep == "conj":
            word.head = words[word.head].head


def _lift_copulas(words: list[Word]) -> None:
    for i, word in enumerate(words):
        if word.dep != "cop" or words[word.head].dep == "cop":
            continue
        predicate = word.head
        children = [c for c in _children(words, predicate) if c != i]
        _replace(words, predicate, i)
        pos = words[predicate].pos
        if any(words[c].dep == "case" for c in children):
            words[predicate].dep = "npadvmod"  # becomes prep + pobj below
        elif pos in NOMINAL:
            words[predicate].dep = "attr"
        else:
            words[predicate].dep = {"ADJ": "acomp", "ADV": "advmod"}.get(pos, "ccomp")
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
        first, *rest = before
        _replace(words, i, first)
        words[first].dep = "ROOT" if words[first].head == first else "prep"
        inner = first
        for case in rest:
            words[case].head, words[case].dep = inner, "prep"
            inner = case
        words[i].head, words[i].dep = inner, "pobj"
        for child in _children(words, first):
            if words[child].dep in ("advmod", "fixed") and words[child].pos == "ADP":
                words[child].dep = "prep"


def to_doc(vocab: Vocab, words: list[Word], *, lower: bool = False) -> Doc:
    """Build the gold `Doc` of one sentence."""
    return Doc(
        vocab,
        words=[word.text.lower() if lower else word.text for word in words],
        spaces=[word.space_after for word in words],
        lemmas=[word.lemma for word in words],
        pos=[word.pos for word in words],
        tags=[word.tag for word in words],
        morphs=["" if word.morph == "_" else word.morph for word in words],
        heads=[word.head for word in words],
        deps=[word.dep for word in words],
    )
