"""Provider `corpus`: words drawn from the training text's own statistics.

A slot's word is drawn given the two words on either side, under a Kneser-Ney trigram model of the training queries, and
given the words that it stands in a relation with (`penumbra.tasks.text.relations`). A candidate starts from the query,
fills the slots of the first level and goes on from there: each level keeps the words of the level before and adds its
own. Where a level adds several slots, they are drawn in turn, several times over (Gibbs sampling). It needs no key, no
network and no model.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot
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
from penumbra.tasks.text.relations import CLASSES, Edge, Preferences, Relation, Tokens, edges, relations

SWEEPS = 4  # rounds of Gibbs sampling where a level adds several slots
DISTINCT = 20  # so many candidates begin with different words; the others may repeat one of them
MOST_SLOTS = 512  # a query has at most 256 words
CHAINS_AT_ONCE = 128  # bounds the memory
CELLS = 1 << 18  # scores computed at once: 2 MB a table stay in the processor's cache
PRIOR = 1.0  # pseudo-count of a relation that was never seen
NONE = -1  # the key of "no such relation"
KINDS = (*CLASSES, "verb-preposition-noun", "noun-preposition-noun")
ROLES = ("head", "preposition", "dependent")
OTHERS = {
    "head": ("dependent", "preposition"),
    "preposition": ("head", "dependent"),
    "dependent": ("head", "preposition"),
}

Class = tuple[str, str]  # primitive class and fine tag
T = TypeVar("T", int, Ids)


# -- selectional preference -------------------------------------------------------------------------------------------


class RelationIndex:
    """Numbers for lemmas, and for what a word in one role of a relation meets in the other two roles."""

    def __init__(self, preferences: Preferences) -> None:
        self.counts = preferences.counts
        lemmas = {word for relation in self.counts for word in (getattr(relation, role) for role in ROLES)}
        self.index = {word: i for i, word in enumerate(sorted(lemmas | {""}), 1)}
        self.size = len(self.index) + 1

    def ids(self, lemmas: Sequence[str]) -> list[int]:
        """Return the lemmas' numbers; 0 for a lemma that is in no relation."""
        return [self.index.get(lemma, 0) for lemma in lemmas]

    def key(self, role: str, kind: str, first: T, second: T) -> T:
        """Return the number of what a word in this role meets: the other two words, in the order of `OTHERS`."""
        place = ROLES.index(role) * len(KINDS) + KINDS.index(kind)
        return (place * self.size + first) * self.size + second

    @cached_property
    def sightings(self) -> "Sightings":
        """How often each word was seen in each relation."""
        counted, kinds = sorted(self.counts.items()), {kind: number for number, kind in enumerate(KINDS)}
        kind = np.array([kinds[relation.kind] for relation, _ in counted], dtype=np.int64)
        counts = np.array([count for _, count in counted], dtype=np.float64)
        words = {
            role: np.array(self.ids([getattr(relation, role) for relation, _ in counted]), dtype=np.int64)
            for role in ROLES
        }
        columns = []
        for number, role in enumerate(ROLES):
            is_word = words[role] != self.index[""]
            place = number * len(KINDS) + kind[is_word]
            first, second = (words[other][is_word] for other in OTHERS[role])
            keys = (place * self.size + first) * self.size + second
            columns.append((words[role][is_word], place, keys, counts[is_word]))
        return Sightings.of(*(np.concatenate(several) for several in zip(*columns, strict=True)))


@dataclass(frozen=True)
class Sightings:
    """A row for each relation and word in it, sorted by word; a key is what the word meets there.

    A value is the count as a multiple of the count that is expected from the word's share of the role and kind.
    """

    lemmas: Ids
    keys: Ids
    values: Floats
    distinct_keys: Ids
    totals: Floats  # of each distinct key

    @classmethod
    def of(cls, lemmas: Ids, places: Ids, keys: Ids, counts: Floats) -> "Sightings":
        """Return the sightings of these words in these places, each in the order of the words."""
        order = np.argsort(lemmas, kind="stable")
        lemmas, places, keys, counts = lemmas[order], places[order], keys[order], counts[order]
        per_place = np.bincount(places, counts)
        _, same = np.unique(lemmas * len(per_place) + places, return_inverse=True)
        distinct_keys, key = np.unique(keys, return_inverse=True)
        values = counts * per_place[places] / np.bincount(same, counts)[same]
        return cls(lemmas, keys, values, distinct_keys, np.bincount(key, counts).astype(np.float64))


