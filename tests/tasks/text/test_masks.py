"""Masks: the authors' counts and order, each level within the next, and not a character changed elsewhere."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError
from spacy.language import Language

from penumbra.tasks.text.masks import MASK, Masking, mask_part, mask_query, masking_order, slot_counts
from penumbra.tasks.text.tags import tag_texts
from tests.rows import Row, token

RATIOS = (0.25, 0.5, 0.75)
ALL = (0.5, 0.75, 1.0)
TEXTS = [
    "a person puts the red box under the table.",
    "a  person   sits down on  a chair",
    "they're quickly moving the blanket/pillow.",
    "A Person Opens THE Big Door",
    "a dog 🐶 runs 🏃away from the man!",
    "person opening a door.",
    "the same box in the box by the box",
    "a man, then a woman; (both) eat a sandwich\tslowly",
    "eat",
]


def order(tokens: list[Row]) -> list[str]:
    return [tokens[i]["text"] for i in masking_order(tokens)]


def test_counts_equal_those_of_the_authors() -> None:
    counts = [slot_counts(primitives, RATIOS) for primitives in (1, 2, 3, 5, 6, 7, 9)]
    assert counts == [(1, 1, 1), (1, 1, 2), (1, 2, 3), (1, 3, 4), (1, 3, 5), (2, 4, 6), (2, 5, 7)]
    assert slot_counts(10, (0.1, 0.3, 0.5)) == (1, 3, 5), "rounding errors mask no further word"


@pytest.mark.parametrize(
    "ratios", [(0.5, 0.25, 0.75), (0.0, 0.5, 0.75), (-0.1, 0.5, 0.75), (0.25, 0.5, 1.1), (float("nan"), 0.5, 0.75)]
)
def test_ratios_must_rise_within_0_and_1(ratios: tuple[float, float, float]) -> None:
    with pytest.raises(ValidationError, match="must rise"):
        Masking(ratios=ratios)


def test_classes_have_the_order_of_the_paper_from_left_to_right() -> None:
    """Verbs, nouns, adjectives, prepositions, adverbs."""
    words = "quickly:adverb in:preposition red:adjective cup:noun the: opens:verb on:preposition box:noun takes:verb"
    tokens = [token(word, primitive or None) for word, primitive in (pair.split(":") for pair in words.split())]
    assert order(tokens) == ["opens", "takes", "cup", "box", "red", "in", "on", "quickly"]


def test_the_subject_is_left_out_or_comes_last_where_there_are_fewer_than_three_others() -> None:
    man, opens, box = token("man", "noun", subject=True), token("opens", "verb"), token("box", "noun")
    assert order([man, opens, token("red", "adjective"), box]) == ["opens", "box", "red"]
    assert order([man, opens, box]) == ["opens", "box", "man"]
    they, rest = token("they", pos="PRON", dep="nsubj"), [token("of", "preposition"), token("water", "noun")]
    assert order([man, they, opens, box, *rest])[-1] == "man", "a pronoun repeats it"


@pytest.mark.parametrize("ratios", [RATIOS, (0.1, 0.3, 0.5), ALL])
def test_levels_are_nested_and_only_masked_words_change(nlp: Language, ratios: tuple[float, float, float]) -> None:
    for text, tokens in zip(TEXTS, tag_texts(TEXTS, nlp), strict=True):
        levels = mask_query(tokens, Masking(ratios=ratios))
        assert [level["level"] for level in levels] == [1, 2, 3]
        assert [level["ratio"] for level in levels] == list(ratios)
        places = [{slot["token"] for slot in level["slots"]} for level in levels]
        assert places[0] <= places[1] <= places[2]
        for level in levels:
            back, slots = level["masked_query"], level["slots"]
            assert [slot["token"] for slot in slots] == sorted(slot["token"] for slot in slots)
            assert back.count(MASK) == len(slots) > 0
            for slot in slots:
                back = back.replace(MASK, slot["word"], 1)
                assert {"primitive": slot["primitive"], "tag": slot["tag"]}.items() <= tokens[slot["token"]].items()
            assert back == text


def test_only_the_training_split_is_masked_and_rejections_have_a_reason() -> None:
    verb = [token("opens", "verb"), token("door", "noun", space_after=False)]
    annotations = pa.table({"split": ["train", "test", "train"], "query": ["opens door", "opens door", "it is"]})
    rows = [{"qid": "a", "tokens": verb}, {"qid": "b", "tokens": verb}, {"qid": "c", "tokens": [token("it")]}]
    part = mask_part(annotations, pa.Table.from_pylist(rows), Masking())
    found = [(row["qid"], row["level"], row["masked_query"]) for row in part.rows.to_pylist()]
    assert found == [("a", 1, "<mask> door"), ("a", 2, "<mask> door"), ("a", 3, "<mask> <mask>")]
    assert (part.taken, part.kept) == (2, 1)
    reason = "query has no primitive to mask"
    assert part.rejected == [{"qid": "c", "stage": "masks", "reason": reason, "value": "it is"}]


def test_masks_agree_with_the_authors_release(nlp: Language, shared: Path) -> None:
    path = shared / "data" / "charades-cg" / "shine_release_first200.jsonl"
    release = [json.loads(line) for line in path.read_text().splitlines()]
    agreeing = 0
    for row, tokens in zip(release, tag_texts([row["query"].strip() for row in release], nlp), strict=True):
        ours = [level["masked_query"].split() for level in mask_query(tokens, Masking())]
        agreeing += ours == [query.split() for query in row["masked_queries"]]
    assert len(release) == 200
    assert agreeing / len(release) >= 0.95
