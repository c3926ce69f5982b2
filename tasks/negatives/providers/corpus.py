"""Provider `corpus`: words drawn from the statistics of the training text, without a key, a network or a model.

A slot's word is drawn given the two words on either side, under a Kneser-Ney trigram model of the training queries, and
given the words that it is related to (`penumbra.tasks.text.relations`). A candidate fills the first level, and each
level keeps the words of the level before; several new slots are drawn in turn, in several rounds (Gibbs sampling).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.negatives.providers.kneser_ney import (
    NOTHING,
    Floats,
    Ids,
    KneserNey,
    Rows,
    SlotScorer,
    Trigrams,
    find,
    spans,
)
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.relations import CLASSES, Edge, Relation, Tokens, edges, relations, smoothed

SWEEPS = 4  # rounds of Gibbs sampling where a level adds several slots
DISTINCT = 20  # candidates of a query whose first slot has different words; further ones may repeat a word
MOST_SLOTS = 512  # a query has at most 256 words
CHAINS_AT_ONCE = 128  # bounds the memory
CELLS = 1 << 18  # scores computed at once: 2 MB a table stay in the processor's cache
PRIOR = 1.0  # pseudo-count of a relation that was never seen
NONE = -1  # the key of "no such relation"
KINDS = (*CLASSES, "verb-preposition-noun", "noun-preposition-noun")
ROLES = ("head", "preposition", "dependent")
OTHERS = {role: [other for other in ROLES if other != role] for role in ROLES}


class CorpusProvider(Provider):
    """Samples fills from the training split's statistics; the same seed gives the same fills everywhere."""

    name = "corpus"
    model = "kneser-ney-3+relations"
    prompt = None

    def __init__(self, parsed: Iterable[Tokens], dictionary: Dictionary, seed: int) -> None:
        trigrams, seen = Trigrams(), Counter[Relation]()
        for tokens in parsed:  # read once and not kept: there may be millions
            trigrams.add(token["text"].lower() for token in tokens)
            seen.update(relations(tokens))
        self.language = KneserNey(trigrams)
        self.sightings = Sightings(smoothed(seen))
        self.dictionary, self.seed = dictionary, seed
        self.texts = list(self.language.index)
        self.offers: dict[tuple[str, str], ScoredOffer] = {}  # by primitive class and fine tag

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level; fewer than `candidates` where a level has no more."""
        fillable: list[MaskedQuery] = []
        for chain in (chain for query in queries for chain in query.chains()):
            problem, levels = "", 0  # levels that can be filled
            for level, slots in enumerate(chain.levels, chain.first):
                empty = (slot.no_word_problem() for slot in slots if slot.allowed(self.dictionary).is_empty)
                problem = problem or next(empty, "")
                if problem:
                    yield Fill(chain.qid, level, (), problem)
                else:
                    levels += 1
            if levels:
                fillable.append(replace(chain, levels=chain.levels[:levels]))
        for start in range(0, len(fillable), CHAINS_AT_ONCE):
            chains = fillable[start : start + CHAINS_AT_ONCE]
            sampler = Sampler(self, chains, candidates)
            for depth in range(max(len(chain.levels) for chain in chains)):
                yield from sampler.level(depth)


class Sightings:
    """How often each word was seen in each relation: a row for each relation and word in it, sorted by word.

    A row has the number of the word's lemma, a key of the relation's other two words, and the count as a multiple of
    the count that is expected from the word's share of the role and kind.
    """

    def __init__(self, smoothed_counts: dict[Relation, float]) -> None:
        counted = sorted(smoothed_counts.items())
        names = {word for relation, _ in counted for word in (relation.head, relation.preposition, relation.dependent)}
        self.index = {word: i for i, word in enumerate(sorted(names | {""}), 1)}  # 0: a lemma in no relation
        self.size = len(self.index) + 1
        kinds = np.array([KINDS.index(relation.kind) for relation, _ in counted], dtype=np.int64)
        counts = np.array([count for _, count in counted], dtype=np.float64)
        words = {role: self.ids([getattr(relation, role) for relation, _ in counted]) for role in ROLES}
        columns = []
        for number, role in enumerate(ROLES):
            is_word = words[role] != self.index[""]
            place = number * len(KINDS) + kinds[is_word]
            first, second = (words[other][is_word] for other in OTHERS[role])
            keys = (place * self.size + first) * self.size + second
            columns.append((words[role][is_word], place, keys, counts[is_word]))
        lemmas, places, keys, counts = (np.concatenate(several) for several in zip(*columns, strict=True))
        order = np.argsort(lemmas, kind="stable")
        lemmas, places, keys, counts = lemmas[order], places[order], keys[order], counts[order]
        per_place = np.bincount(places, counts)
        _, same = np.unique(lemmas * len(per_place) + places, return_inverse=True)
        self.lemmas, self.keys = lemmas, keys
        self.values: Floats = counts * per_place[places] / np.bincount(same, counts)[same]
        self.distinct_keys, key = np.unique(keys, return_inverse=True)
        self.totals: Floats = np.bincount(key, counts).astype(np.float64)  # of each distinct key

    def ids(self, lemmas: Iterable[str]) -> Ids:
        return np.array([self.index.get(lemma, 0) for lemma in lemmas], dtype=np.int64)


class ScoredOffer:
    """The words of one class and tag, and how well each of them fits a slot.

    A word's score in a relation is p(word | the rest of the relation) / p(word), the first smoothed towards the second:
    1 if the rest was never seen, below 1 if other words were seen with it.
    """

    def __init__(self, provider: CorpusProvider, key: tuple[str, str]) -> None:
        self.dictionary, seen = provider.dictionary, provider.sightings
        words = self.dictionary.offer(*key).words
        self.scorer = SlotScorer(provider.language, np.array(provider.language.ids(words), dtype=np.int64))
        self.lemmas = seen.ids(self.dictionary.lemmas[(*key, word)] for word in words)
        starts = np.searchsorted(seen.lemmas, self.lemmas, "left")
        sizes = np.searchsorted(seen.lemmas, self.lemmas, "right") - starts
        picked = spans(starts, sizes)
        self.met = Rows(seen.keys[picked], np.repeat(np.arange(len(words)), sizes), seen.values[picked], len(words))
        self.totals = find(seen.distinct_keys, seen.totals, self.met.keys, 0.0)
        self.kinds: dict[tuple[str, str, str, str, bool], int] = {}
        self.allowed: list[NDArray[np.bool_]] = []  # the words that each kind of slot may take

    def kind_of(self, slot: Slot) -> int:
        """Return the number of the slot's kind: slots of the same word may take the same words."""
        if slot.kind not in self.kinds:
            self.kinds[slot.kind] = len(self.kinds)
            _, offer, excluded = slot.allowed(self.dictionary)
            self.allowed.append(np.ones(len(offer.words), dtype=bool))
            self.allowed[-1][list(excluded)] = False
        return self.kinds[slot.kind]

    def scores(self, states: Ids) -> Floats:
        """Return scores (states, words) of all words in each state, as `Sampler._states` describes it."""
        contexts, same = np.unique(states[:, 1:5], axis=0, return_inverse=True)
        scores: Floats = self.scorer.score(*contexts.T)[same.ravel()]
        for met in states[:, 5:].T:
            keys, same = np.unique(met, return_inverse=True)
            totals = find(self.met.keys, self.totals, keys, 0.0)
            scores *= np.sqrt((self.met.dense(keys) + PRIOR) / (totals[:, None] + PRIOR))[same.ravel()]
        scores *= np.stack(self.allowed)[states[:, 0]]
        return scores


