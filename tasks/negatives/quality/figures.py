"""The figures of a quality report: for each level and provider, with 95 % intervals by resampling videos.

docs/results/negatives.md defines them, docs/guides/quality.md the verdict. *Plausibility* is `(LM(negatives) −
LM(random fills)) / (LM(queries) − LM(random fills))`, LM being the mean log-probability of a token under an
interpolated Kneser-Ney trigram model (discount 0.75) of human sentences that the provider did not draw from.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite, isnan
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penumbra.tasks.data.resampling import Estimate, Floats, Ids, Resamples, wilson
from penumbra.tasks.negatives.providers.kneser_ney import KneserNey
from penumbra.tasks.negatives.quality.negatives import Negative
from penumbra.tasks.negatives.quality.reference import Reference, Tokens, words_of
from penumbra.tasks.text.relations import Relation, relations

ALL, CONTROL, QUERIES = "all", "control: ", "originals"
RANDOM_FILLS = f"{CONTROL}random fills"
NATURALNESS = "naturalness"  # by the language model
EVERY_LEVEL = 0  # the level of a figure that belongs to no single level
TOTALS = ("false_negatives", "copies", "leaks", "held_out")  # are numbers of rows, not shares
PARAPHRASE = 0.90
DECIMALS = 6  # further digits depend on the number of threads
FOLDS = 5
MIN_ROWS = 200  # of a level; below, the AUC of queries against other queries leaves 0.5 by more than 0.1
SENTENCES, VIDEOS = 50, 10  # fewer say nothing about how natural a level is
HALF, WIDEST = 0.5, 1.0
MIN_HUMAN = 500  # sentences of human text; below, plausibility and relations still change with every sentence
Numbers = NDArray[Any]
Columns = dict[str, tuple[Numbers, Numbers]]  # metric → what was counted in each row, and out of how much


class Verdict(IntEnum):
    """The verdicts as the table `quality` has them; of the first four a higher one is better."""

    TOO_FEW = 0
    RANDOM = 1
    LESS = 2
    NATURAL = 3
    READ = 4  # no judge but the one that chose the words


def providers_of(places: pd.DataFrame) -> list[str]:
    """Return the names of the figures: `ALL` and, if there are several, each provider.

    A control is never counted with others.
    """
    alone = sorted(places["provider"].unique())
    if any(name == QUERIES or name.startswith(CONTROL) for name in alone):
        return alone
    return [ALL, *(alone if len(alone) > 1 else [])]


def groups_of(places: pd.DataFrame) -> Iterator[tuple[int, str, Ids]]:
    """Yield each level, each of its names, and the numbers of their rows."""
    names = providers_of(places)
    for level in sorted(places["level"].unique()):
        for name in names:
            chosen = (places["level"] == level) & ((name == ALL) | (places["provider"] == name))
            if chosen.any():
                yield int(level), name, np.flatnonzero(chosen)


@dataclass
class Figures:
    """The rows of the table `quality`; `videos` numbers the videos for the resamples."""

    videos: Mapping[str, int]
    resamples: Resamples
    rows: list[dict[str, Any]] = field(default_factory=list)
    votes: dict[tuple[int, str], dict[str, Verdict]] = field(default_factory=dict)  # by level and provider; by judge

    def places(self, rows: pa.Table | Sequence[Negative]) -> pd.DataFrame:
        """Return `level`, `provider` and `video` (its number) of rows of `measures`, or of negatives."""
        if not isinstance(rows, pa.Table):
            names = (("level", pa.int8()), ("provider", pa.string()), ("vid", pa.string()))
            rows = pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in names})
        frame: pd.DataFrame = rows.select(["level", "provider", "vid"]).to_pandas(categories=["provider", "vid"])
        frame["video"] = frame.pop("vid").map(self.videos).astype(np.int64)
        return frame

    def put(self, level: int, provider: str, metric: str, estimate: Estimate | float) -> None:
        """Add a figure, with `metric.low` and `metric.high` if it has an interval; undefined figures are left out."""
        estimate = estimate if isinstance(estimate, Estimate) else Estimate(float(estimate))
        named = {metric: estimate.value, f"{metric}.low": estimate.low, f"{metric}.high": estimate.high}
        for name, value in named.items() if isfinite(estimate.value) else ():
            if not isnan(value):
                row = {"level": level, "provider": provider, "metric": name, "value": round(value, DECIMALS)}
                self.rows.append(row)

    def put_columns(self, places: pd.DataFrame, columns: Columns) -> None:
        """Add the sum of each column that is a total, and the share or mean of any other."""
        numbers = places["video"].to_numpy()
        for level, name, chosen in groups_of(places):
            for metric, (counted, out_of) in columns.items():
                mine = chosen[out_of[chosen] > 0]
                videos, numerators = numbers[mine], counted[mine].astype(np.float64)
                if len(mine) and metric.split(".", maxsplit=1)[0] in TOTALS:
                    self.put(level, name, metric, self.resamples.total(videos, numerators))
                elif len(mine):
                    self.put(level, name, metric, self.share(videos, numerators, out_of[mine].astype(np.float64)))

    def put_verdicts(self, own: Collection[str]) -> None:
        """Add the verdict on each level; providers in `own` take their words from the model that judges."""
        for (level, name), votes in self.votes.items():
            found = decide(votes, NATURALNESS, name in own or (name == ALL and bool(own)))
            if found is not None and self.resamples.count:
                self.put(level, name, "verdict", float(found))

    def share(self, videos: Ids, numerators: Floats, denominators: Floats) -> Estimate:
        """Estimate a ratio; a share of none or of all has Wilson's interval, with each video as one row."""
        found = self.resamples.ratio(videos, numerators, denominators)
        is_extreme = found.value in (0, 1) and found.low == found.high
        return wilson(found.value * (size := len(np.unique(videos))), size) if is_extreme else found