@dataclass(frozen=True)
class Preference:
    """The scores of one class's words in relations.

    A word's score is p(word | the rest of the relation) / p(word), the first smoothed towards the second: 1 where the
    rest says nothing, less where other words were seen in its place.
    """

    rows: Rows
    totals: Floats  # of each of the rows' keys

    @classmethod
    def of(cls, relation_index: RelationIndex, lemmas: Sequence[str]) -> "Preference":
        """Gather the sightings of these lemmas, one for each word of the class."""
        ids, seen = np.array(relation_index.ids(lemmas), dtype=np.int64), relation_index.sightings
        starts, ends = (np.searchsorted(seen.lemmas, ids, side) for side in ("left", "right"))
        picked, columns = spans(starts, ends - starts), np.repeat(np.arange(len(ids)), ends - starts)
        rows = Rows.gather(seen.keys[picked], columns, seen.values[picked], len(lemmas))
        return cls(rows, find(seen.distinct_keys, seen.totals, rows.keys, 0.0))

    def score(self, keys: Ids) -> Floats:
        """Return scores (rows, words), each row for one key; `NONE` gives equal scores."""
        totals = find(self.rows.keys, self.totals, keys, 0.0)
        scores: Floats = (self.rows.dense(keys) + PRIOR) / (totals[:, None] + PRIOR)
        return scores


# -- the provider -----------------------------------------------------------------------------------------------------


class CorpusProvider:
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
        self.relation_index = RelationIndex(Preferences(seen))
        self.dictionary, self.seed = dictionary, seed
        self.texts = list(self.language.index)
        self._offers: dict[Class, ScoredOffer] = {}

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level; fewer than `candidates` where a level has no more."""
        chains = [chain for query in queries for chain in query.chains()]
        for start, end in pairwise([*range(0, len(chains), CHAINS_AT_ONCE), len(chains)]):
            yield from self._fill(chains[start:end], candidates)

    def _fill(self, chains: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        fillable = []
        for chain in chains:
            problem = self._problem(chain)
            if problem:
                yield from (Fill(chain.qid, chain.first + i, (), problem) for i in range(len(chain.levels)))
            else:
                fillable.append(chain)
        if fillable:
            sampler = Sampler(self, fillable, candidates)
            for depth in range(max(len(chain.levels) for chain in fillable)):
                yield from sampler.level(depth)

    def _problem(self, chain: MaskedQuery) -> str:
        """Return why a chain cannot be filled, or ''."""
        for slot in chain.levels[-1]:
            offer, own = slot.choice(self.dictionary)
            if len(offer.words) == len(own):
                return slot.no_word_problem()
        return ""

    def offer(self, key: Class) -> "ScoredOffer":
        """Return the words of a class and tag with their scorers."""
        if key not in self._offers:
            offer = self.dictionary.offer(*key)
            words = np.array(self.language.ids(offer.words), dtype=np.int64)
            lemmas = [self.dictionary.lemma(*key, word) for word in offer.words]
            self._offers[key] = ScoredOffer(
                SlotScorer(self.language, words),
                Preference.of(self.relation_index, lemmas),
                np.array(self.relation_index.ids(lemmas), dtype=np.int64),
                self.dictionary,
            )
        return self._offers[key]


class ScoredOffer:
    """The words of one class and tag, and a row of `allowed` (slots, words) for each kind of slot seen so far."""

    def __init__(self, scorer: SlotScorer, preference: Preference, lemmas: Ids, dictionary: Dictionary) -> None:
        self.scorer, self.preference, self.lemmas, self.dictionary = scorer, preference, lemmas, dictionary
        self._rows: dict[tuple[str, str, str, str], int] = {}
        self._allowed: list[NDArray[np.bool_]] = []

    def row_of(self, slot: Slot) -> int:
        """Return the slot's row of `allowed`."""
        key = (slot.primitive, slot.tag, slot.word, slot.lemma)
        if key not in self._rows:
            self._rows[key] = len(self._rows)
            offer, own = slot.choice(self.dictionary)
            self._allowed.append(np.ones(len(offer.words), dtype=bool))
            self._allowed[-1][list(own)] = False
            self.__dict__.pop("allowed", None)
        return self._rows[key]

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        return np.stack(self._allowed)

    def scores(self, states: Ids) -> Floats:
        """Return scores (states, words) of all words in each state, as `Sampler._states` describes it."""
        kinds, around, keys_met = states[:, 0], states[:, 1:5], states[:, 5:]
        contexts, same = np.unique(around, axis=0, return_inverse=True)
        scores: Floats = self.scorer.score(*contexts.T)[same.ravel()]
        for met in keys_met.T:
            keys, same = np.unique(met, return_inverse=True)
            scores *= np.sqrt(self.preference.score(keys))[same.ravel()]
        scores *= self.allowed[kinds]
        return scores


