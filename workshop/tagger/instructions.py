"""Write synthetic instructions with gold trees, and statements that begin with a noun as instructions do with a verb.

A web treebank has few imperatives: a tagger trained on it alone reads the verb of "Simmer the sauce." as a noun. The
statements ("Water boils in a pot", "Salt is added.") keep it from reading each first word as a verb.
"""

import random

from workshop.tagger.captions import Sentence, TreebankLexicon, Word

IMPERATIVE = "Mood=Imp|VerbForm=Fin"
NUMBERS = ("two", "three", "four", "five", "six", "eight", "ten", "twenty", "thirty", "2", "3", "5", "10", "20")


class _Instruction(Sentence):
    determiners = 0.65

    def imperative(self) -> None:
        """Add "Simmer the sauce for ten minutes.", "now mix flour and eggs"."""
        opening = []
        if self.maybe(0.1):
            order = ("then", "now", "next", "first")
            word = self.chance.choice(order if self.maybe(0.6) else self.lexicon.words["RB"])
            opening = [self.add(word, "RB", "ADV", -1, "advmod")]
        root = self._command(-1, "ROOT")
        self.attach([*opening, root], root)
        style = self.chance.random()
        if style < 0.16:  # "... and put it in a pan"
            self.add("and", "CC", "CCONJ", root, "cc")
            self._command(root, "conj")
        elif style < 0.26:  # "... for ten minutes"
            preposition = self.add(self.chance.choice(("for", "after", "into")), "IN", "ADP", root, "prep")
            self._number_and_noun(preposition, "pobj")
        elif style < 0.34:
            self._until(root)
        else:
            self._second_verb(root)
        self._finish(root)

    def statement(self) -> None:
        """Add "Water boils in a pot", "Slices of bread are served."."""
        tag, be = self.chance.choice((("NN", "is"), ("NN", "is"), ("NNS", "are")))
        if compound := self.maybe(0.2):
            self.add(*self._open_class("NN", "NOUN"), head=1, dep="compound")
        subject = self.add(*self._open_class(tag, "NOUN"), head=-1, dep="nsubj")
        heads = [subject]
        if not compound and self.maybe(0.15):
            self.noun_phrase(self.add("of", "IN", "ADP", subject, "prep"), "pobj")
        present = "VBZ" if tag == "NN" else "VBP"
        form = self.chance.random()
        if form < 0.5:
            root = self.verb(present, -1, "ROOT", objects=0.4)
        else:
            passive = form < 0.85
            heads.append(self.add(be, present, "AUX", -1, "auxpass" if passive else "aux", "be"))
            root = self.verb("VBN" if passive else "VBG", -1, "ROOT", objects=0.0 if passive else 0.55)
            self.words[subject].dep = "nsubjpass" if passive else "nsubj"
        self.attach([*heads, root], root)
        self._finish(root)

    def _command(self, head: int, dep: str) -> int:
        """Add a verb in the imperative with what follows it; return its index."""
        verb = self.verb("VB", head, dep, objects=0.85)
        self.words[verb].morph = IMPERATIVE
        return verb

    def noun_phrase(self, head: int, dep: str) -> int:
        """Add a noun phrase as in a caption, "two eggs" or "flour and an egg"; return the index of its first noun."""
        noun = self._number_and_noun(head, dep) if self.maybe(0.05) else super().noun_phrase(head, dep)
        if dep != "conj" and self.maybe(0.08):
            self.add("and", "CC", "CCONJ", noun, "cc")
            self.noun_phrase(noun, "conj")
        return noun

    def _number_and_noun(self, head: int, dep: str) -> int:
        number = self.add(self.chance.choice(NUMBERS), "CD", "NUM", -1, "nummod")
        self.words[number].head = self.add(*self._open_class("NNS", "NOUN"), head=head, dep=dep)
        return self.words[number].head

    def _until(self, head: int) -> None:
        """Add "until it is crisp"."""
        mark = self.add("until", "IN", "SCONJ", -1, "mark")
        subject = self.add(*self.chance.choice((("it", "PRP", "PRON"), ("they", "PRP", "PRON"))), head=-1, dep="nsubj")
        if self.maybe(0.6):
            self.words.pop()
            self.add("the", "DT", "DET", subject + 1, "det")
            subject = self.add(*self._open_class("NN", "NOUN"), head=-1, dep="nsubj")
        be = ("are", "VBP") if self.words[subject].text == "they" else ("is", "VBZ")
        verb = self.add(*be, "AUX", head, "advcl", "be")
        self.attach([mark, subject], verb)
        self.add(*self._open_class("JJ", "ADJ"), head=verb, dep="acomp")

    def _finish(self, root: int) -> None:
        """Begin most sentences with a capital letter and end most with a full stop."""
        if self.maybe(0.65):
            self.words[0].text = self.words[0].text.capitalize()
        self._full_stop(root, 0.65)


def instruction_trees(lexicon: TreebankLexicon, count: int, seed: int = 0) -> list[list[Word]]:
    chance = random.Random(seed)
    sentences = [_Instruction(lexicon, chance) for _ in range(count)]
    for i, sentence in enumerate(sentences):
        (sentence.imperative if i % 3 else sentence.statement)()
    return [sentence.words for sentence in sentences]
