"""Provider `corpus`: words drawn from the training text's own statistics of what goes with what.

A slot's word is drawn given the two words on either side, under a Kneser-Ney trigram model of the training queries, and
given the words that it stands in a relation with (`penumbra.tasks.text.relations`). A candidate starts from the query,
fills the slots of the first level and goes on from there: each level keeps the words of the level before and adds its
own. Where a level adds several slots they are drawn in turn, several times over (Gibbs sampling). No key, no network,
no model.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.negatives.providers.draws import row_seed, uniform
from penumbra.tasks.negatives.providers.language_model import NOTHING, Floats, Ids, KneserNey, SlotScorer, Trigrams
from penumbra.tasks.negatives.providers.registry import ProviderSettings, Shared, TrainingText
from penumbra.tasks.negatives.providers.selectional_preference import NONE, OTHERS, ROLES, Fit, RelationIndex
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.relations import Edge, Preferences, Relation, Tokens, edges, relations

SWEEPS = 4  # rounds through the slots that a level adds, where it adds several
DISTINCT = 20  # so many candidates begin with different words; the others may begin as one of them
MOST_SLOTS = 512  # a query has at most 256 words
CHAINS_AT_ONCE = 128  # queries filled at once: what bounds the memory
CELLS = 1 << 18  # scores computed at once: 2 MB a table stay in the cache

Class = tuple[str, str]


class Corpus(ProviderSettings):
    """Provider corpus has no parameters of its own."""

    provider: ClassVar[str] = "corpus"
    about: ClassVar[str] = "the training text's own statistics, no key and no network"
    free: ClassVar[bool] = True

    def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
        """What samples from the statistics, fitted."""
        return CorpusProvider(training.tokens, training.dictionary, filling.seed)


class CorpusProvider:
    """Samples fills from the training split; the same seed gives the same fills everywhere."""

    name = "corpus"
    model = "kneser-ney-3+relations"
    prompt = None

    def __init__(self, parsed: Iterable[Tokens], dictionary: Dictionary, seed: int) -> None:
        trigrams, seen = Trigrams(), Counter[Relation]()
        for tokens in parsed:  # once, and none is kept: there may be millions
            trigrams.add(token["text"].lower() for token in tokens)
            seen.update(relations(tokens))
        self.language = KneserNey(trigrams)
        self.relation_index = RelationIndex(Preferences(seen))
        self.dictionary, self.seed = dictionary, seed
        self.texts = list(self.language.index)
        self._offers: dict[Class, _Offer] = {}

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills of each level, each once; fewer than asked for where a level has no more to give."""
        chains = [chain for query in queries for chain in query.chains()]
        for start, end in pairwise([*range(0, len(chains), CHAINS_AT_ONCE), len(chains)]):
            yield from self._fill(chains[start:end], candidates)

    def _fill(self, chains: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        stuck = [self._problem(chain) for chain in chains]
        for chain, problem in zip(chains, stuck, strict=True):
            if problem:
                yield from (Fill(chain.qid, chain.first + i, (), problem) for i in range(len(chain.levels)))
        sound = [chain for chain, problem in zip(chains, stuck, strict=True) if not problem]
        if sound:
            drawing = _Drawing(self, sound, candidates)
            for depth in range(max(len(chain.levels) for chain in sound)):
                yield from drawing.level(depth)

    def _problem(self, chain: MaskedQuery) -> str:
        """Why a chain can't be filled, or ''."""
        for slot in chain.levels[-1]:
            offer, own = slot.choice(self.dictionary)
            if len(offer.words) == len(own):
                return f"no other {slot.primitive} than {slot.word!r} in the training split"
        return ""

    def offer(self, key: Class) -> "_Offer":
        """What a class and tag offer, with the scorers of its words."""
        if key not in self._offers:
            offer = self.dictionary.offer(*key)
            words = np.array(self.language.ids(offer.words), dtype=np.int64)
            lemmas = [self.dictionary.lemma(*key, word) for word in offer.words]
            self._offers[key] = _Offer(
                SlotScorer(self.language, words),
                Fit.of(self.relation_index, lemmas),
                np.array(self.relation_index.ids(lemmas), dtype=np.int64),
                self.dictionary,
            )
        return self._offers[key]


class _Offer:
    """The words of one class and tag, and which of them each slot met so far may take: one row a kind of slot."""

    def __init__(self, scorer: SlotScorer, fit: Fit, lemmas: Ids, dictionary: Dictionary) -> None:
        self.scorer, self.fit, self.lemmas, self.dictionary = scorer, fit, lemmas, dictionary
        self._rows: dict[tuple[str, str, str, str], int] = {}
        self._allowed: list[NDArray[np.bool_]] = []

    def row_of(self, slot: Slot) -> int:
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


class _Place(NamedTuple):
    """A slot to draw: whose, its row in its offer, and the relations that it stands in, with its role in each."""

    chain: int
    slot: Slot
    kind: int
    relations: list[tuple[str, Edge]]


class _Drawing:
    """The candidates of several chains of levels, one a row: `candidates` rows a chain.

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
        added = [_added(chain, depth) for chain in self.chains]
        for sweep in range(SWEEPS if max(map(len, added)) > 1 else 1):
            for turn in range(max(map(len, added))):
                groups: dict[Class, list[_Place]] = defaultdict(list)
                for number, slots in enumerate(added):
                    if turn < len(slots) and (sweep == 0 or len(slots) > 1):
                        groups[slots[turn].offered_class(self.provider.dictionary)].append(
                            self._place(number, slots[turn])
                        )
                for key, places in groups.items():
                    self._draw_all(key, places, depth, sweep * MOST_SLOTS + turn)
        for number, chain in enumerate(self.chains):
            if depth < len(chain.levels):
                yield from self._fills(number, chain, depth)

    def _fills(self, number: int, chain: MaskedQuery, depth: int) -> Iterator[Fill]:
        rows = np.arange(number * self.candidates, (number + 1) * self.candidates)
        at = [slot.token + 2 for slot in chain.levels[depth]]
        for words in self.words[rows[self.alive[rows]]][:, at].tolist():
            fill = Fill(chain.qid, chain.first + depth, tuple(self.provider.texts[word] for word in words))
            if (fill.qid, fill.level, fill.words) not in self.given:
                self.given.add((fill.qid, fill.level, fill.words))
                yield fill

    def _place(self, chain: int, slot: Slot) -> _Place:
        offer = self.provider.offer(slot.offered_class(self.provider.dictionary))
        mine = [(role, edge) for edge in self.edges[chain] for role in ROLES if getattr(edge, role) == slot.token]
        return _Place(chain, slot, offer.row_of(slot), mine)

    def _draw_all(self, key: Class, places: Sequence[_Place], depth: int, counter: int) -> None:
        """Draw one slot of several chains, all candidates of them.

        Rows in the same state have the same scores, which are computed once: at first those of all candidates of a
        chain, and often those of chains that are alike.
        """
        offer = self.provider.offer(key)
        rows = (
            np.array([place.chain for place in places])[:, None] * self.candidates + np.arange(self.candidates)
        ).ravel()
        at = np.repeat([place.slot.token + 2 for place in places], self.candidates)
        states, state = np.unique(self._states(places, rows, at), axis=0, return_inverse=True)
        draws = uniform(np.concatenate([self._seeds(place.chain, depth) for place in places]), counter)
        first = [i for i, place in enumerate(places) if depth == 0 and len(self.chains[place.chain].levels[0]) == 1]
        picks = _Picks(state.ravel(), draws, first, self.candidates)
        step = max(1, CELLS // len(offer.scorer.words))
        for start, end in pairwise([*range(0, len(states), step), len(states)]):
            picks.pick(start, _scores(offer, states[start:end]))
        left = picks.chosen >= 0
        some = rows[left]
        self.alive[rows[~left]] = False
        self.words[some, at[left]] = offer.scorer.words[picks.chosen[left]]
        self.lemmas[some, at[left]] = offer.lemmas[picks.chosen[left]]

    def _seeds(self, number: int, depth: int) -> NDArray[np.uint64]:
        """A seed for each candidate; it knows query, level and candidate."""
        if (number, depth) not in self._known_seeds:
            chain, seed = self.chains[number], self.provider.seed
            seeds = [row_seed(seed, chain.qid, chain.first + depth, candidate) for candidate in range(self.candidates)]
            self._known_seeds[number, depth] = np.array(seeds, dtype=np.uint64)
        return self._known_seeds[number, depth]

    def _states(self, places: Sequence[_Place], rows: Ids, at: Ids) -> Ids:
        """All that a row's scores depend on: the kind of its slot, the words around it, what it meets in relations."""
        kinds = np.repeat([place.kind for place in places], self.candidates)
        around = [self.words[rows, at + offset] for offset in (-2, -1, 1, 2)]
        turns = range(max(len(place.relations) for place in places))
        return np.column_stack([kinds, *around, *(self._keys(places, rows, turn) for turn in turns)])

    def _keys(self, places: Sequence[_Place], rows: Ids, turn: int) -> Ids:
        """What each row's slot meets in its turn-th relation."""
        keys = np.full(len(rows), NONE, dtype=np.int64)
        for i, place in enumerate(places):
            if turn < len(place.relations):
                role, edge = place.relations[turn]
                mine = slice(i * self.candidates, (i + 1) * self.candidates)
                first, second = (self._lemmas_at(rows[mine], getattr(edge, other)) for other in OTHERS[role])
                keys[mine] = self.provider.relation_index.key(role, edge.kind, first, second)
        return keys

    def _lemmas_at(self, rows: Ids, token: int) -> Ids:
        nothing = self.provider.relation_index.index[""]
        return self.lemmas[rows, token + 2] if token >= 0 else np.full(len(rows), nothing, dtype=np.int64)


def _added(chain: MaskedQuery, depth: int) -> list[Slot]:
    """The slots that a level adds to the level before."""
    if depth >= len(chain.levels):
        return []
    before = set(chain.levels[depth - 1]) if depth else set()
    return [slot for slot in chain.levels[depth] if slot not in before]


def _scores(offer: _Offer, states: Ids) -> Floats:
    """What stands around a slot says of the class's words: (states, words)."""
    kinds, around, keys_met = states[:, 0], states[:, 1:5], states[:, 5:]
    contexts, same = np.unique(around, axis=0, return_inverse=True)
    scores: Floats = offer.scorer.score(*contexts.T)[same.ravel()]
    for met in keys_met.T:
        keys, same = np.unique(met, return_inverse=True)
        scores *= np.sqrt(offer.fit.score(keys))[same.ravel()]
    scores *= offer.allowed[kinds]
    return scores


class _Picks:
    """The word that each row gets, once the scores of its state are known; -1 where all are 0."""

    def __init__(self, state: Ids, draws: Floats, first: Sequence[int], candidates: int) -> None:
        self.chosen, self._draws, self._candidates = np.full(len(state), -1, dtype=np.int64), draws, candidates
        self._state, self._first = state, np.array(first, dtype=np.int64)  # of which chains the candidates differ
        self._order = np.argsort(state, kind="stable")
        self._sorted = state[self._order]

    def pick(self, start: int, scores: Floats) -> None:
        """Pick for the rows in the states from this one on, as many as there are scores (states, words) of."""
        mass = np.cumsum(scores, axis=1)
        ends = np.searchsorted(self._sorted, np.arange(start, start + len(scores) + 1))
        for of_state, mine in zip(mass, map(slice, ends[:-1], ends[1:]), strict=True):
            rows = self._order[mine]
            self.chosen[rows] = _picked(of_state, self._draws[rows])
        states = self._state[self._first * self._candidates] - start
        here = (states >= 0) & (states < len(scores))
        if here.any():
            rows = self._first[here, None] * self._candidates + np.arange(self._candidates)
            self.chosen[rows] = _pick_different(scores[states[here]], self._draws[rows])


def _picked(mass: Floats, draws: Any) -> Any:
    """For each draw the place, in proportion to what it adds to the mass; -1 where there is none."""
    if mass[-1] <= 0:
        return -1
    return np.minimum(mass.searchsorted(draws * mass[-1], side="right"), len(mass) - 1)


def _pick_different(scores: Floats, draws: Floats) -> Ids:
    """Columns (rows, candidates): the first `DISTINCT` of a row differ, the others flatten the odds."""
    chosen = np.empty(draws.shape, dtype=np.int64)
    for row, (weights, flat) in enumerate(zip(scores.copy(), np.cumsum(np.sqrt(scores), axis=1), strict=True)):
        for i, draw in enumerate(draws[row]):
            other = _picked(np.cumsum(weights), draw) if i < DISTINCT else -1
            chosen[row, i] = _picked(flat, draw) if other < 0 else other  # or every word has been given
            weights[chosen[row, i]] = 0.0
    return chosen


def _padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Rows of different length as one array, `NOTHING` where they end."""
    array = np.full((len(rows), max(map(len, rows), default=0)), NOTHING, dtype=np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
