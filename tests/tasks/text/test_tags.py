"""Tags: the shipped tagger is good and small, the primitive rules hold, and no character is lost."""

import csv
from pathlib import Path

import pytest
import spacy
from spacy.language import Language

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.text.tags import describe, load_pipeline, tag_texts
from workshop.tagger.train import score

DATA = Path(__file__).parents[2] / "data"
THIRD_PERSON = ("the", "a", "he", "she", "they", "two", "one", "someone")  # first words of sentences in cooking.csv
ODD_TEXTS = [
    "a  person   sits.",
    "they're opening the blanket/pillow.",
    "a dog 🐶 runs 🏃‍♀️away!",
    "a man,with no blank,runs.Then he stops",
    "don't can't won't o'clock",
    "tab\there and a\nnew line",
    "   blanks around   ",
    "naïve café, 3.5kg of rock'n'roll (really?)",
    "…",
    "e.g. the U.S. T-shirt @home #tag http://a.b/c?d=e",
]


def test_parts_of_speech_on_the_treebanks_test_set(nlp: Language, shared: Path) -> None:
    found = score(nlp, shared / "data" / "ud-english-ewt" / "test.conllu")
    assert found["pos_acc"] >= 0.93
    assert found["tag_acc"] >= 0.92
    assert found["dep_las"] >= 0.80


def test_imperatives_are_verbs(nlp: Language) -> None:
    """The sentences are of no training text; `workshop/tagger/instructions.py` writes the tagger's own."""
    with (DATA / "cooking.csv").open(encoding="utf-8", newline="") as file:
        docs = list(nlp.pipe(row["sentence"] for row in csv.DictReader(file)))
    imperatives = [doc for doc in docs if doc[0].lower_ not in THIRD_PERSON]
    wrong = [doc.text for doc in imperatives if (doc[0].tag_, doc[0].dep_) != ("VB", "ROOT")]
    assert len(imperatives) == 125
    assert len(wrong) <= 0.03 * len(imperatives), wrong
    assert not [doc.text for doc in docs if doc[0].lower_ in THIRD_PERSON and doc[0].pos_ == "VERB"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a person gently puts it down.", {"a": None, "person": "noun", "gently": "adverb", "puts": "verb"}),
        ("the red box under the table.", {"the": None, "red": "adjective", "box": "noun", "under": "preposition"}),
        ("a person is sitting on a chair.", {"is": None, "sitting": "verb"}),
        ("he has eaten a sandwich.", {"has": None, "eaten": "verb"}),
        ("she can take the cup.", {"can": None, "take": "verb"}),
        ("he does not run.", {"does": None, "run": "verb"}),
        ("the man is in the kitchen.", {"is": None, "in": "preposition"}),
        ("the man leaves after eating lunch.", {"after": "preposition"}),
        ("a man sings while he is cooking.", {"while": None}),
        ("she laughs because he falls.", {"because": None}),
        ("it is 12 <> 🐶🐶 …", dict.fromkeys(("it", "is", "12", "<", ">", "<>", "🐶", "🐶🐶", "…"))),
        ("he turns off the light.", {"off": "preposition"}),
        ("she picks the bag up.", {"up": "preposition"}),
        ("he puts the phone back.", {"back": "adverb"}),
    ],
)
def test_plain_words_auxiliaries_gerunds_and_particles(nlp: Language, text: str, words: dict[str, str | None]) -> None:
    classes = {token["text"]: token["primitive"] for token in describe(nlp(text))}
    assert {word: classes.get(word) for word in words} == words


def test_subjects(nlp: Language) -> None:
    subjects = {"person opening a door.": ["person"], "person they sit down.": ["person"], "they sit.": []}
    for text, words in subjects.items():
        assert [token["text"] for token in describe(nlp(text)) if token["is_subject"]] == words


def test_tokens_rebuild_the_text(nlp: Language) -> None:
    for text, tokens in zip(ODD_TEXTS, tag_texts(ODD_TEXTS, nlp), strict=True):
        assert "".join(str(t["text"]) + (" " if t["space_after"] else "") for t in tokens) == text
        assert all(token["head"] in range(len(tokens)) for token in tokens)


def test_the_tags_of_a_text_do_not_depend_on_other_texts(nlp: Language) -> None:
    texts = [*ODD_TEXTS, "a man runs.", *ODD_TEXTS[::-1], "a man runs."]
    assert list(tag_texts(texts, nlp)) == [tokens for text in texts for tokens in tag_texts([text], nlp)]


def test_an_unusable_pipeline_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenumbraError, match=r"'en_no_such_model' can't be loaded .*spacy download en_no_such_model"):
        load_pipeline("en_no_such_model")
    with pytest.raises(PenumbraError, match="can't be loaded"):
        load_pipeline(str(tmp_path))
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(PenumbraError, match="lacks lemmatizer, parser"):
        load_pipeline(str(tmp_path))