class Target(NamedTuple):
    """A slot to draw: its chain, offer and kind, its relations with its role in each, and a seed for each candidate."""

    chain: int
    slot: Slot
    offer: ScoredOffer
    kind: int
    relations: list[tuple[str, Edge]]
    seeds: NDArray[np.uint64]


class Sampler:
    """The candidates of several chains, one a row: `candidates` rows for each chain.

    `words` (rows, length) holds each query between <s> <s> and </s>, `lemmas` its lemmas at the same places.
    """

    def __init__(self, provider: CorpusProvider, chains: Sequence[MaskedQuery], candidates: int) -> None:
        self.provider, self.chains, self.candidates = provider, chains, candidates
        words = np.full((len(chains), max(len(chain.tokens) for chain in chains) + 4), NOTHING, dtype=np.int64)
        lemmas = words.copy()
        for i, chain in enumerate(chains):
            ids = provider.language.ids(token["text"].lower() for token in chain.tokens)
            words[i, : len(ids) + 3] = [1, 1, *ids, 2]
            lemmas[i, 2 : len(ids) + 2] = provider.sightings.ids(token["lemma"] for token in chain.tokens)
        self.words, self.lemmas = np.repeat(words, candidates, axis=0), np.repeat(lemmas, candidates, axis=0)
        self.edges = [edges(chain.tokens) for chain in chains]
        self.alive = np.ones(len(self.words), dtype=bool)
        self.given: set[tuple[str, int, tuple[str, ...]]] = set()

    def level(self, depth: int) -> Iterator[Fill]:
        """Draw the slots that the levels at this depth add, and yield the fills that are new."""
        added = [self._targets(number, depth) for number in range(len(self.chains))]
        most = max(map(len, added))
        for sweep in range(SWEEPS if most > 1 else 1):
            for turn in range(most):
                groups: dict[ScoredOffer, list[Target]] = defaultdict(list)
                for targets in added:
                    if turn < len(targets) and (sweep == 0 or len(targets) > 1):
                        groups[targets[turn].offer].append(targets[turn])
                for targets in groups.values():
                    self._draw(targets, depth, sweep * MOST_SLOTS + turn)
        for number, chain in enumerate(self.chains):
            if depth >= len(chain.levels):
                continue
            rows = slice(number * self.candidates, (number + 1) * self.candidates)
            columns = [slot.token + 2 for slot in chain.levels[depth]]
            for ids in self.words[rows][self.alive[rows]][:, columns].tolist():
                fill = Fill(chain.qid, chain.first + depth, tuple(self.provider.texts[word] for word in ids))
                if (fill.qid, fill.level, fill.words) not in self.given:
                    self.given.add((fill.qid, fill.level, fill.words))
                    yield fill

    def _targets(self, number: int, depth: int) -> list[Target]:
        chain, provider, targets = self.chains[number], self.provider, []
        if depth >= len(chain.levels):
            return []
        seeds = [row_seed(provider.seed, chain.qid, chain.first + depth, i) for i in range(self.candidates)]
        for slot in chain.levels[depth]:
            if depth and slot in chain.levels[depth - 1]:
                continue
            key = slot.allowed(provider.dictionary).key
            offer = provider.offers.get(key) or provider.offers.setdefault(key, ScoredOffer(provider, key))
            roles = [(role, edge) for edge in self.edges[number] for role in ROLES if getattr(edge, role) == slot.token]
            targets.append(Target(number, slot, offer, offer.kind_of(slot), roles, np.array(seeds, dtype=np.uint64)))
        return targets

    def _draw(self, targets: Sequence[Target], depth: int, counter: int) -> None:
        """Draw one slot of several chains, for all their candidates.

        Rows in the same state have the same scores, which are computed once: at first all candidates of a chain share a
        state, and often similar chains do. If a first level has one slot, its candidates get different words.
        """
        offer, each = targets[0].offer, np.arange(self.candidates)
        rows = (np.array([target.chain for target in targets])[:, None] * self.candidates + each).ravel()
        columns = np.repeat([target.slot.token + 2 for target in targets], self.candidates)
        distinct_states, state_of_row = np.unique(self._states(targets, rows, columns), axis=0, return_inverse=True)
        state_of_row = state_of_row.ravel()
        draws = uniform(np.concatenate([target.seeds for target in targets]), counter)
        is_only = [depth == 0 and len(self.chains[target.chain].levels[0]) == 1 for target in targets]
        distinct, chosen = np.flatnonzero(is_only), np.full(len(rows), -1, dtype=np.int64)
        order = np.argsort(state_of_row, kind="stable")
        step = max(1, CELLS // len(offer.lemmas))
        for start in range(0, len(distinct_states), step):
            scores = offer.scores(distinct_states[start : start + step])
            ends = np.searchsorted(state_of_row[order], np.arange(start, start + len(scores) + 1))
            for mass, first, last in zip(np.cumsum(scores, axis=1), ends, ends[1:], strict=False):
                chosen[order[first:last]] = _pick(mass, draws[order[first:last]])
            theirs = state_of_row[distinct * self.candidates] - start
            is_scored = (theirs >= 0) & (theirs < len(scores))
            candidates = distinct[is_scored, None] * self.candidates + each
            chosen[candidates] = _pick_different(scores[theirs[is_scored]], draws[candidates])
        drawn = chosen >= 0  # a row for which no word has a score is given up
        self.alive[rows[~drawn]] = False
        self.words[rows[drawn], columns[drawn]] = offer.scorer.words[chosen[drawn]]
        self.lemmas[rows[drawn], columns[drawn]] = offer.lemmas[chosen[drawn]]

    def _states(self, targets: Sequence[Target], rows: Ids, columns: Ids) -> Ids:
        """Return each row's state, which determines its scores: slot kind, four words around it, relation keys."""
        seen = self.provider.sightings
        most = max(len(target.relations) for target in targets)
        states = np.full((len(rows), 5 + most), NONE, dtype=np.int64)
        for column, offset in enumerate((-2, -1, 1, 2), 1):
            states[:, column] = self.words[rows, columns + offset]
        for i, target in enumerate(targets):
            block = slice(i * self.candidates, (i + 1) * self.candidates)
            states[block, 0] = target.kind
            for column, (role, edge) in enumerate(target.relations, 5):
                key: Any = ROLES.index(role) * len(KINDS) + KINDS.index(edge.kind)
                for other in OTHERS[role]:
                    token = getattr(edge, other)
                    key = key * seen.size + (self.lemmas[rows[block], token + 2] if token >= 0 else seen.index[""])
                states[block, column] = key
        return states


def _pick(mass: Floats, draws: Any) -> Any:
    """Return for each draw the index at which the cumulative mass passes it; -1 where there is no mass."""
    if mass[-1] <= 0:
        return -1
    return np.minimum(mass.searchsorted(draws * mass[-1], side="right"), len(mass) - 1)


def _pick_different(scores: Floats, draws: Floats) -> Ids:
    """Return indices (rows, candidates): the first `DISTINCT` of a row differ; the others use roots of the scores."""
    chosen = np.empty(draws.shape, dtype=np.int64)
    for row, (weights, flat) in enumerate(zip(scores.copy(), np.cumsum(np.sqrt(scores), axis=1), strict=True)):
        for i, draw in enumerate(draws[row]):
            other = _pick(np.cumsum(weights), draw) if i < DISTINCT else -1
            chosen[row, i] = _pick(flat, draw) if other < 0 else other  # or every word was drawn already
            weights[chosen[row, i]] = 0.0
    return chosen
