"""Stage `negatives`: one negative for each query and level, chosen from the candidates of all providers.

Candidates must pass `penumbra.tasks.negatives.checks`. In the order of the providers, a query gets the first three
whose SentenceBERT cosine falls from level to level and which keep the words of the level before, or else as many levels
as fit together. docs/does-it-help.md has other criteria that were tried: models learned less from them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, islice, pairwise, product
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import TRAINING
from penumbra.tasks.negatives.checks import ALWAYS, SLOT_CHECKS, Candidate, Checks, LeakageFilter, queries_with_tokens
from penumbra.tasks.negatives.fills import FILLED, masked_queries, put_words
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.providers.kneser_ney import Plausibility
from penumbra.tasks.negatives.reviews import EDIT, FILLS, REJECTED, Verdicts
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting
from penumbra.tasks.stage import Stage, read_part, zip_parts
from penumbra.tasks.text.dictionary import load_dictionary
from penumbra.tasks.text.embeddings import Encoding, Vectors, cosine, encode, vectors_by_text
from penumbra.tasks.text.tags import load_pipeline
from penumbra.tasks.text.wordnet import wordnet_inputs

STAGE = "negatives"
LEVELS = (1, 2, 3)
LEVEL_SETS = [levels for size in (3, 2, 1) for levels in combinations(LEVELS, size)]  # most levels first
MOST_CHAINS = 256  # that are considered at a time
REFUSED = "candidate refused"
NOT_FALLING = "no candidate keeps the level before and is further from the query than it"
Chain = tuple[Candidate, ...]  # one candidate for each of some levels


class Choosing(Parameters):
    """The checks that a negative must pass, and the choice among the candidates that do."""

    ceiling: float = Field(
        0.9, gt=0, le=1, description="Highest SentenceBERT cosine to the query: above it a candidate is a paraphrase."
    )
    near_synonym: float = Field(
        0.73, gt=0, le=1, description="SentenceBERT cosine from which two words are too similar for level 1."
    )
    guard: Literal["compositions", "queries", "all"] = Field(
        "compositions",
        description="Parts of the test splits that no negative may repeat. queries: their queries, except those that "
        "are training queries as well; compositions: also what the novel splits hold out; all: also the training "
        "queries that are test queries, whose absence then tells a text classifier which texts are negatives.",
    )

    @property
    def checks(self) -> tuple[str, ...]:
        return ALWAYS if self.guard == "queries" else (*ALWAYS, "composition", "novel_word")


class NegativesStage(Stage):
    """Base class of the stages that make negatives, with the data that all parts share."""

    name = STAGE
    unit = "query level"
    check_names: ClassVar[tuple[str, ...]] = ()  # by default those of `choosing`

    annotations: Artifact
    tags: Artifact
    dictionary: Artifact
    choosing: Choosing
    encoding: Encoding
    reviews: tuple[Artifact, ...]

    @property
    def on_device(self) -> bool:
        return self.encoding.on_gpu

    def inputs(self) -> dict[str, str]:
        return wordnet_inputs()

    @cached_property
    def human_text(self) -> tuple[LeakageFilter, Plausibility]:
        """The leakage filter and the plausibility models, from one pass over the queries of all splits."""
        plausibility = Plausibility()

        def queries() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
            for row, tokens in queries_with_tokens(zip_parts(self.annotations, self.tags)):
                if row["split"] == TRAINING:
                    plausibility.add(row["vid"], tokens)
                yield row, tokens

        return LeakageFilter(queries(), every=self.choosing.guard == "all"), plausibility

    @property
    def leakage(self) -> LeakageFilter:
        return self.human_text[0]

    @cached_property
    def verdicts(self) -> Verdicts:
        return Verdicts.of(self.reviews)

    @cached_property
    def checks(self) -> Checks:
        dictionary = load_dictionary(self.dictionary)
        words = sorted(dictionary.forms)
        vectors = encode(words, self.encoding)
        synonyms = {word: set[str]() for word in words}
        for word, vector in zip(words, vectors, strict=True):
            near = np.flatnonzero(vectors @ vector >= self.choosing.near_synonym)
            synonyms[word].update(map(words.__getitem__, near))
        return Checks(self.leakage, dictionary, synonyms, self.check_names or self.choosing.checks)

    @cached_property
    def spacy_model(self) -> str:
        return str(Store().manifest(self.tags).parameters["spacy_model"])

    def tokenise(self, text: str) -> list[str]:
        """Return the tokens of a text in lower case."""
        return [token.text.lower() for token in load_pipeline(self.spacy_model).make_doc(text)]

    def row(self, query: "Query", level: int, chosen: Candidate, notes: Counter[str]) -> dict[str, Any]:
        """Return the row of a negative without its cosine and plausibility; count a reviewer's verdict in `notes`.

        A reviewed or whole sentence has the checks that it passes, and a word for each token that differs if it has as
        many tokens as its query. All other negatives have passed all checks.
        """
        masked, words, checks = query.masked, chosen.words, list(self.checks.names)
        if chosen.verdict or not words:
            others = self.tokenise(chosen.text)
            pairs = list(zip(masked.tokens, others, strict=True)) if len(others) == len(masked.tokens) else []
            apart = [(at, token, other) for at, (token, other) in enumerate(pairs) if token["text"].lower() != other]
            slots = tuple(Slot(at, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for at, t, _ in apart)
            words = tuple(other for _, _, other in apart)
            changed = MaskedQuery(masked.qid, masked.tokens, (slots,) * level)
            results = self.checks.results(changed, level, query.same_video, words, chosen.text)
            checks = [name for name, reason in results if not reason]
            checks = checks if "template" in checks else [name for name in checks if name not in SLOT_CHECKS]
        if chosen.verdict:
            notes[f"by a reviewer, level {level}: {chosen.verdict}"] += 1
        about = {"qid": masked.qid, "level": level, "query": query.text, "negative": chosen.text}
        return about | {"words": words, "provider": chosen.provider, "model": chosen.model, "checks": checks}

    def queries_of_videos(self, annotations: pa.Table) -> dict[str, set[str]]:
        """Return the lemmatised queries of each video of a part."""
        videos = defaultdict[str, set[str]](set)
        for row in annotations.select(["vid", "query"]).to_pylist():
            videos[row["vid"]].add(self.leakage.lemmatised(row["query"]))
        return videos

    def is_negative(self, query: "Query", level: int, approved: Candidate) -> bool:
        """Return whether an approved sentence is a negative of a query, for `Verdicts.approved`."""
        return not self.leakage.refusal(approved.text, query.text, query.same_video, self.checks.names)

    def measure(self, rows: Iterable[dict[str, Any]], words: dict[str, list[str]]) -> None:
        """Add to each row the checks of its cosine that it passes, and its plausibility minus its query's.

        The rows of a query have rising levels; `words` has the tokens of each text in lower case.
        """
        natural, least = self.human_text[1].score(words), dict[str, float]()
        for row in rows:
            qid, similarity = row["qid"], row["similarity"]
            row["checks"] += ["ceiling"] if similarity <= self.choosing.ceiling else []
            row["checks"] += ["falling"] if similarity < least.get(qid, np.inf) else []
            least[qid] = min(similarity, least.get(qid, np.inf))
            row["plausibility"] = natural[row["negative"]] - natural[row["query"]]


class Candidates:
    """The candidates of a query at a level, in the order of the providers, each text once.

    A candidate is checked when it is needed, because most queries take the first one that passes. `refusals` counts the
    reasons of those that do not pass.
    """

    def __init__(self, fills: Iterable[Candidate], refusal: Callable[[Sequence[str], str], str]) -> None:
        distinct: dict[str, Candidate] = {}
        for fill in fills:
            distinct.setdefault(fill.text, fill)
        self._untried, self._refusal = iter(distinct.values()), refusal
        self._passed: list[Candidate] = []
        self.refusals = Counter[str]()

    def first(self, most: int) -> list[Candidate]:
        """Return the first `most` candidates that pass, or all if there are fewer."""
        while len(self._passed) < most and (fill := next(self._untried, None)):
            if reason := self._refusal(fill.words, fill.text):
                self.refusals[reason] += 1
            else:
                fill.rank = len(self._passed)
                self._passed.append(fill)
        return self._passed[:most]


@dataclass
class Query:
    """A query with its candidates by level, and the lemmatised queries of its video.

    A level of `accepted` has one candidate, which a reviewer accepted. `edits` are sentences that a reviewer wrote.
    """

    masked: MaskedQuery
    text: str
    candidates: dict[int, Candidates] = field(default_factory=dict)
    same_video: set[str] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    edits: dict[int, Candidate] = field(default_factory=dict)

    def has(self, levels: Sequence[int]) -> bool:
        """Return whether each of these levels has a candidate that passes."""
        return all(level in self.candidates and self.candidates[level].first(1) for level in levels)

    def candidate_chains(self, levels: Sequence[int]) -> Iterator[Chain]:
        """Yield chains: one candidate for each level, with distinct texts, each keeping the words of the level before.

        Chains of the first candidate of each level come first, then chains of the first two, four, and so on. A level
        with the slots of the level before can't keep its words: every candidate then extends every chain.
        """
        done, most = 0, 1
        while True:
            offered = [self.candidates[level].first(most) for level in levels]
            if max(map(len, offered)) <= done:
                return
            chains: Iterable[Chain] = zip(offered[0])
            for pair, candidates in zip(pairwise(levels), offered[1:], strict=True):
                chains = self._longer(list(chains), *pair, candidates)
            distinct = (chain for chain in chains if len({it.text for it in chain}) == len(chain))
            ranked = [(max(it.rank for it in chain), chain) for chain in islice(distinct, MOST_CHAINS)]
            yield from (chain for rank, chain in sorted(ranked, key=lambda pair: pair[0]) if rank >= done)
            done, most = most, 2 * most

    def _longer(
        self, chains: Sequence[Chain], before: int, level: int, candidates: Sequence[Candidate]
    ) -> Iterator[Chain]:
        """Yield each chain extended by each candidate of a level that keeps the words of the chain's level `before`."""
        slots = [slot.token for slot in self.masked.levels[level - 1]]
        kept = [slots.index(slot.token) for slot in self.masked.levels[before - 1]]
        for candidate in candidates:
            words = tuple([candidate.words[place] for place in kept])
            yield from ((*it, candidate) for it in chains if len(kept) == len(slots) or it[-1].words == words)