def put_measures(measures: pa.Table, reference: Reference, figures: Figures) -> Columns:
    """Add the figures of the table `measures`; return the columns of those that are shares."""
    slots, ones = _numbers(measures, "slots"), np.ones(len(measures), dtype=np.int8)
    known = measures["template_kept"].is_valid().cast(pa.int8()).to_numpy()
    columns: Columns = {"template_kept": (_numbers(measures, "template_kept"), known)}
    columns["closed_vocabulary"] = _numbers(measures, "closed_vocabulary"), ones
    columns |= {name: (_numbers(measures, name), slots) for name in ("same_slot_class", "equal_to_original")}
    is_judged = measures["may_be_true"].is_valid().cast(pa.int8()).to_numpy()
    columns["may_be_true"] = _numbers(measures, "may_be_true"), is_judged
    places = figures.places(measures)
    figures.put_columns(places, columns)
    put_equalities(measures, places, reference, figures)
    return columns


def put_equalities(measures: pa.Table, places: pd.DataFrame, reference: Reference, figures: Figures) -> None:
    """Add the numbers of rows that equal a query or show what is held out."""
    names = {
        "copies": "copy",
        "false_negatives": "false_negative",
        "false_negatives.lemmatised": "false_negative_lemmatised",
    }
    if reference.leakage.is_labelled:
        names |= {"held_out.compositions": "held_out_composition", "held_out.words": "held_out_word"}
    equalities = {metric: _numbers(measures, column) for metric, column in names.items()}
    if reference.tests:
        trained, splits = _numbers(measures, "trained"), measures["test_splits"].to_pylist()
        tested = np.array([bool(several) for several in splits], dtype=np.int8)
        equalities |= {"leaks": tested * (1 - trained), "leaks.trained": tested * trained}
        for split in reference.tests:
            of_split = np.array([split in several for several in splits], dtype=np.int8)
            equalities[f"leaks.{split}"] = of_split * (1 - trained)
    ones = np.ones(len(measures), dtype=np.int8)
    for level, name, chosen in groups_of(places):
        figures.put(level, name, "rows", len(chosen))
    figures.put_columns(places, {name: (counted, ones) for name, counted in equalities.items()})


def _numbers(rows: pa.Table, name: str) -> Numbers:
    column = rows[name]
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    numbers: Numbers = pc.fill_null(column, 0).to_numpy()
    return numbers


