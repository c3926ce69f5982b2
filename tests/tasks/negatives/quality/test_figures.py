"""The figures of a quality report, each against a reference or a case worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import Resamples
from penumbra.tasks.negatives.checks import normal_form
from penumbra.tasks.negatives.files import Negative
from penumbra.tasks.negatives.quality.figures import Figures, blind_auc
from penumbra.tasks.negatives.quality.negatives import AnnotatedDataset, Reference, fills_of, masked_tokens, words_of
from penumbra.tasks.negatives.quality.page import figures_by_name
from penumbra.tasks.text.relations import Relation, relations
from tests.rows import annotation

pytestmark = pytest.mark.slow

NOUNS = ("cup", "box", "door", "bag", "book", "towel", "phone", "chair")
QUERIES = [f"a person takes the {noun} {place}" for noun in NOUNS for place in ("home", "away", "out", "in", "up")]
VIDEOS = [i // 2 for i in range(len(QUERIES))]


@pytest.mark.parametrize(
    ("masked", "text", "fills"),
    [
        ("person <mask> a <mask>.", "person opens a door.", ("opens", "door")),
        ("Person <mask> the door", "person shuts the door.", ("shuts",)),
        ("the <mask>'s shoes", "the man's shoes", ("man",)),
        ("person <mask> a door", "person slowly opens a door", None),
        ("person <mask> a door", "person opens the door", None),
        ("person <mask> a door", "person a door", None),
        (f"{'<mask>' * 30}zz", "a" * 60, None),  # at once
    ],
)
def test_template(masked: str, text: str, fills: tuple[str, ...] | None) -> None:
    assert fills_of(masked, text) == fills


def test_masks_match_their_tokens() -> None:
    assert masked_tokens("a <mask> opens the <mask>.", ["a", "man", "opens", "the", "door", "."]) == [1, 4]
    assert masked_tokens("a <mask> opens", ["a", "man", "shuts", "it"]) is None
    assert masked_tokens("a <mask>", ["a", "man", "shuts"]) is None
    assert normal_form(" A door, opens! ") == normal_form("a Door opens")
    assert words_of("It's a T-shirt 2") == ["it's", "a", "t", "shirt"]


def test_cosines_fall_from_level_to_level_or_not() -> None:
    def of(query: str, provider: str, *cosines: float) -> list[Negative]:
        return [
            Negative(query, f"video of {query}", level, "", "", provider, similarity=cosine)
            for level, cosine in enumerate(cosines, 1)
        ]

    rows = [*of("falls", "a", 0.9, 0.8, 0.1), *of("stays", "a", 0.9, 0.9), *of("one", "a", 0.5)]
    rows += [*of("rises", "b", 0.1, 0.2), *of("both", "a", 0.95), *of("both", "b", 0.96, 0.2)[1:]]
    rows = rows[::-1]
    videos = {vid: number for number, vid in enumerate(dict.fromkeys(row.vid for row in rows))}
    figures = Figures(videos, Resamples(len(videos), 0, 0))
    cosines = np.array([row.similarity for row in rows], dtype=np.float64)
    figures.put_similarity([row.qid for row in rows], cosines, figures.places(rows))
    known = figures_by_name(figures.rows)
    assert known[0, "all", "hierarchy"] == 0.5, "falls and both do, stays and rises do not"
    assert known[0, "a", "hierarchy"] == 0.5
    assert known[0, "b", "hierarchy"] == 0
    assert known[1, "a", "paraphrases"] == 0.25, "0.9 is none, 0.95 is one"


def test_blind_auc_is_the_specifications() -> None:
    """Against scikit-learn's own vectoriser, fitted to the training texts of each fold."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold

    negatives = [text.replace("takes", "eats") if i % 3 else text for i, text in enumerate(reversed(QUERIES))]
    texts, truth = [*QUERIES, *negatives], np.repeat([1, 0], len(QUERIES))
    groups, areas = np.tile(VIDEOS, 2), []
    for train, test in GroupKFold(5).split(texts, groups=groups):
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        seen = vectorizer.fit_transform([texts[i] for i in train])
        model = LogisticRegression(C=3, max_iter=1000).fit(seen, truth[train])
        scores = model.decision_function(vectorizer.transform([texts[i] for i in test]))
        areas.append(roc_auc_score(truth[test], scores))
    assert auc(QUERIES, negatives, VIDEOS) == pytest.approx(np.mean(areas), abs=1e-6)