def choose(
    queries: Sequence[Query], vectors: Mapping[str, Vectors], encode: Callable[[Sequence[str]], Vectors], ceiling: float
) -> dict[str, dict[int, tuple[Candidate, float]]]:
    """Return each query's choice by its id: a candidate and its cosine to the query for each level that has one.

    All queries try their first chain; queries whose chain fails try their second one, and so on. The levels of a chain
    are compared one after the other, so that the texts after a failed level are not encoded. `vectors` are the
    embeddings of the queries by text; `ceiling` is the highest cosine of level 1 to the query.
    """
    encoded, choices = dict[str, Vectors](), dict[str, dict[int, tuple[Candidate, float]]]()
    tick = counting("queries", len(queries))
    for has_accepted, levels in product((True, False), LEVEL_SETS):  # first the sets with all accepted levels
        undecided = [query for query in queries if query.masked.qid not in choices]
        possible = [query for query in undecided if query.accepted.issubset(levels) == has_accepted]
        remaining = [(query, query.candidate_chains(levels)) for query in possible if query.has(levels)]
        while remaining:
            tried = [(query, chains, chain) for query, chains in remaining if (chain := next(chains, None))]
            surviving = [(query, chain, list[float]()) for query, _, chain in tried]
            for place in range(len(levels)):
                new_texts = sorted({chain[place].text for _, chain, _ in surviving} - encoded.keys())
                encoded |= zip(new_texts, encode(new_texts), strict=True) if new_texts else ()
                compared, surviving = surviving, []
                for query, chain, cosines in compared:
                    similarity = cosine(vectors[query.text], encoded[chain[place].text])
                    falls = similarity < cosines[-1] if cosines else similarity <= ceiling
                    if falls:
                        surviving.append((query, chain, [*cosines, similarity]))
            for query, chain, cosines in surviving:
                choices[query.masked.qid] = dict(zip(levels, zip(chain, cosines, strict=True), strict=True))
                tick(1)
            remaining = [(query, chains) for query, chains, _ in tried if query.masked.qid not in choices]
    return choices


