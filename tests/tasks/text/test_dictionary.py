"""The dictionary: training words only, each offered to slots of its own class and tag, no word to itself."""

import pyarrow as pa
import pytest

from penumbra.tasks.text.dictionary import Dictionary, dictionary_part

Word = tuple[str, str | None, str, str]  # text, primitive, tag, lemma
OPENS: Word = ("Opens", "verb", "VBZ", "open")
DOOR: Word = ("door", "noun", "NN", "door")
THE: Word = ("the", None, "DT", "the")


def tagged(*queries: tuple[str, list[Word]]) -> tuple[pa.Table, pa.Table]:
    """A part of annotations, and its tags: (split, words) for each query."""
    tokens = []
    for _, words in queries:  # the last word is the root, a verb
        columns = ({"text": text, "primitive": kind, "tag": tag, "lemma": lemma} for text, kind, tag, lemma in words)
        tokens.append([token | {"pos": "X", "dep": "dep", "head": len(words) - 1} for token in columns])
        tokens[-1][-1]["pos"] = "VERB"
        for token, follower in zip(tokens[-1], tokens[-1][1:], strict=False):
            if token["primitive"] == "noun" and follower["primitive"] == "verb":
                token |= {"pos": "NOUN", "dep": "nsubj"}
    return pa.table({"split": [split for split, _ in queries]}), pa.table({"tokens": tokens})


def dictionary(*entries: tuple[str, str, str, str, int]) -> Dictionary:
    names = ("primitive", "tag", "word", "lemma", "count")
    return Dictionary(pa.Table.from_pylist([dict(zip(names, entry, strict=True)) for entry in entries]))


VERBS = dictionary(
    ("verb", "VBZ", "opens", "open", 9),
    ("verb", "VBZ", "open", "open", 2),
    ("verb", "VBZ", "puts", "put", 5),
    ("verb", "VBD", "left", "leave", 3),
    ("verb", "VBD", "leaved", "leave", 1),
    ("verb", "VBD", "opened", "open", 1),
    ("adjective", "JJ", "left", "left", 4),
    ("adjective", "JJ", "open", "open", 4),
    ("noun", "NN", "opens", "opens", 1),
    *(("noun", "NN", word, word, 8) for word in ("t-shirt", "café", "2nd", "''", "o'clock")),
)


def test_only_training_words_that_are_primitives_count() -> None:
    first = tagged(("train", [OPENS, THE, DOOR]), ("test", [("window", "noun", "NN", "window"), DOOR]))
    opens: list[Word] = [("opens", "verb", "VBZ", "open"), ("Door", "noun", "NN", "door")]
    second = tagged(("composition", [DOOR]), ("train", opens))
    third = tagged(("train", [("open", "verb", "VB", "open"), ("open", "adjective", "JJ", "open")]))
    rows = [tuple(row.values())[:5] for row in dictionary_part([first, second, third]).rows.to_pylist()]
    assert rows == [
        ("adjective", "JJ", "open", "open", 1),
        ("noun", "NN", "door", "door", 2),
        ("verb", "VB", "open", "open", 1),
        ("verb", "VBZ", "opens", "open", 2),
    ]


def test_nouns_that_are_a_verbs_subject_more_often_than_not_may_fill_a_subjects_slot() -> None:
    man, call, calls = (("man", "noun", "NN", "man"), ("call", "noun", "NN", "call"), ("call", "verb", "VB", "call"))
    subjects: list[list[Word]] = [[man, OPENS], [DOOR, OPENS], [call, OPENS]]
    others: list[list[Word]] = [[DOOR, THE, OPENS], [DOOR, THE, OPENS], [calls], [calls]]
    part = dictionary_part([tagged(*[("train", words) for words in (*subjects, *others)])])
    words = Dictionary(part.rows)
    assert words.offer("subject", "NN").words == ["man"], "a door is seldom a subject, and call is rather a verb"
    assert words.offer("noun", "NN").words == ["call", "door", "man"]
    key, offer, excluded = words.allowed("noun", "NN", "person", "person", is_subject=True)
    assert (key, offer.words, excluded) == (("subject", "NN"), ["man"], ())
    assert words.allowed("noun", "NN", "man", "man", is_subject=True)[2] == (0,), "nothing is left for it"


def test_a_slot_is_offered_its_own_class_and_tag() -> None:
    assert VERBS.offer("verb", "VBZ").words == ["open", "opens", "puts"]
    assert VERBS.offer("adjective", "JJ").words == ["left", "open"]
    assert VERBS.offer("adjective", "VBZ").words == VERBS.offer("verb", "VBG").words == []
    assert VERBS.offer("noun", "NN").words == ["o'clock", "opens"], "words of other than plain letters are not offered"


@pytest.mark.parametrize(
    ("primitive", "tag", "word", "lemma", "offered"),
    [
        ("verb", "VBZ", "runs", "run", "VBZ"),
        ("verb", "VBZ", "opens", "open", "VBZ"),  # its own tag has "puts"
        ("adjective", "JJR", "redder", "red", "JJ"),  # no JJR at all
        ("noun", "NNS", "doors", "door", "NN"),
        ("verb", "VBN", "taken", "take", "VBD"),
    ],
)
def test_a_slot_without_words_is_offered_the_nearest_tag(
    primitive: str, tag: str, word: str, lemma: str, offered: str
) -> None:
    assert VERBS.allowed(primitive, tag, word, lemma)[0] == (primitive, offered)