def auc(queries: list[str], negatives: list[str], videos: list[int], unit: str = "words") -> float:
    area = blind_auc(queries, negatives, np.array(videos), Resamples(max(videos) + 1, 0, 0), unit)
    return area.value


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_a_classifier_sees_what_gives_negatives_away_and_nothing_else(unit: str) -> None:
    assert auc(QUERIES, [text.replace("takes", "zaps") for text in QUERIES], VIDEOS, unit) > 0.9
    assert auc(QUERIES, QUERIES, VIDEOS, unit) == pytest.approx(0.5)


def test_too_few_videos_or_words_train_no_classifier() -> None:
    resamples = Resamples(5, 0, 0)
    assert blind_auc(QUERIES[:4], QUERIES[:4], np.arange(4), resamples) is None
    assert blind_auc(list("vwxyz"), list("bcdef"), np.arange(5), resamples) is None


def test_plausibility_is_0_for_random_words_and_1_for_the_queries() -> None:
    figures = Figures({"v": 0}, Resamples(1, 0, 0))
    query, random = (Negative("q", "v", 1, QUERIES[0], text, "corpus") for text in (QUERIES[0], "zzz"))
    for level, row in enumerate((random, query), 1):
        figures.put_plausibility([replace(row, level=level)], [replace(random, level=level)], QUERIES, "plausibility")
    known = figures_by_name(figures.rows)
    assert (known[1, "all", "plausibility"], known[2, "all", "plausibility"]) == (0, 1)


def test_relations_of_both_schemes() -> None:
    def token(lemma: str, pos: str, dep: str, head: int) -> dict[str, object]:
        return {"lemma": lemma, "pos": pos, "dep": dep, "head": head}

    start = [token("man", "NOUN", "nsubj", 1), token("put", "VERB", "ROOT", 1), token("red", "ADJ", "amod", 3)]
    penn = [*start, token("cup", "NOUN", "dobj", 1), token("on", "ADP", "prep", 1), token("table", "NOUN", "pobj", 4)]
    cup, on, table = token("cup", "NOUN", "obj", 1), token("on", "ADP", "case", 5), token("table", "NOUN", "obl", 1)
    universal = [*start, cup, on, table]
    expected = {
        ("put", "subject-verb", "", "man"),
        ("put", "verb-object", "", "cup"),
        ("cup", "adjective-noun", "", "red"),
        ("put", "verb-preposition-noun", "on", "table"),
    }
    assert set(relations(penn)) == set(relations(universal)) == expected
    negative = [*penn[:3], {**penn[3], "lemma": "soup"}, *penn[4:]]
    figures = Figures({"v": 0}, Resamples(1, 0, 0))
    attested, parsed = {Relation("put", "verb-object", "", "soup")}, {"query": penn, "negative": negative}
    figures.put_relations([Negative("q", "v", 1, "query", "negative", "")], [], parsed, attested)
    assert figures_by_name(figures.rows)[1, "all", "attested_relations"] == 0.5, "red soup is not attested"


def test_what_a_training_sentence_has_is_not_held_out() -> None:
    labels = [["put", "on"], ["person", "box"], ["stair"], ["clothes"]]
    rows = [annotation("a", "a person opens a box with clothes")]
    rows += [annotation("b", "-", "test", novel=[{"type": "x", "words": words} for words in labels])]
    tags = [{"qid": row["qid"], "tokens": []} for row in rows]
    tables = [(table_of("annotations", rows), table_of("tags", tags))]
    held = Reference(AnnotatedDataset(Store(), "mine", tables=tables))
    expected = {"put a shoe on": (True, False), "put shoe": (False, False), "person box": (False, False)}
    expected |= {"a stair": (False, True), "clothes": (False, False)}
    assert {text: held.leakage.held_out(text) for text in expected} == expected
