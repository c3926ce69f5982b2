"""The treebank's conversion: prepositions, copulas and names as heads, and always one tree."""

import random
from pathlib import Path

import pytest
import spacy

from penumbra.tasks.sample.tagger.train import main
from penumbra.tasks.sample.tagger.treebank import Word, read_conllu, to_clear_style, to_doc

pytestmark = pytest.mark.slow

# id, form, lemma, UPOS, tag, head, relation; features and the rest are added below
SENTENCES = {
    "He sat at the old table.": """
        1 He he PRON PRP 2 nsubj
        2 sat sit VERB VBD 0 root
        3 at at ADP IN 6 case
        4 the the DET DT 6 det
        5 old old ADJ JJ 6 amod
        6 table table NOUN NN 2 obl SpaceAfter=No
        7 . . PUNCT . 2 punct""",
    "The man is not tall.": """
        1 The the DET DT 2 det
        2 man man NOUN NN 5 nsubj
        3 is be AUX VBZ 5 cop
        4 not not PART RB 5 advmod
        5 tall tall ADJ JJ 0 root SpaceAfter=No
        6 . . PUNCT . 5 punct""",
    "She is in the kitchen.": """
        1 She she PRON PRP 5 nsubj
        2 is be AUX VBZ 5 cop
        3 in in ADP IN 5 case
        4 the the DET DT 5 det
        5 kitchen kitchen NOUN NN 0 root SpaceAfter=No
        6 . . PUNCT . 5 punct""",
    "John Paul Smith wants to run": """
        1 John John PROPN NNP 4 nsubj
        2 Paul Paul PROPN NNP 1 flat
        3 Smith Smith PROPN NNP 1 flat
        4 wants want VERB VBZ 0 root
        5 to to PART TO 6 mark
        6 run run VERB VB 4 xcomp""",
    "He got out of the car": """
        1 He he PRON PRP 2 nsubj
        2 got get VERB VBD 0 root
        3 out out ADP IN 6 case
        4 of of ADP IN 6 case
        5 the the DET DT 6 det
        6 car car NOUN NN 2 obl""",
    "men eat and women drink": """
        1 men man NOUN NNS 2 nsubj
        2 eat eat VERB VBP 0 root
        3 and and CCONJ CC 5 cc
        4 women woman NOUN NNS 5 nsubj
        5 drink drink VERB VBP 2 conj""",
    "the dog's bone": """
        1 the the DET DT 2 det
        2 dog dog NOUN NN 4 nmod:poss SpaceAfter=No
        3 's 's PART POS 2 case
        4 bone bone NOUN NN 0 root""",
    "In Paris": """
        1 In in ADP IN 2 case
        2 Paris Paris PROPN NNP 0 root""",
}


def conllu(sentence: str) -> str:
    rows = []
    for line in SENTENCES[sentence].strip().splitlines():
        number, form, lemma, pos, tag, head, relation, *rest = line.split()
        misc = rest[0] if rest else "_"
        rows.append("\t".join([number, form, lemma, pos, tag, "_", head, relation, "_", misc]))
    return f"# text = {sentence}\n" + "\n".join(rows) + "\n"


@pytest.fixture
def treebank(tmp_path: Path) -> dict[str, list[Word]]:
    """The sentences above as they are read from one file, by their text."""
    path = tmp_path / "own.conllu"
    path.write_text("\n".join(map(conllu, SENTENCES)))
    return dict(zip(SENTENCES, read_conllu(path), strict=True))


def arcs(words: list[Word]) -> dict[str, tuple[str, str]]:
    """Each word's relation and head."""
    return {word.text: (word.dep, words[word.head].text) for word in words}


def fault_of(words: list[Word]) -> str:
    """Why the arcs are no tree with one root, or ''."""
    roots = [i for i, word in enumerate(words) if word.head == i]
    if len(roots) != 1 or [i for i, word in enumerate(words) if word.dep == "ROOT"] != roots:
        return f"roots {roots}"
    for start in range(len(words)):
        place = start
        for _ in words:
            place = words[place].head
        if place != roots[0]:
            return f"word {start} is not below the root"
    return ""


def test_prepositions_govern_their_objects(treebank: dict[str, list[Word]]) -> None:
    assert arcs(to_clear_style(treebank["He sat at the old table."])) == {
        "He": ("nsubj", "sat"),
        "sat": ("ROOT", "sat"),
        "at": ("prep", "sat"),
        "the": ("det", "table"),
        "old": ("amod", "table"),
        "table": ("pobj", "at"),
        ".": ("punct", "sat"),
    }


def test_prepositions_follow_each_other(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["He got out of the car"]))
    assert found["out"] == ("prep", "got")
    assert found["of"] == ("prep", "out")
    assert found["car"] == ("pobj", "of")
    assert found["the"] == ("det", "car")