def put_similarity(qids: Sequence[str], cosines: Floats, places: pd.DataFrame, figures: Figures) -> None:
    """Add the mean cosine to the query, the share of paraphrases, and whether cosines fall from level to level."""
    ones = np.ones(len(cosines), dtype=np.int8)
    paraphrases = (cosines > PARAPHRASE).astype(np.int8)
    figures.put_columns(places, {"similarity": (cosines, ones), "paraphrases": (paraphrases, ones)})
    rows = places.assign(qid=pd.Categorical(np.array(qids)), cosine=cosines)
    rows = rows.sort_values(["qid", "level"], kind="stable")
    rows["falls"] = ~(rows.groupby("qid", observed=True)["cosine"].diff() >= 0)  # the first level has none before it
    queries = rows.groupby("qid", observed=True).agg(
        size=("level", "size"),
        falls=("falls", "all"),
        video=("video", "first"),
        provider=("provider", "first"),
        providers=("provider", "nunique"),
    )
    for name in providers_of(places):
        is_own = (queries["providers"] == 1) & (queries["provider"] == name)
        mine = queries[(queries["size"] > 1) & ((name == ALL) | is_own)]
        if len(mine):
            falls = mine["falls"].to_numpy(np.float64)
            share = figures.resamples.ratio(mine["video"].to_numpy(), falls, np.ones(len(mine)))
            figures.put(EVERY_LEVEL, name, "hierarchy", share)


def blind_auc(
    queries: Sequence[str], negatives: Sequence[str], videos: Ids, resamples: Resamples, unit: str = "words"
) -> Estimate | None:
    """Return the AUC of a classifier, each text scored by one fitted on other videos; None with too few to fit one.

    Args:
        queries: the positive examples
        negatives: the negative of each query
        videos: the video of each query
        resamples: resamples of the videos
        unit: what n-grams are made of, `words` or `characters`

    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    labels, groups = np.repeat(np.array([1, 0]), len(queries)), np.tile(videos, 2)
    if len(np.unique(groups)) < FOLDS:
        return None
    options = {"analyzer": "char_wb", "ngram_range": (2, 4)} if unit == "characters" else {"ngram_range": (1, 2)}
    scores, folds = np.empty(len(labels)), np.empty(len(labels), dtype=np.int64)
    try:
        counts = CountVectorizer(**options).fit_transform([*queries, *negatives])  # once for all folds
        for fold, (train, test) in enumerate(GroupKFold(FOLDS).split(groups, groups=groups)):
            known = counts[:, np.flatnonzero(counts[train].getnnz(axis=0) >= 2)]
            if not known.shape[1]:
                return None
            matrix = TfidfTransformer(sublinear_tf=True).fit(known[train]).transform(known)
            model = LogisticRegression(C=3.0, max_iter=1000).fit(matrix[train], labels[train])
            scores[test], folds[test] = model.decision_function(matrix[test]), fold
    except ValueError:  # no text has a word
        return None
    return resamples.area(groups, labels, scores, folds)


def put_blind_auc(rows: Sequence[Negative], unit: str, figures: Figures) -> None:
    places = figures.places(rows)
    for level, name, chosen in groups_of(places):
        if len(chosen) < MIN_ROWS:
            continue
        queries, negatives = [rows[i].query for i in chosen], [rows[i].negative for i in chosen]
        videos = places["video"].to_numpy()[chosen]
        if area := blind_auc(queries, negatives, videos, figures.resamples, unit):
            figures.put(level, name, "blind_auc" if unit == "words" else f"blind_auc.{unit}", area)


def log_probabilities(texts: Sequence[tuple[str, str]], reference: Reference) -> Floats:
    """Return the mean log-probability of a token of each text of a video, under models of the human text."""
    scores = np.zeros(len(texts))
    indices = np.array([reference.human_index(vid) for vid, _ in texts], dtype=np.int64)
    for number in np.unique(indices):
        model = KneserNey.of(words_of(text) for text in reference.human[number].sentences)
        mine = np.flatnonzero(indices == number)
        scores[mine] = model.log_probability([words_of(texts[int(i)][1]) for i in mine])
    return scores


def put_plausibility(
    rows: Sequence[Negative],
    randoms: Sequence[Negative],
    reference: Reference,
    figures: Figures,
    metric: str = "plausibility",
) -> None:
    """Add plausibility in comparison with these random fills, of the rows that have one."""
    fills = {(row.qid, row.level): row.negative for row in randoms}
    filled = [row for row in rows if (row.qid, row.level) in fills]
    texts = [(r.vid, text) for r in filled for text in (r.negative, fills[r.qid, r.level], r.query)]
    put_place_between(filled, log_probabilities(texts, reference).reshape(-1, 3), metric, figures)


def put_likelihood(
    rows: Sequence[Negative], randoms: Sequence[Negative], scores: Mapping[str, float], figures: Figures
) -> None:
    """Add the log-likelihood a word less the query's, and where it lies between random fills and the queries."""
    fills = {(row.qid, row.level): row.negative for row in randoms}
    for group in rows, randoms:
        less = np.array([scores[row.negative] - scores[row.query] for row in group], dtype=np.float64)
        known = np.isfinite(less).astype(np.int8)
        columns = {"likelihood.difference": (less, known), "likelihood.within_1_nat": (less >= -1, known)}
        figures.put_columns(figures.places(group), columns)
    filled = [row for row in rows if (row.qid, row.level) in fills]
    texts = [(row.negative, fills[row.qid, row.level], row.query) for row in filled]
    means = np.array([[scores[text] for text in several] for several in texts]).reshape(-1, 3)
    put_place_between(filled, means, NATURALNESS, figures)


