"""The measures of negatives, each against a reference or a case worked out by hand."""

import numpy as np
import pytest
from spacy.language import Language

from penumbra.tasks.data.resampling import Curve, Resamples
from penumbra.tasks.negatives.choosing.guard import normal_form
from penumbra.tasks.negatives.providers.language_model import KneserNey
from penumbra.tasks.negatives.quality.blind import CLASSIFIERS, judge
from penumbra.tasks.negatives.quality.counts import nearness_of, placed
from penumbra.tasks.negatives.quality.heldout import HeldOut
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.plausibility import language_model, log_probabilities, plausibility
from penumbra.tasks.negatives.quality.relations import attested
from penumbra.tasks.negatives.quality.texts import fills_of, masked_tokens, words_of
from penumbra.tasks.text.relations import Relation, relations

pytestmark = pytest.mark.slow

NOUNS = ("cup", "box", "door", "bag", "book", "towel", "phone", "chair")
POSITIVES = [f"a person takes the {noun} {place}" for noun in NOUNS for place in ("home", "away", "out", "in", "up")]
VIDEOS = [i // 2 for i in range(len(POSITIVES))]


@pytest.mark.parametrize(
    ("masked", "text", "fills"),
    [
        ("person <mask> a <mask>.", "person opens a door.", ("opens", "door")),
        ("Person <mask> the door", "person shuts the door.", ("shuts",)),
        ("the <mask>'s shoes", "the man's shoes", ("man",)),
        ("person <mask> a door", "person slowly opens a door", None),
        ("person <mask> a door", "person opens the door", None),
        ("person <mask> a door", "person a door", None),
    ],
)
def test_template(masked: str, text: str, fills: tuple[str, ...] | None) -> None:
    assert fills_of(masked, text) == fills


def test_masks_find_their_tokens() -> None:
    assert masked_tokens("a <mask> opens the <mask>.", ["a", "man", "opens", "the", "door", "."]) == [1, 4]
    assert masked_tokens("a <mask> opens", ["a", "man", "shuts", "it"]) is None
    assert masked_tokens("a <mask>", ["a", "man", "shuts"]) is None
    assert normal_form(" A door, opens! ") == normal_form("a Door opens")
    assert words_of("It's a T-shirt 2") == ["it's", "a", "t", "shirt"]


def test_the_area_is_that_of_scikit_learn_with_ties_and_weights() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 300), rng.integers(0, 9, 300).astype(float)
    videos = rng.integers(0, 40, 300)
    weights = rng.integers(0, 3, 40).astype(float)
    curve = Curve(videos, labels, scores)
    assert curve.area(np.ones(40)) == pytest.approx(roc_auc_score(labels, scores))
    assert curve.area(weights) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights[videos]))


def test_cosines_fall_from_level_to_level_or_not() -> None:
    def of(query: str, provider: str, *cosines: float | None) -> list[Negative]:
        video = f"video of {query}"
        return [
            Negative(query, video, level, "", "", provider, similarity=cosine)
            for level, cosine in enumerate(cosines, 1)
        ]

    rows = [*of("falls", "a", 0.9, 0.8, 0.1), *of("stays", "a", 0.9, 0.9), *of("one", "a", 0.5), *of("none", "a", None)]
    rows += [*of("rises", "b", 0.1, 0.2), *of("both", "a", 0.95), *of("both", "b", None, 0.2)]
    videos: dict[str, int] = {}
    counts = nearness_of(placed(rows[::-1]), videos)
    names = {number: vid.removeprefix("video of ") for vid, number in videos.items()}

    def falls(provider: str | None) -> dict[str, float]:
        return {names[int(number)]: float(fall) for number, fall in zip(*counts.falls(provider), strict=True)}

    assert falls(None) == {"falls": 1, "stays": 0, "rises": 0, "both": 1}
    assert falls("a") == {"falls": 1, "stays": 0}
    assert falls("b") == {"rises": 0}
    assert counts.known("similarity") == counts.known("paraphrases") == 10
    [hits] = counts.column("paraphrases", 1, "a")[1:2]
    assert sorted(hits) == [0, 0, 0, 1], "0.9 is none, 0.95 is one"


def test_intervals_are_by_video_and_by_seed() -> None:
    videos = np.repeat(np.arange(50), 10)
    same = np.repeat(np.random.default_rng(0).normal(size=50), 10)  # a video's rows are copies of each other
    estimate = Resamples(50, 500, 3).ratio(videos, same, np.ones(500))
    assert estimate.value == pytest.approx(same.mean())
    width = estimate.high - estimate.low
    assert width == pytest.approx(2 * 1.96 * same[::10].std() / np.sqrt(50), rel=0.15), "not that of 500 free rows"
    assert Resamples(50, 500, 3).ratio(videos, same, np.ones(500)) == estimate
    assert Resamples(50, 500, 4).ratio(videos, same, np.ones(500)) != estimate
    assert np.isnan(Resamples(50, 0, 3).ratio(videos, same, np.ones(500)).low)


def test_intervals_are_the_same_where_resamples_are_too_many_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    videos, values = np.repeat(np.arange(50), 10), np.random.default_rng(0).normal(size=500)
    kept = Resamples(50, 500, 3)
    several = [kept.ratio(videos, values, np.ones(500)) for _ in range(2)]
    monkeypatch.setattr("penumbra.tasks.data.resampling.KEPT", 0)
    monkeypatch.setattr("penumbra.tasks.data.resampling.CELLS", 50 * 7)
    drawn = Resamples(50, 500, 3)
    several += [drawn.ratio(videos, values, np.ones(500)) for _ in range(2)]
    assert len({(each.low, each.high) for each in several}) == 1


