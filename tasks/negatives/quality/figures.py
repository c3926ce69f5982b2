"""The figures of a quality report: for each level and provider, with 95 % intervals by resampling videos.

docs/results/negatives.md defines them, docs/guides/quality.md the verdict. *Plausibility* is `(LM(negatives) −
LM(random fills)) / (LM(queries) − LM(random fills))`, LM being the mean log-probability of a token under an
interpolated Kneser-Ney trigram model (discount 0.75) of human sentences that the provider did not draw from.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
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
from penumbra.tasks.negatives.files import Negative
from penumbra.tasks.negatives.providers.kneser_ney import KneserNey, Trigrams
from penumbra.tasks.negatives.quality.negatives import Reference, words_of
from penumbra.tasks.text.relations import Relation, Tokens, relations

ALL, CONTROL, QUERIES = "all", "control: ", "originals"
RANDOM_FILLS = f"{CONTROL}random fills"
NATURALNESS = "naturalness"  # by the language model
EVERY_LEVEL = 0  # the level of a figure that belongs to no single level
PARAPHRASE = 0.90
DECIMALS = 6  # further digits depend on the number of threads
FOLDS = 5
MIN_ROWS = 200  # of a level; with fewer, even the AUC of queries against other queries is not within 0.1 of 0.5
SENTENCES, VIDEOS = 50, 10  # fewer say nothing about how natural a level is
HALF, WIDEST = 0.5, 1.0
MIN_HUMAN = 500  # sentences of human text; below, plausibility and relations still change with every sentence
Rows = Sequence[Negative]
Numbers = NDArray[Any]
Columns = dict[str, tuple[Numbers, Numbers]]  # metric → numerator and denominator of each row


class Verdict(IntEnum):
    """The verdicts, with their numbers in the table `quality`; of the first four, a higher number is better."""

    TOO_FEW = 0
    RANDOM = 1
    LESS = 2
    NATURAL = 3
    READ = 4  # to be read by people: the only judge has chosen the words itself


def texts_of(*rows: Negative) -> list[str]:
    """Return the queries and negatives of rows, each text once."""
    return sorted({text for row in rows for text in (row.query, row.negative)})


def providers_of(places: pd.DataFrame) -> list[str]:
    """Return the names with figures: `ALL` and, if there are several, each provider. Controls are never combined."""
    alone = sorted(places["provider"].unique())
    if any(name == QUERIES or name.startswith(CONTROL) for name in alone):
        return alone
    return [ALL, *(alone if len(alone) > 1 else [])]


def groups_of(places: pd.DataFrame) -> Iterator[tuple[int, str, Ids, Ids]]:
    """Yield (level, name, row numbers, video of each row) for each level and each name of `providers_of`."""
    names, videos = providers_of(places), places["video"].to_numpy()
    for level in sorted(places["level"].unique()):
        for name in names:
            chosen = (places["level"] == level) & ((name == ALL) | (places["provider"] == name))
            if chosen.any():
                yield int(level), name, np.flatnonzero(chosen), videos[chosen]


@dataclass
class Figures:
    """The rows of the table `quality`; `videos` numbers the videos for the resamples."""

    videos: Mapping[str, int]
    resamples: Resamples
    rows: list[dict[str, Any]] = field(default_factory=list)
    votes: dict[tuple[int, str], dict[str, Verdict]] = field(default_factory=dict)  # (level, provider) → judge

    def places(self, rows: pa.Table | Rows) -> pd.DataFrame:
        """Return `level`, `provider` and `video` (its number) of rows of `measures`, or of negatives."""
        columns = ["level", "provider", "vid"]
        if isinstance(rows, pa.Table):
            frame: pd.DataFrame = rows.select(columns).to_pandas(categories=["provider", "vid"])
        else:
            frame = pd.DataFrame([(row.level, row.provider, row.vid) for row in rows], columns=columns)
        frame["video"] = frame.pop("vid").map(self.videos).astype(np.int64)
        return frame

    def put(self, level: int, provider: str, metric: str, estimate: Estimate) -> None:
        """Add a figure, with `metric.low` and `metric.high` if it has an interval; undefined figures are left out."""
        for end, value in (("", estimate.value), (".low", estimate.low), (".high", estimate.high)):
            if isfinite(estimate.value) and not isnan(value):
                about = {"level": level, "provider": provider, "metric": f"{metric}{end}"}
                self.rows.append({**about, "value": round(value, DECIMALS)})

    def put_columns(self, places: pd.DataFrame, columns: Columns) -> None:
        """Add the share or mean of each column.

        A share of 0 or 1 has no bootstrap interval; it gets Wilson's interval, with each video counted as one row.
        """
        for level, name, chosen, videos in groups_of(places):
            for metric, (counted, out_of) in columns.items():
                known = out_of[chosen] > 0
                numerators, denominators = (it[chosen][known].astype(np.float64) for it in (counted, out_of))
                found = self.resamples.ratio(videos[known], numerators, denominators)
                if found.value in (0, 1) and found.low == found.high:
                    size = len(np.unique(videos[known]))
                    found = wilson(found.value * size, size)
                self.put(level, name, metric, found)

    def put_measures(self, measures: pa.Table, reference: Reference) -> None:
        """Add the figures of the table `measures`: shares, and numbers of rows with a leak or a copy."""

        def numbers(name: str) -> Numbers:
            return np.asarray(pc.fill_null(measures[name].cast(pa.int32()), 0).to_numpy())

        shares: Columns = {}
        for name in ("template_kept", "closed_vocabulary", "same_slot_class", "equal_to_original", "may_be_true"):
            is_of_slots = name in ("same_slot_class", "equal_to_original")
            known = numbers("slots") if is_of_slots else measures[name].is_valid().to_numpy()
            shares[name] = numbers(name), known
        totals = {
            "copies": numbers("copy"),
            "false_negatives": numbers("false_negative"),
            "false_negatives.lemmatised": numbers("false_negative_lemmatised"),
        }
        if reference.leakage.is_labelled:
            totals["held_out.compositions"] = numbers("held_out_composition")
            totals["held_out.words"] = numbers("held_out_word")
        if reference.tests:
            trained, splits = numbers("trained"), measures["test_splits"].to_pylist()
            tested = np.array([*map(bool, splits)])
            totals |= {"leaks": tested * (1 - trained), "leaks.trained": tested * trained}
            for split in reference.tests:
                totals[f"leaks.{split}"] = np.array([split in several for several in splits]) * (1 - trained)
        places = self.places(measures)
        self.put_columns(places, shares)
        for level, name, chosen, _ in groups_of(places):
            self.put(level, name, "rows", Estimate(float(len(chosen))))
        for level, name, chosen, videos in groups_of(places):
            for metric, counted in totals.items():
                self.put(level, name, metric, self.resamples.total(videos, counted[chosen].astype(np.float64)))

    def put_similarity(self, qids: Sequence[str], cosines: Floats, places: pd.DataFrame) -> None:
        """Add the mean cosine to the query, the share of paraphrases, and whether cosines fall from level to level."""
        ones = np.ones(len(cosines), dtype=np.int8)
        paraphrases = (cosines > PARAPHRASE).astype(np.int8)
        self.put_columns(places, {"similarity": (cosines, ones), "paraphrases": (paraphrases, ones)})
        rows = places.assign(qid=pd.Categorical(np.array(qids)), cosine=cosines)
        rows = rows.sort_values(["qid", "level"], kind="stable")
        # the first level of a query has no difference: it counts as falling
        rows["falls"] = ~(rows.groupby("qid", observed=True)["cosine"].diff() >= 0)
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
            falls = mine["falls"].to_numpy(np.float64)
            share = self.resamples.ratio(mine["video"].to_numpy(), falls, np.ones(len(mine)))
            self.put(EVERY_LEVEL, name, "hierarchy", share)

    def put_blind_auc(self, rows: Rows, unit: str = "words") -> None:
        for level, name, chosen, videos in groups_of(self.places(rows)):
            texts = [rows[i].query for i in chosen], [rows[i].negative for i in chosen]
            if len(chosen) >= MIN_ROWS and (area := blind_auc(*texts, videos, self.resamples, unit)):
                self.put(level, name, "blind_auc" if unit == "words" else f"blind_auc.{unit}", area)

    def put_plausibility(self, rows: Rows, randoms: Rows, human: Sequence[str], metric: str) -> None:
        """Add plausibility by a model of human text, in comparison with these random fills."""
        texts = texts_of(*rows, *randoms)
        means = KneserNey(Trigrams(map(words_of, human))).log_probability([*map(words_of, texts)])
        self.put_place_between(rows, randoms, dict(zip(texts, means.tolist(), strict=True)), metric)

    def put_likelihood(self, rows: Rows, randoms: Rows, scores: Mapping[str, float]) -> None:
        """Add the log-likelihood per word minus the query's, and its place between random fills (0) and queries (1)."""
        for group in rows, randoms:
            gaps = np.array([scores[row.negative] - scores[row.query] for row in group], dtype=np.float64)
            known = np.isfinite(gaps).astype(np.int8)
            columns = {"likelihood.difference": (gaps, known), "likelihood.within_1_nat": (gaps >= -1, known)}
            self.put_columns(self.places(group), columns)
        self.put_place_between(rows, randoms, scores, NATURALNESS)

    def put_place_between(self, rows: Rows, randoms: Rows, scores: Mapping[str, float], metric: str) -> None:
        """Add the place of rows between their random fill (0) and query (1) by `scores`; skip rows without a fill."""
        fills = {(row.qid, row.level): row.negative for row in randoms}
        filled = [row for row in rows if (row.qid, row.level) in fills]
        texts = [(row.negative, fills[row.qid, row.level], row.query) for row in filled]
        means = np.array([[scores[text] for text in several] for several in texts]).reshape(-1, 3)
        for level, name, chosen, of_group in groups_of(self.places(filled)):
            known = np.isfinite(means[chosen]).all(axis=1)
            if not known.any():
                continue
            videos = of_group[known]
            estimate = self.resamples.estimate(
                videos, means[chosen][known], lambda mean: (mean[..., 0] - mean[..., 1]) / (mean[..., 2] - mean[..., 1])
            )
            self.put(level, name, metric, estimate)
            vote = verdict_of(estimate, len(videos), len(np.unique(videos)))
            self.votes.setdefault((level, name), {})[metric] = vote

    def put_relations(self, rows: Rows, randoms: Rows, parsed: Mapping[str, Tokens], attested: Set[Relation]) -> None:
        """Add the share of attested relations among a negative's relations that its query lacks, and its excess.

        The excess is the share minus the share of random fills. For the queries themselves, all relations count.
        """
        counts = []
        for group in rows, randoms:
            of_group = np.zeros((len(group), 2))  # attested relations, and all
            for index, row in enumerate(group):
                query = set() if row.provider == QUERIES else set(relations(parsed[row.query]))
                fresh = set(relations(parsed[row.negative])) - query
                of_group[index] = len(fresh & attested), len(fresh)
            self.put_columns(self.places(group), {"attested_relations": (of_group[:, 0], of_group[:, 1])})
            counts.append(of_group)
        controls = self.places(randoms)
        for level, name, chosen, of_rows in groups_of(self.places(rows)):
            own = np.flatnonzero(controls["level"] == level)
            sums = np.zeros((len(chosen) + len(own), 4))
            sums[: len(chosen), :2], sums[len(chosen) :, 2:] = counts[0][chosen], counts[1][own]
            videos = np.concatenate([of_rows, controls["video"].to_numpy()[own]])
            gain = self.resamples.estimate(videos, sums, lambda s: s[..., 0] / s[..., 1] - s[..., 2] / s[..., 3])
            self.put(level, name, "attested_relations.above_random", gain)

    def put_verdicts(self, own: Collection[str]) -> None:
        """Add the verdict on each level; providers in `own` take their words from the model that judges."""
        for (level, name), votes in self.votes.items():
            found = decide(votes, name in own or (name == ALL and bool(own)))
            if found is not None and self.resamples.count:
                self.put(level, name, "verdict", Estimate(float(found)))


def blind_auc(
    queries: Sequence[str], negatives: Sequence[str], videos: Ids, resamples: Resamples, unit: str = "words"
) -> Estimate | None:
    """Return the AUC of a classifier of queries against negatives, cross-validated by video; None with too few texts.

    `negatives` and `videos` belong to the queries at the same index; n-grams are of `unit`: words or characters.
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


def decide(votes: Mapping[str, Verdict], is_own: bool) -> Verdict | None:
    """Return the verdict on a level from its `votes`, one for each judge, by the judge's figure; None without votes.

    The language model decides alone, unless it has chosen the words itself (`is_own`). Then the worst verdict counts:
    favourable ones are ignored, because the trigram model also favours sentences that people find odd, and its `RANDOM`
    counts as `LESS`, because to this model words that its text lacks are random.
    """
    if NATURALNESS in votes and not is_own:
        return votes[NATURALNESS]
    bad = [vote for vote in votes.values() if vote in (Verdict.RANDOM, Verdict.LESS)]
    if is_own and votes and not bad:
        return Verdict.READ
    if is_own and bad and votes.get(NATURALNESS) is not Verdict.RANDOM:
        return Verdict.LESS
    return min(bad or votes.values(), default=None)