def test_a_preposition_may_be_the_root(treebank: dict[str, list[Word]]) -> None:
    assert arcs(to_clear_style(treebank["In Paris"])) == {"In": ("ROOT", "In"), "Paris": ("pobj", "In")}


def test_copulas_govern_their_predicates(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["The man is not tall."]))
    assert found["is"] == ("ROOT", "is")
    assert found["man"] == ("nsubj", "is")
    assert found["tall"] == ("acomp", "is")
    assert found["not"][0] == "neg"
    assert found["."] == ("punct", "is")
    assert found["The"] == ("det", "man")


def test_a_copula_before_a_place(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["She is in the kitchen."]))
    assert found["is"] == ("ROOT", "is")
    assert found["She"] == ("nsubj", "is")
    assert found["in"] == ("prep", "is")
    assert found["kitchen"] == ("pobj", "in")
    assert found["the"] == ("det", "kitchen")


def test_the_last_name_is_the_head(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["John Paul Smith wants to run"]))
    assert found["Smith"] == ("nsubj", "wants")
    assert found["John"] == found["Paul"] == ("compound", "Smith")
    assert found["to"] == ("aux", "run")
    assert found["run"] == ("xcomp", "wants")


def test_conjunctions_hang_on_the_first(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["men eat and women drink"]))
    assert found["and"] == ("cc", "eat")
    assert found["drink"] == ("conj", "eat")


def test_a_possessive_mark_is_no_preposition(treebank: dict[str, list[Word]]) -> None:
    found = arcs(to_clear_style(treebank["the dog's bone"]))
    assert found["dog"] == ("poss", "bone")
    assert found["'s"] == ("case", "dog")


def test_the_conversion_changes_heads_and_relations_only(treebank: dict[str, list[Word]]) -> None:
    for text, words in treebank.items():
        before = [vars(word).copy() for word in words]
        converted = to_clear_style(words)
        assert fault_of(converted) == "", text
        assert [vars(word) for word in words] == before, "the treebank's own words were changed"
        for old, new in zip(words, converted, strict=True):
            assert (old.text, old.lemma, old.pos, old.tag, old.space_after) == (
                *(new.text, new.lemma, new.pos, new.tag),
                new.space_after,
            )


def test_docs_have_the_text_and_spacys_noun_chunks(treebank: dict[str, list[Word]]) -> None:
    vocab = spacy.blank("en").vocab
    for text, words in treebank.items():
        assert to_doc(vocab, to_clear_style(words)).text.strip() == text
    doc = to_doc(vocab, to_clear_style(treebank["He sat at the old table."]), lower=True)
    assert [chunk.text for chunk in doc.noun_chunks] == ["he", "the old table"]


def test_ranges_and_empty_nodes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "own.conllu"
    lines = [
        "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_",
        "2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_",
        "3\trun\trun\tVERB\tVB\t_\t0\troot\t_\t_",
        "3.1\trun\trun\tVERB\tVB\t_\t_\t_\t_\t_",
    ]
    path.write_text("\n".join(lines))
    (words,) = read_conllu(path)
    assert [(word.text, word.head) for word in words] == [("do", 2), ("n't", 2), ("run", 2)]


def test_any_tree_becomes_a_tree() -> None:
    chance = random.Random(0)
    relations = ["nsubj", "obj", "obl", "nmod", "case", "cop", "flat", "compound", "cc", "conj", "advmod", "mark", "x"]
    for _ in range(1000):
        order = chance.sample(range(7), chance.randint(1, 7))
        order = [sorted(order).index(place) for place in order]
        words: dict[int, Word] = {}
        for count, place in enumerate(order):
            head, relation = (chance.choice(order[:count]), chance.choice(relations)) if count else (place, "root")
            pos = chance.choice(["NOUN", "PROPN", "VERB", "ADJ", "ADP"])
            words[place] = Word(f"w{place}", "w", pos, "XX", "_", head, relation, True)
        sentence = [words[place] for place in sorted(words)]
        assert fault_of(to_clear_style(sentence)) == "", sentence


@pytest.mark.parametrize("name", ["dev", "test"])
def test_every_sentence_of_the_treebank_becomes_a_tree(shared: Path, name: str) -> None:
    path = shared / "data" / "ud-english-ewt" / f"{name}.conllu"
    faults = [
        f"{fault}: {' '.join(word.text for word in words)}"
        for words in map(to_clear_style, read_conllu(path))
        if (fault := fault_of(words))
    ]
    assert faults == []


def test_a_treebank_that_is_not_there_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "nosuch")])
    assert end.value.code == 2
    assert "nosuch/train.conllu" in capsys.readouterr().err
