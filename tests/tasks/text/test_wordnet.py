"""The shipped part of WordNet: forms of words, what a word entails, and the valence of verbs."""

import gzip
import hashlib

import pytest

from penumbra.tasks.text.wordnet import FILE, forms, is_entailed, lemma, stands_alone, takes_object


def test_the_file_is_the_one_that_the_workshop_makes() -> None:
    content = gzip.decompress(FILE.read_bytes())
    assert hashlib.sha256(content).hexdigest() == "1fdcee0ddb6e7e5a126abe1a15e7df370abeb26869d60bb4c416ad8892fbebae"
    assert FILE.stat().st_size < 1_500_000
    licence = FILE.with_name("wordnet-licence.txt").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("stir", "VB VBP"),
        ("dices pants", "NNS VBZ"),
        ("chopped", "JJ VBD VBN"),
        ("sits", "VBZ"),
        ("ran", "VBD"),
        ("taken", "JJ VBN"),
        ("putting", "NN VBG"),
        ("spatula celery", "NN"),
        ("knives women", "NNS"),
        ("bigger", "JJR"),
        ("prettiest", "JJS"),
        ("quickly", "RB"),
        ("under", "IN"),
        ("up", "IN RP"),
        ("he the her it is I childs stoped goed hav Paris xyzzy", ""),
    ],
)
def test_forms_of_common_words_and_of_no_others(words: str, expected: str) -> None:
    for word in words.split():
        assert " ".join(sorted({tag for _, tag in forms(word)})) == expected


def test_lemma_of_a_form() -> None:
    assert [lemma("leaves", "verb"), lemma("leaves", "noun"), lemma("xyzzies", "noun")] == ["leave", "leaf", "xyzzies"]


MAY_BE_TRUE = (
    ("lifts takes, wipes spreads, puts places, put pour, makes roasts, hold carries", "verb"),
    ("holding eating, begins starts, fry cook, shut close, chop cut", "verb"),
    ("man person, food bread, couch sofa, pictures photos, carrot vegetable", "noun"),
    ("in into, on onto, under beneath", "preposition"),
    ("quickly rapidly", "adverb"),
    ("big large", "adjective"),
)
EXCLUDE_EACH_OTHER = (
    ("open close, fry boil, sit stand, eat drink, walk run, throw catch, wash cook, dress undress", "verb"),
    ("stir peel, hug sleep, sleep walk, close fix, push pull, laugh cry, read sleep, boil chop", "verb"),
    ("man woman, cup plate, pan bowl, cup bowl, chair table, sofa chair, door window, box bag", "noun"),
    ("book phone, knife spoon, carrot potato, dog cat, kitchen bedroom, shirt pants, towel blanket", "noun"),
    ("broom vacuum, mirror window, milk water, sink stove, boy girl, picture book, bread soup", "noun"),
    ("red blue, small large, hot cold, clean dirty, empty full", "adjective"),
    ("over under, in out, to from, before after", "preposition"),
    ("quickly slowly, up down", "adverb"),
)


@pytest.mark.parametrize(("several", "may_be_true"), [(MAY_BE_TRUE, True), (EXCLUDE_EACH_OTHER, False)])
def test_a_word_that_may_be_true_of_the_same_moment_is_entailed_both_ways(
    several: tuple[tuple[str, str], ...], may_be_true: bool
) -> None:
    for pairs, primitive in several:
        for first, second in (pair.split() for pair in pairs.split(", ")):
            assert is_entailed(first, second, primitive) is may_be_true, (first, second)
            assert is_entailed(second, first, primitive) is may_be_true, (second, first)


def test_who_opens_a_box_holds_it_and_who_holds_it_need_not_open_it() -> None:
    for fill, word in (("holding", "opening"), ("enjoys", "eats"), ("smiles", "cooks"), ("stores", "chills")):
        assert is_entailed(fill, word, "verb")
        assert not is_entailed(word, fill, "verb")


def test_valence_of_verbs() -> None:
    verbs = ("put", "chop", "sit", "sneeze", "open", "xyzzy")
    assert [verb for verb in verbs if takes_object(verb)] == ["put", "chop", "open", "xyzzy"]
    assert [verb for verb in verbs if stands_alone(verb)] == ["sit", "sneeze", "open", "xyzzy"]