def test_blind_auc_is_the_specifications() -> None:
    """Written with scikit-learn's own vectoriser, fitted to each fold's training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold

    negatives = [text.replace("takes", "eats" if i % 3 else "drops") for i, text in enumerate(reversed(POSITIVES))]
    texts, labels, groups = [*POSITIVES, *negatives], np.repeat([1, 0], len(POSITIVES)), np.tile(VIDEOS, 2)
    labels[::7] = 1 - labels[::7]  # so that the area is no round number
    positives = [text for text, label in zip(texts, labels, strict=True) if label]
    others = [text for text, label in zip(texts, labels, strict=True) if not label]
    size = min(len(positives), len(others))
    sides, videos = [*positives[:size], *others[:size]], VIDEOS[:size]
    truth, groups, areas = np.repeat([1, 0], size), np.tile(videos, 2), []
    for train, test in GroupKFold(5).split(sides, groups=groups):
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        model = LogisticRegression(C=3, max_iter=1000).fit(
            vectorizer.fit_transform([sides[i] for i in train]), truth[train]
        )
        scores = model.decision_function(vectorizer.transform([sides[i] for i in test]))
        areas.append(roc_auc_score(truth[test], scores))
    verdict = judge(sides[:size], sides[size:], videos)
    assert verdict
    assert verdict.auc == pytest.approx(np.mean(areas), abs=1e-6)
    assert 0.5 < verdict.auc < 1


@pytest.mark.parametrize("classifier", [*CLASSIFIERS[:-1], pytest.param("gru", marks=pytest.mark.long)])
def test_every_classifier_sees_what_gives_negatives_away_and_nothing_else(classifier: str) -> None:
    marked = [text.replace("takes", "zaps") for text in POSITIVES]
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2 * len(POSITIVES), 8)).astype(np.float32)
    vectors[: len(POSITIVES), 0] += 9
    seen = judge(POSITIVES, marked, VIDEOS, classifier, vectors)
    same = judge(POSITIVES, POSITIVES, VIDEOS, classifier, np.concatenate([vectors[: len(POSITIVES)]] * 2))
    assert seen
    assert same
    assert seen.auc > 0.9
    assert same.auc == pytest.approx(0.5)
    assert (judge(POSITIVES, marked, VIDEOS, classifier, vectors) or same).scores.tolist() == seen.scores.tolist()


def test_too_few_videos_or_words_give_no_verdict() -> None:
    assert judge(POSITIVES[:4], POSITIVES[:4], [0, 1, 2, 3]) is None
    assert judge(list("vwxyz"), list("bcdef"), [0, 1, 2, 3, 4]) is None


def test_plausibility_is_0_for_random_words_and_1_for_the_originals() -> None:
    model = language_model(POSITIVES)
    sums, sizes = log_probabilities(model, ["a person takes the cup home", "zzz", ""])
    reference = KneserNey.of([words_of(text) for text in POSITIVES])
    one_by_one = reference.log_probability([words_of(t) for t in ("a person takes the cup home", "zzz", "")])
    assert sums / sizes == pytest.approx(one_by_one)
    assert plausibility(np.array([-9.0, 3, -9, 3, -2, 2])) == pytest.approx(0)
    assert plausibility(np.array([-1.0, 1, -9, 3, -2, 2])) == pytest.approx(1)


def test_relations_of_both_schemes() -> None:
    def token(lemma: str, pos: str, dep: str, head: int) -> dict[str, object]:
        return {"lemma": lemma, "pos": pos, "dep": dep, "head": head}

    start = [token("man", "NOUN", "nsubj", 1), token("put", "VERB", "ROOT", 1), token("red", "ADJ", "amod", 3)]
    penn = [*start, token("cup", "NOUN", "dobj", 1), token("on", "ADP", "prep", 1), token("table", "NOUN", "pobj", 4)]
    universal = [
        *start,
        token("cup", "NOUN", "obj", 1),
        token("on", "ADP", "case", 5),
        token("table", "NOUN", "obl", 1),
    ]
    expected = {
        ("put", "subject-verb", "", "man"),
        ("put", "verb-object", "", "cup"),
        ("cup", "adjective-noun", "", "red"),
        ("put", "verb-preposition-noun", "on", "table"),
    }
    assert set(relations(penn)) == set(relations(universal)) == expected
    negative = [*penn[:3], {**penn[3], "lemma": "soup"}, *penn[4:]]
    assert attested(negative, penn, {Relation("put", "verb-object", "", "soup")}) == (1, 2), "red soup is not attested"


def test_relations_of_the_shipped_parser(nlp: Language) -> None:
    from penumbra.tasks.text.tags import tag_texts

    tokens = next(iter(tag_texts(["a person quickly washes the dirty dishes in the sink."], nlp)))
    found = set(relations(tokens))
    assert {("wash", "subject-verb", "", "person"), ("dish", "adjective-noun", "", "dirty")} <= found
    assert any(preposition == "in" for _, _, preposition, _ in found)


def test_what_is_held_out_is_what_no_training_sentence_has() -> None:
    held = HeldOut()
    for words in (["put", "on"], ["person", "box"], ["stair"], ["clothes"]):
        held.add(words)
    held.known({"a", "person", "open", "box", "clothes"})
    assert held.pair_in({"put", "shoe", "on"})
    assert not held.pair_in({"put", "shoe"})
    assert not held.pair_in({"person", "box"}), "a training sentence has both"
    assert held.word_in({"stair"})
    assert not held.word_in({"clothes"})