def put_place_between(rows: Sequence[Negative], means: Floats, metric: str, figures: Figures) -> None:
    """Add where the rows lie between random fills (0) and queries (1); `means` are those of row, random fill, query."""
    places = figures.places(rows)
    for level, name, chosen in groups_of(places):
        known = chosen[np.isfinite(means[chosen]).all(axis=1)]
        if not len(known):
            continue
        videos = places["video"].to_numpy()[known]
        estimate = figures.resamples.estimate(
            videos, means[known], lambda mean: (mean[..., 0] - mean[..., 1]) / (mean[..., 2] - mean[..., 1])
        )
        figures.put(level, name, metric, estimate)
        vote = verdict_of(estimate, len(known), len(np.unique(videos)))
        figures.votes.setdefault((level, name), {})[metric] = vote


def attested(negative: Tokens, query: Tokens, human: set[Relation]) -> tuple[int, int]:
    """Return how many of the relations that a negative has and its query lacks human text has, and how many."""
    fresh = set(relations(negative)) - set(relations(query))
    return len(fresh & human), len(fresh)


def put_relations(
    rows: Sequence[Negative],
    randoms: Sequence[Negative],
    parsed: Mapping[str, Tokens],
    reference: Reference,
    figures: Figures,
) -> None:
    """Add the share of attested relations of the rows and of random fills, and the difference."""
    counts = {}
    for group, name in (rows, "rows"), (randoms, "randoms"):
        counts[name] = np.zeros((len(group), 2))
        for index, row in enumerate(group):
            human = reference.human[reference.human_index(row.vid)].relations
            query = [] if row.provider == QUERIES else parsed[row.query]
            counts[name][index] = attested(parsed[row.negative], query, human)
        columns = {"attested_relations": (counts[name][:, 0], counts[name][:, 1])}
        figures.put_columns(figures.places(group), columns)
    places, controls = figures.places(rows), figures.places(randoms)
    for level, name, chosen in groups_of(places):
        own = np.flatnonzero(controls["level"] == level)
        sums = np.zeros((len(chosen) + len(own), 4))
        sums[: len(chosen), :2], sums[len(chosen) :, 2:] = counts["rows"][chosen], counts["randoms"][own]
        videos = np.concatenate([places["video"].to_numpy()[chosen], controls["video"].to_numpy()[own]])
        gain = figures.resamples.estimate(videos, sums, lambda s: s[..., 0] / s[..., 1] - s[..., 2] / s[..., 3])
        figures.put(level, name, "attested_relations.above_random", gain)


# -- the verdict -------------------------------------------------------------------------------------------------------


def verdict_of(naturalness: Estimate, sentences: int, videos: int) -> Verdict:
    """Return the verdict on a level from the interval of its naturalness."""
    low, high = naturalness.low, naturalness.high
    if sentences < SENTENCES or videos < VIDEOS or not high - low <= WIDEST:  # also without an interval
        return Verdict.TOO_FEW
    if high < HALF:
        return Verdict.RANDOM
    if low > 0 and high < 1:
        return Verdict.LESS
    return Verdict.NATURAL if low >= HALF else Verdict.TOO_FEW


def decide(votes: Mapping[str, Verdict], first: str, is_own: bool) -> Verdict | None:
    """Return the verdict of several judges by name; None without any.

    The judge `first` decides alone, unless it has chosen the words itself (`is_own`): then the worst verdict counts,
    and a favourable one is ignored, because the other judge, a trigram model, also favours sentences that people find
    odd.
    """
    if first in votes and not is_own:
        return votes[first]
    bad = [vote for vote in votes.values() if vote in (Verdict.RANDOM, Verdict.LESS)]
    if is_own and votes and not bad:
        return Verdict.READ
    return min(bad or votes.values(), default=None)