class Target(NamedTuple):
    """A slot to draw: its chain, its row of `allowed`, and its relations, each with the slot's role in it."""

    chain: int
    slot: Slot
    kind: int
    relations: list[tuple[str, Edge]]


class Sampler:
    """The candidates of several chains, one a row: `candidates` rows for each chain.

    `words` (rows, length) holds each query between <s> <s> and </s>, `lemmas` its lemmas at the same places.
    """

    def __init__(self, provider: CorpusProvider, chains: Sequence[MaskedQuery], candidates: int) -> None:
        self.provider, self.chains, self.candidates = provider, chains, candidates
        language, relation_index = provider.language, provider.relation_index
        words = [[1, 1, *language.ids(t["text"].lower() for t in c.tokens), 2, NOTHING] for c in chains]
        lemmas = [[0, 0, *relation_index.ids([t["lemma"] for t in c.tokens])] for c in chains]
        self.words = np.repeat(_padded(words), candidates, axis=0)
        self.lemmas = np.repeat(_padded(lemmas), candidates, axis=0)
        self.edges = [edges(chain.tokens) for chain in chains]
        self.alive = np.ones(len(self.words), dtype=bool)
        self.given: set[tuple[str, int, tuple[str, ...]]] = set()
        self._known_seeds: dict[tuple[int, int], NDArray[np.uint64]] = {}

    def level(self, depth: int) -> Iterator[Fill]:
        """Draw the slots that the levels at this depth add, and yield the fills that are new."""
        added = [_added_slots(chain, depth) for chain in self.chains]
        most = max(map(len, added))
        for sweep in range(SWEEPS if most > 1 else 1):
            for turn in range(most):
                groups: dict[Class, list[Target]] = defaultdict(list)
                for number, slots in enumerate(added):
                    if turn < len(slots) and (sweep == 0 or len(slots) > 1):
                        key = slots[turn].offered_class(self.provider.dictionary)
                        groups[key].append(self._target(number, slots[turn], key))
                for key, targets in groups.items():
                    self._draw(key, targets, depth, sweep * MOST_SLOTS + turn)
        for number, chain in enumerate(self.chains):
            if depth < len(chain.levels):
                yield from self._fills(number, chain, depth)

    def _fills(self, number: int, chain: MaskedQuery, depth: int) -> Iterator[Fill]:
        rows = np.arange(number * self.candidates, (number + 1) * self.candidates)
        columns = [slot.token + 2 for slot in chain.levels[depth]]
        for words in self.words[rows[self.alive[rows]]][:, columns].tolist():
            fill = Fill(chain.qid, chain.first + depth, tuple(self.provider.texts[word] for word in words))
            if (fill.qid, fill.level, fill.words) not in self.given:
                self.given.add((fill.qid, fill.level, fill.words))
                yield fill

    def _target(self, chain: int, slot: Slot, key: Class) -> Target:
        roles = [(role, edge) for edge in self.edges[chain] for role in ROLES if getattr(edge, role) == slot.token]
        return Target(chain, slot, self.provider.offer(key).row_of(slot), roles)

    def _draw(self, key: Class, targets: Sequence[Target], depth: int, counter: int) -> None:
        """Draw one slot of several chains, for all their candidates.

        Rows in the same state have the same scores, which are computed once: at first those of all candidates of a
        chain, and often those of similar chains.
        """
        offer = self.provider.offer(key)
        first_rows = np.array([target.chain for target in targets])[:, None] * self.candidates
        rows = (first_rows + np.arange(self.candidates)).ravel()
        columns = np.repeat([target.slot.token + 2 for target in targets], self.candidates)
        states, state = np.unique(self._states(targets, rows, columns), axis=0, return_inverse=True)
        draws = uniform(np.concatenate([self._seeds(target.chain, depth) for target in targets]), counter)
        distinct = [i for i, t in enumerate(targets) if depth == 0 and len(self.chains[t.chain].levels[0]) == 1]
        picks = Picks(state.ravel(), draws, distinct, self.candidates)
        step = max(1, CELLS // len(offer.scorer.words))
        for start, end in pairwise([*range(0, len(states), step), len(states)]):
            picks.pick(start, offer.scores(states[start:end]))
        drawn = picks.chosen >= 0
        self.alive[rows[~drawn]] = False
        self.words[rows[drawn], columns[drawn]] = offer.scorer.words[picks.chosen[drawn]]
        self.lemmas[rows[drawn], columns[drawn]] = offer.lemmas[picks.chosen[drawn]]

    def _seeds(self, number: int, depth: int) -> NDArray[np.uint64]:
        """Return a seed for each candidate of a chain's level."""
        if (number, depth) not in self._known_seeds:
            chain, seed = self.chains[number], self.provider.seed
            seeds = [row_seed(seed, chain.qid, chain.first + depth, candidate) for candidate in range(self.candidates)]
            self._known_seeds[number, depth] = np.array(seeds, dtype=np.uint64)
        return self._known_seeds[number, depth]

    def _states(self, targets: Sequence[Target], rows: Ids, columns: Ids) -> Ids:
        """Return all that a row's scores depend on: the slot's kind, four words around it, a key for each relation."""
        kinds = np.repeat([target.kind for target in targets], self.candidates)
        around = [self.words[rows, columns + offset] for offset in (-2, -1, 1, 2)]
        turns = range(max(len(target.relations) for target in targets))
        return np.column_stack([kinds, *around, *(self._keys(targets, rows, turn) for turn in turns)])

    def _keys(self, targets: Sequence[Target], rows: Ids, turn: int) -> Ids:
        """Return the key of each row's turn-th relation, `NONE` where there are fewer."""
        keys = np.full(len(rows), NONE, dtype=np.int64)
        for i, target in enumerate(targets):
            if turn < len(target.relations):
                role, edge = target.relations[turn]
                own = slice(i * self.candidates, (i + 1) * self.candidates)
                first, second = (self._lemmas_at(rows[own], getattr(edge, other)) for other in OTHERS[role])
                keys[own] = self.provider.relation_index.key(role, edge.kind, first, second)
        return keys

    def _lemmas_at(self, rows: Ids, token: int) -> Ids:
        nothing = self.provider.relation_index.index[""]
        return self.lemmas[rows, token + 2] if token >= 0 else np.full(len(rows), nothing, dtype=np.int64)


def _added_slots(chain: MaskedQuery, depth: int) -> list[Slot]:
    """Return the slots that a level adds to the level before."""
    if depth >= len(chain.levels):
        return []
    before = set(chain.levels[depth - 1]) if depth else set()
    return [slot for slot in chain.levels[depth] if slot not in before]


class Picks:
    """The index of the word that each row draws, once the scores of its state are known; -1 where all are 0.

    The candidates of the `distinct` targets differ.
    """

    def __init__(self, state: Ids, draws: Floats, distinct: Sequence[int], candidates: int) -> None:
        self.chosen, self._draws, self._candidates = np.full(len(state), -1, dtype=np.int64), draws, candidates
        self._state, self._distinct = state, np.array(distinct, dtype=np.int64)
        self._order = np.argsort(state, kind="stable")
        self._sorted = state[self._order]

    def pick(self, start: int, scores: Floats) -> None:
        """Pick for the rows in the states `start`, `start + 1`, …, whose scores (states, words) these are."""
        mass = np.cumsum(scores, axis=1)
        ends = np.searchsorted(self._sorted, np.arange(start, start + len(scores) + 1))
        for of_state, own in zip(mass, map(slice, ends[:-1], ends[1:]), strict=True):
            rows = self._order[own]
            self.chosen[rows] = _pick(of_state, self._draws[rows])
        states = self._state[self._distinct * self._candidates] - start
        is_scored = (states >= 0) & (states < len(scores))
        if is_scored.any():
            rows = self._distinct[is_scored, None] * self._candidates + np.arange(self._candidates)
            self.chosen[rows] = _pick_different(scores[states[is_scored]], self._draws[rows])


def _pick(mass: Floats, draws: Any) -> Any:
    """Return for each draw the index at which the cumulative mass passes it; -1 where there is no mass."""
    if mass[-1] <= 0:
        return -1
    return np.minimum(mass.searchsorted(draws * mass[-1], side="right"), len(mass) - 1)


def _pick_different(scores: Floats, draws: Floats) -> Ids:
    """Return indices (rows, candidates): the first `DISTINCT` of a row differ, the others flatten the odds."""
    chosen = np.empty(draws.shape, dtype=np.int64)
    for row, (weights, flat) in enumerate(zip(scores.copy(), np.cumsum(np.sqrt(scores), axis=1), strict=True)):
        for i, draw in enumerate(draws[row]):
            other = _pick(np.cumsum(weights), draw) if i < DISTINCT else -1
            chosen[row, i] = _pick(flat, draw) if other < 0 else other  # or every word was drawn already
            weights[chosen[row, i]] = 0.0
    return chosen


def _padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Return rows of different lengths as one array, padded with `NOTHING`."""
    array = np.full((len(rows), max(map(len, rows), default=0)), NOTHING, dtype=np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