@dataclass(frozen=True)
class ChosenNegatives(NegativesStage):
    """One negative for each query and level, chosen from the candidates of all fills."""

    version = 6

    annotations: Artifact
    tags: Artifact
    masks: Artifact
    dictionary: Artifact
    fills: tuple[Artifact, ...]
    embeddings: Artifact
    choosing: Choosing
    encoding: Encoding
    reviews: tuple[Artifact, ...] = ()

    def part(self, piece: int) -> Part:
        """Choose the negatives of one part; a level without any is rejected with the first reason."""
        read = read_part(piece, self.annotations, self.tags, self.masks, self.embeddings, *self.fills)
        annotations, tags, masks, embeddings, *fills = read
        queries = self._with_candidates(annotations, masked_queries(tags, masks), fills)
        vectors, encoder = vectors_by_text(embeddings), partial(encode, encoding=self.encoding)
        choices = choose(queries, vectors, encoder, self.choosing.ceiling)
        rows, rejected, notes = list[dict[str, Any]](), [], Counter[str]()
        for query in queries:
            qid, own, chosen = query.masked.qid, list[dict[str, Any]](), choices.get(query.masked.qid, {})
            for level, edit in query.edits.items():
                chosen[level] = edit, cosine(vectors[query.text], encoder([edit.text])[0])
            tokens = [token["text"].lower() for token in query.masked.tokens]
            words = {query.text: tokens}
            for level in sorted({*query.candidates, *query.edits}):
                refusals = query.candidates[level].refusals if level in query.candidates else {}
                for reason, count in refusals.items():
                    notes[f"{REFUSED}, level {level}: {reason}"] += count
                if level not in chosen:
                    reason = NOT_FALLING if query.has([level]) else next(iter(refusals))
                    rejected.append(rejection(qid, STAGE, reason, f"level {level}: {query.text}"))
                    continue
                candidate, similarity = chosen[level]
                own.append(self.row(query, level, candidate, notes) | {"similarity": similarity})
                if candidate.verdict == EDIT:
                    words[candidate.text] = self.tokenise(candidate.text)
                else:
                    filled = zip(query.masked.levels[level - 1], candidate.words, strict=True)
                    of_slots = {slot.token: word for slot, word in filled}
                    words[candidate.text] = [of_slots.get(place, word) for place, word in enumerate(tokens)]
            self.measure(own, words)
            rows += own
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected, notes)

    def _with_candidates(
        self, annotations: pa.Table, queries: Iterable[MaskedQuery], fills: Iterable[pa.Table]
    ) -> list[Query]:
        """Return each query of a part with its fills as candidates, in the order of the providers."""
        videos = self.queries_of_videos(annotations)
        rows = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
        gathered = {it.qid: Query(it, rows[it.qid]["query"], same_video=videos[rows[it.qid]["vid"]]) for it in queries}
        filled = defaultdict[tuple[str, int], list[Candidate]](list)
        for table in fills:
            names = ["qid", "level", "negative", "words", "provider", "model"]
            for batch in table.filter(pc.equal(table["status"], FILLED)).select(names).to_batches(1 << 14):
                for qid, level, text, words, provider, model in zip(*batch.to_pydict().values(), strict=True):
                    filled[qid, level].append(Candidate(text, tuple(words), provider, model))
        for (qid, level), several in filled.items():
            gathered[qid].candidates[level] = Candidates(several, partial(self._refusal, gathered[qid], level))
        for query in gathered.values():
            fits = partial(self._fits, query)
            for level, approved in self.verdicts.approved(query.masked.qid, query.text, FILLS, fits, {}):
                query.candidates.pop(level, None)
                if approved.verdict == EDIT:
                    query.edits[level] = approved
                else:
                    query.candidates[level] = Candidates([approved], lambda *_: "")
                    query.accepted.add(level)
        return list(gathered.values())

    def _fits(self, query: Query, level: int, approved: Candidate) -> bool:
        """Return whether an approved sentence leaks nothing, and keeps the level's template if nobody edited it."""
        if level > len(query.masked.levels):
            return False
        words, slots = approved.words, query.masked.levels[level - 1]
        is_kept = len(words) == len(slots) and put_words(query.masked, level, words) == approved.text
        return (is_kept or approved.verdict == EDIT) and self.is_negative(query, level, approved)

    def _refusal(self, query: Query, level: int, words: Sequence[str], text: str) -> str:
        if self.verdicts.rejects(query.masked.qid, query.text, text):
            return REJECTED
        return self.checks.refusal(query.masked, level, query.same_video, words, text)
