"""The verdict in words: its rule, what it says of known negatives, and which judge may say it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import Estimate, Resamples
from penumbra.tasks.negatives.files import Negative
from penumbra.tasks.negatives.quality.figures import RANDOM_FILLS, Figures, Verdict, decide, verdict_of
from penumbra.tasks.negatives.quality.negatives import ArtifactNegatives
from penumbra.tasks.negatives.quality.page import cell, figures_by_name, verdict_line, write_page
from penumbra.tasks.negatives.quality.report import evaluate as report_on
from penumbra.tasks.negatives.quality.report import own_providers
from tests import tiny_llama
from tests.rows import annotation, build, json_lines, negative

VERBS = {"opens": ("door", "box", "bag"), "eats": ("soup", "apple", "bread"), "reads": ("book", "letter", "map")}
PLACES = ("in the kitchen", "at the table", "on the floor", "by the window", "in the hall")
HUMAN = [f"a person {verb} the {noun} {place}" for verb in VERBS for noun in VERBS[verb] for place in PLACES]
NATURAL, LESS, NEAR_RANDOM, TOO_FEW = Verdict.NATURAL, Verdict.LESS, Verdict.RANDOM, Verdict.TOO_FEW


def verdict_on(likelihood: float, count: int) -> str:
    """Return the verdict on so many negatives; a word of random fills has likelihood -7, and of the queries -4."""
    draws, means = np.random.default_rng(0), {"query": -4.0, "random": -7.0, "negative": likelihood}
    rows = [Negative(str(i), f"v{i // 3}", 1, f"query {i}", f"negative {i}", "corpus") for i in range(count)]
    randoms = [replace(row, negative=f"random {i}", provider=RANDOM_FILLS) for i, row in enumerate(rows)]
    scores = {f"{kind} {i}": draws.normal(mean, 0.5) for kind, mean in means.items() for i in range(count)}
    videos = {vid: i for i, vid in enumerate(dict.fromkeys(row.vid for row in rows))}
    figures = Figures(videos, Resamples(len(videos), 200, 0))
    figures.put_likelihood(rows, randoms, scores)
    figures.put_verdicts(set())
    return verdict_line(figures_by_name(figures.rows))


def test_known_negatives_get_their_verdict() -> None:
    assert verdict_on(-7.0, 200) == "level 1: near random"
    assert verdict_on(-5.0, 200) == "level 1: less natural than the queries"
    assert verdict_on(-4.0, 200) == "level 1: as natural as the queries"
    assert verdict_on(-7.0, 20) == verdict_on(-4.0, 20) == "level 1: too few sentences to say"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 1.1, NATURAL),
        (0.3, 1.1, TOO_FEW),
        (0.6, 0.9, LESS),
        (0.1, 0.4, NEAR_RANDOM),
        (-0.1, 0.6, TOO_FEW),
        (0.6, 1.7, TOO_FEW),
        (float("nan"), float("nan"), TOO_FEW),
    ],
)
def test_the_rule(low: float, high: float, expected: Verdict) -> None:
    assert verdict_of(Estimate((low + high) / 2, low, high), 100, 30) is expected
    assert verdict_of(Estimate((low + high) / 2, low, high), 49, 30) is TOO_FEW
    assert verdict_of(Estimate((low + high) / 2, low, high), 100, 9) is TOO_FEW


@pytest.mark.parametrize(
    ("votes", "is_own", "expected"),
    [
        ({"naturalness": NATURAL, "b": LESS}, False, NATURAL),
        ({"naturalness": NATURAL, "b": LESS}, True, LESS),
        ({"naturalness": NATURAL, "b": NEAR_RANDOM}, True, LESS),
        ({"naturalness": NEAR_RANDOM, "b": NATURAL}, True, NEAR_RANDOM),
        ({"b": NEAR_RANDOM}, False, NEAR_RANDOM),
        ({"naturalness": NATURAL, "b": TOO_FEW}, True, Verdict.READ),
        ({"naturalness": NATURAL}, True, Verdict.READ),
        ({"b": LESS}, False, LESS),
        ({}, False, None),
    ],
)
def test_no_model_praises_its_own_choice(votes: dict[str, Verdict], is_own: bool, expected: Verdict | None) -> None:
    assert decide(votes, is_own) is expected


@pytest.fixture
def negatives(store: Store, tmp_path: Path) -> Path:
    """Negatives that a model has chosen, by their provider's name."""
    rows = [
        {"qid": f"q{i}", "vid": f"v{i}", "level": 1, "query": query, "negative": HUMAN[i - 1], "provider": "llama"}
        | {"masked_query": query.replace(query.split()[2], "<mask>")}
        for i, query in enumerate(HUMAN)
    ]
    return json_lines(tmp_path / "negatives.jsonl", rows)


def evaluate(path: Path, model: str) -> tuple[dict[tuple[int, str, str], float], list[str]]:
    store, report = Store(), report_on(path, None, {"resamples": 20, "language_model": model})
    assert write_page(store, report).split("\n\n")[1] == "## verdict"
    return figures_by_name(store.rows(report)), list(store.manifest(report).notes)


@pytest.mark.slow
def test_a_judge_that_chose_the_words_has_another_with_it(negatives: Path, tmp_path: Path) -> None:
    figures, notes = evaluate(negatives, str(tiny_llama.build(tmp_path / "tiny")))
    expected = "has chosen the words of llama: a trigram model of the examples in WordNet decides with it"
    assert any("tiny@" in note and expected in note for note in notes)
    assert {"naturalness.low", "plausibility.examples.low"} <= {metric for _, _, metric in figures}


@pytest.mark.slow
def test_a_judge_that_is_not_at_hand_is_one_line_with_the_remedy(negatives: Path) -> None:
    figures, notes = evaluate(negatives, "nobody/nothing")
    expected = "the language model nobody/nothing is not installed, `hf download nobody/nothing` gets it"
    assert any(expected in note and "a trigram model of the examples in WordNet" in note for note in notes)
    assert (1, "all", "naturalness") not in figures


@pytest.mark.slow
def test_whose_words_an_artifact_has(store: Store) -> None:
    queries = [annotation(f"q{i}", query) for i, query in enumerate(HUMAN)]
    annotations = build(store, "annotations", queries)
    tags = build(store, "tags", [], [annotations])
    models = {"llama": "SmolLM2-135M-Instruct.Q4_1@b179c9523d0e", "corpus": "words", "openai": "gpt-4o"}
    rows = [negative(f"q{i}", 1, "-", provider=name, model=model) for i, (name, model) in enumerate(models.items())]
    source = ArtifactNegatives(store, build(store, "negatives", rows, [annotations, tags]))
    assert own_providers(source, "HuggingFaceTB/SmolLM2-135M-Instruct@0123") == {"llama"}
    assert own_providers(source, "gpt2") == set()


def test_a_figure_whose_interval_is_wider_than_its_scale_is_not_shown() -> None:
    figures = {(1, "all", f"plausibility{end}"): value for end, value in (("", 1.1), (".low", -25.9), (".high", 10.2))}
    assert cell(figures, 1, "all", "plausibility") == "– (too few sentences)"
    figures[1, "all", "plausibility.low"], figures[1, "all", "plausibility.high"] = 0.6, 1.4
    assert cell(figures, 1, "all", "plausibility") == "1.100 (0.600 to 1.400)"
