"""Stage `negatives`: one negative for each query and level, chosen from the candidates of all providers.

A candidate must pass `penumbra.tasks.negatives.checks`. Of those that do, a query gets the first three, in the order of
their providers, whose SentenceBERT cosine to the query falls from level to level, each level with the words of the
level before; level 1 is no paraphrase of the query. If no three candidates fit, the query gets as many levels as
possible, and SHINE's ranking losses rank these levels. Other criteria were tried (likeness to all queries, naturalness
beyond the provider's own, a floor), and models learned less from the negatives that they chose (docs/does-it-help.md).

What a reviewer rejected is refused. What a reviewer accepted or edited is the only candidate of its level: it need not
be further from the query than another such one, and other levels need not keep its words if none that fits does.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property, partial
from itertools import combinations, pairwise, product
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import Markdown, bold, plain
from penumbra.artifacts.prefect_ui import Rows
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.checks import (
    ALWAYS,
    HELD_OUT,
    SLOT_CHECKS,
    TRAINING,
    Checks,
    LeakageFilter,
    normal_form,
    queries_with_tokens,
)
from penumbra.tasks.negatives.fills import FILLED, masked_queries, put_words
from penumbra.tasks.negatives.plausibility import Plausibility
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.reviews import ACCEPT, EDIT, FILLS, REJECTED, REVIEWER, Verdicts
from penumbra.tasks.progress import counting
from penumbra.tasks.stage import Parameters, Stage, read_part
from penumbra.tasks.text.dictionary import Dictionary, load_dictionary
from penumbra.tasks.text.embeddings import Encoding, Vectors, encode, vectors_by_text
from penumbra.tasks.text.relations import Tokens
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline
from penumbra.tasks.text.wordnet import wordnet_inputs

STAGE = "negatives"
LEVELS = (1, 2, 3)
LEVEL_SETS = [levels for size in (3, 2, 1) for levels in combinations(LEVELS, size)]  # most levels first
MOST_CHAINS = 256  # that are considered at a time
REFUSED = "candidate refused"
NOT_FALLING = "no candidate keeps the level before and is further from the query than it"


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
        "queries that are test queries, although their absence gives negatives away.",
    )

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks of a candidate's words and text."""
        return ALWAYS if self.guard == "queries" else (*ALWAYS, *HELD_OUT)


# -- the choice among candidates --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Candidate:
    """A fill as its provider gave it; `rank` is its place among the candidates that pass.

    `verdict` is that of a reviewer who accepted the sentence or wrote it, or ''.
    """

    text: str
    words: tuple[str, ...]
    provider: str
    model: str
    rank: int = 0
    verdict: str = ""


Chain = tuple[Candidate, ...]  # one candidate for each of some levels


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
    """A query with its candidates by level."""

    masked: MaskedQuery
    text: str
    candidates: dict[int, Candidates] = field(default_factory=dict)
    approved: set[int] = field(default_factory=set)  # the levels whose candidates a reviewer accepted or wrote

    def has(self, levels: Sequence[int]) -> bool:
        """Return whether any candidate of each of these levels passes."""
        return all(level in self.candidates and self.candidates[level].first(1) for level in levels)

    def chains(self, levels: Sequence[int], nested: bool = True) -> Iterator[Chain]:
        """Yield chains: one candidate for each level, with distinct texts, each keeping the words of the one before.

        Unless `nested`, this does not hold next to a candidate that a reviewer accepted or wrote.
        Chains of the first candidate of each level come first, then those of the first two, of four, and so on.
        """
        done, most = 0, 1
        while True:
            offered = [self.candidates[level].first(most) for level in levels]
            longest = max(map(len, offered))
            if longest <= done:
                return
            chains: Iterable[Chain] = zip(offered[0])
            for (before, level), candidates in zip(pairwise(levels), offered[1:], strict=True):
                chains = self._longer(list(chains), before, level, candidates, nested)
            ranked: list[tuple[int, Chain]] = []
            for chain in chains:
                if len(set(map(attrgetter("text"), chain))) == len(chain):
                    ranked.append((max(map(attrgetter("rank"), chain)), chain))
                if len(ranked) == MOST_CHAINS:
                    break
            for rank, chain in sorted(ranked, key=itemgetter(0)):
                if rank >= done:
                    yield chain
            done, most = most, 2 * most

    def _longer(
        self, chains: Sequence[Chain], before: int, level: int, candidates: Sequence[Candidate], nested: bool
    ) -> Iterator[Chain]:
        """Yield each chain with each candidate of a level that keeps the words of the chain's last, of level `before`.

        A level with the slots of the level before can't keep its words: then every candidate goes with every chain.
        """
        slots = [slot.token for slot in self.masked.levels[level - 1]]
        kept = [slots.index(slot.token) for slot in self.masked.levels[before - 1]]
        if not nested and self.approved & {before, level}:
            yield from ((*chain, candidate) for candidate in candidates for chain in chains)
            return
        shorter: dict[tuple[str, ...], list[Chain]] = {}
        for chain in chains:
            shorter.setdefault(chain[-1].words, []).append(chain)
        for candidate in candidates:
            if len(candidate.words) != len(slots):  # a reviewer's sentence has other words
                continue
            words = tuple([candidate.words[place] for place in kept])
            for chain in chains if len(kept) == len(slots) else shorter.get(words, ()):
                yield (*chain, candidate)


@dataclass
class Choice:
    """Candidates that go together: one for each of some levels of a query, and their cosines to the query."""

    query: Query
    levels: Sequence[int]
    chain: Chain
    cosines: list[float] = field(default_factory=list)


def choose(
    queries: Sequence[Query], vectors: Mapping[str, Vectors], encode: Callable[[Sequence[str]], Vectors], ceiling: float
) -> dict[str, Choice]:
    """Return the choice for each query by its id: of all levels if they go together, else of as many as do.

    All queries try their first chain; queries whose chain fails try their second one, and so on. The levels of a chain
    are compared one after the other, so that the texts after a failed level are not encoded.

    Args:
        queries: those of a part, with their candidates
        vectors: the embedding of each query by its text
        encode: the sentence encoder
        ceiling: the highest cosine of level 1 to the query

    """
    encoded, choices = dict[str, Vectors](), dict[str, Choice]()
    tick = counting("queries", len(queries))
    for levels, nested in product(LEVEL_SETS, (True, False)):
        possible = [query for query in queries if query.approved.issubset(levels) and (nested or query.approved)]
        undecided = [query for query in possible if query.masked.qid not in choices and query.has(levels)]
        left = [(query, query.chains(levels, nested)) for query in undecided]
        while left:
            trying = [(query, chains, chain) for query, chains in left if (chain := next(chains, None))]
            holding = [Choice(query, levels, chain) for query, _, chain in trying]
            for place in range(len(levels)):
                fresh = sorted({choice.chain[place].text for choice in holding} - encoded.keys())
                encoded |= zip(fresh, encode(fresh), strict=True) if fresh else ()
                compared, holding = holding, []
                for choice in compared:
                    # rounded: the last bits depend on the machine and must not decide
                    exact = np.dot(vectors[choice.query.text], encoded[choice.chain[place].text])
                    cosine = round(float(exact), 4)
                    falls = cosine < choice.cosines[-1] if choice.cosines else cosine <= ceiling
                    if falls or choice.query.approved.issuperset(levels[max(0, place - 1) : place + 1]):
                        choice.cosines.append(cosine)
                        holding.append(choice)
            for choice in holding:
                choices[choice.query.masked.qid] = choice
                tick(1)
            left = [(query, chains) for query, chains, _ in trying if query.masked.qid not in choices]
    return choices


class Chooser:
    """The checks, the language models of human text and the sentence encoder, which the choice of all parts shares."""

    def __init__(
        self,
        leakage: LeakageFilter,
        dictionary: Dictionary,
        plausibility: Plausibility,
        choosing: Choosing,
        encoding: Encoding,
        verdicts: Verdicts | None = None,
        spacy_model: str = SHIPPED_PIPELINE,
    ) -> None:
        self.leakage, self.plausibility, self.choosing, self.encoding = leakage, plausibility, choosing, encoding
        self.verdicts, self.spacy_model = verdicts or Verdicts([]), spacy_model
        words = sorted(dictionary.forms)
        vectors = encode(words, encoding)
        synonyms = {word: set[str]() for word in words}
        for word, vector in zip(words, vectors, strict=True):
            synonyms[word].update(map(words.__getitem__, np.flatnonzero(vectors @ vector >= choosing.near_synonym)))
        self.checks = Checks(leakage, dictionary, synonyms, choosing.checks)

    @classmethod
    def load(
        cls,
        annotations: Artifact,
        tags: Artifact,
        dictionary: Artifact,
        choosing: Choosing,
        encoding: Encoding,
        reviews: Sequence[Artifact] = (),
    ) -> "Chooser":
        """Return a chooser that has read all queries of a data set."""
        plausibility = Plausibility()

        def queries() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
            for row, tokens in queries_with_tokens(annotations, tags):
                if row["split"] == TRAINING:
                    plausibility.add(row["vid"], tokens)
                yield row, tokens

        leakage, words = LeakageFilter(queries(), every=choosing.guard == "all"), load_dictionary(dictionary)
        spacy_model = str(Store().manifest(tags).parameters["spacy_model"])
        return cls(leakage, words, plausibility, choosing, encoding, Verdicts.of(reviews), spacy_model)

    def tokenise(self, text: str) -> list[str]:
        """Return the tokens of a text, as those of the queries were made."""
        return [token.text for token in load_pipeline(self.spacy_model).make_doc(text)]

    def check_sentence(
        self, qid: str, tokens: Tokens, level: int, queries: set[str], text: str
    ) -> tuple[tuple[str, ...], list[str]]:
        """Return the words by which a sentence differs from a query, and the names of the checks that it passes."""
        slots, words = changed_slots(tokens, self.tokenise(text))
        masked = MaskedQuery(qid, list(tokens), (slots,) * level)  # type: ignore[arg-type]
        passed = [name for name, reason in self.checks.results(masked, level, queries, words, text) if not reason]
        return words, passed if "template" in passed else [name for name in passed if name not in SLOT_CHECKS]

    def queries_of_videos(self, annotations: pa.Table) -> dict[str, set[str]]:
        """Return the lemmatised queries of each video of a part."""
        videos: dict[str, set[str]] = {}
        for row in annotations.select(["vid", "query"]).to_pylist():
            videos.setdefault(row["vid"], set()).add(self.leakage.lemmatised(row["query"]))
        return videos

    def part(
        self, annotations: pa.Table, tags: pa.Table, masks: pa.Table, embeddings: pa.Table, *fills: pa.Table
    ) -> Part:
        """Choose one part's negatives; a query and level without one is rejected with its reason."""
        queries = self._with_candidates(annotations, masked_queries(tags, masks), fills)
        encoder = partial(encode, encoding=self.encoding)
        choices = choose(queries, vectors_by_text(embeddings), encoder, self.choosing.ceiling)
        plausibility = self._plausibilities(choices.values())
        rows, rejected, notes = list[dict[str, Any]](), [], Counter[str]()
        videos = self.queries_of_videos(annotations)
        vids = dict(zip(annotations["qid"].to_pylist(), annotations["vid"].to_pylist(), strict=True))
        for query in queries:
            choice, qid = choices.get(query.masked.qid), query.masked.qid
            for level, candidates in sorted(query.candidates.items()):
                for reason, count in candidates.refusals.items():
                    notes[f"{REFUSED}, level {level}: {reason}"] += count
                if choice is None or level not in choice.levels:
                    reason = NOT_FALLING if query.has([level]) else next(iter(candidates.refusals))
                    rejected.append(rejection(qid, STAGE, reason, f"level {level}: {query.text}"))
                    continue
                place = choice.levels.index(level)
                candidate, cosine = choice.chain[place], choice.cosines[place]
                words, checks = candidate.words, self.checks.names
                if candidate.verdict:
                    notes[f"by a reviewer, level {level}: {candidate.verdict}"] += 1
                    texts = videos[vids[qid]]
                    words, checks = self.check_sentence(qid, query.masked.tokens, level, texts, candidate.text)
                falls = not place or cosine < choice.cosines[place - 1]
                rows.append(
                    {
                        "qid": qid,
                        "level": level,
                        "query": query.text,
                        "negative": candidate.text,
                        "words": list(words),
                        "provider": candidate.provider,
                        "model": candidate.model,
                        "similarity": cosine,
                        "plausibility": plausibility[candidate.text] - plausibility[query.text],
                        "checks": [*checks, *["ceiling"] * (cosine <= self.choosing.ceiling), *["falling"] * falls],
                    }
                )
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected, notes)

    def _with_candidates(
        self, annotations: pa.Table, queries: Iterable[MaskedQuery], fills: Iterable[pa.Table]
    ) -> list[Query]:
        """Return each query of a part with its fills as candidates, in the order of the providers."""
        filled: dict[tuple[str, int], list[Candidate]] = {}
        names = ["qid", "level", "negative", "words", "provider", "model"]
        for table in fills:
            for batch in table.filter(pc.equal(table["status"], FILLED)).select(names).to_batches(1 << 14):
                for row in batch.to_pylist():
                    candidate = Candidate(row["negative"], tuple(row["words"]), row["provider"], row["model"])
                    filled.setdefault((row["qid"], row["level"]), []).append(candidate)
        videos = self.queries_of_videos(annotations)
        rows = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
        gathered = {query.qid: Query(query, rows[query.qid]["query"]) for query in queries}
        for (qid, level), several in filled.items():
            refusal = partial(self._refusal, gathered[qid], level, videos[rows[qid]["vid"]])
            gathered[qid].candidates[level] = Candidates(several, refusal)
        for qid, query in gathered.items():
            for level, candidate in self.approved(query, videos[rows[qid]["vid"]]).items():
                query.candidates[level] = Candidates([candidate], lambda *_: "")
                query.approved.add(level)
        return list(gathered.values())

    def _refusal(self, query: Query, level: int, queries: set[str], words: Sequence[str], text: str) -> str:
        if self.verdicts.rejects(query.masked.qid, query.text, text):
            return REJECTED
        return self.checks.refusal(query.masked, level, queries, words, text)

    def approved(self, query: Query, queries: set[str]) -> dict[int, Candidate]:
        """Return the last sentence of each level that a reviewer accepted or wrote, if it is still a negative.

        An accepted one must keep the template; the other checks of words do not overrule a reviewer.
        """
        taken: dict[int, Candidate] = {}
        for level, several in self.verdicts.approved(query.masked.qid, query.text, FILLS).items():
            for row in several:
                candidate = candidate_of(row)
                others = {normal_form(other.text) for other in taken.values()}
                slots = query.masked.levels[level - 1] if level <= len(query.masked.levels) else ()
                is_kept = len(slots) == len(candidate.words)
                is_kept = is_kept and put_words(query.masked, level, candidate.words) == candidate.text
                fits = slots and (is_kept or candidate.verdict == EDIT) and normal_form(candidate.text) not in others
                if fits and not self.leakage.refusal(candidate.text, query.text, queries, self.checks.names):
                    taken[level] = candidate
                    break
        return taken

    def _plausibilities(self, choices: Iterable[Choice]) -> dict[str, float]:
        """Return the plausibility of each query and each chosen candidate, by its text."""
        words: dict[str, list[str]] = {}
        for choice in choices:
            tokens = [token["text"].lower() for token in choice.query.masked.tokens]
            words.setdefault(choice.query.text, tokens)
            for level, candidate in zip(choice.levels, choice.chain, strict=True):
                if candidate.verdict == EDIT:
                    words[candidate.text] = [token.lower() for token in self.tokenise(candidate.text)]
                    continue
                words[candidate.text] = filled = list(tokens)
                for slot, word in zip(choice.query.masked.levels[level - 1], candidate.words, strict=True):
                    filled[slot.token] = word
        return self.plausibility.score(words)


def candidate_of(row: Mapping[str, Any]) -> Candidate:
    """Return the sentence of a verdict that accepts or edits."""
    if row["verdict"] == EDIT:
        return Candidate(row["edited"], (), REVIEWER, row["reviewer"], verdict=EDIT)
    return Candidate(row["negative"], tuple(row["words"]), row["provider"], row["model"], verdict=ACCEPT)


def changed_slots(tokens: Tokens, others: Sequence[str]) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """Return a slot for each token that differs, and the words in the slots; none if the numbers of tokens differ."""
    if len(tokens) != len(others):
        return (), ()
    pairs = enumerate(zip(tokens, others, strict=True))
    apart = [(at, token, other.lower()) for at, (token, other) in pairs if token["text"].lower() != other.lower()]
    slots = [Slot(at, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for at, t, _ in apart]
    return tuple(slots), tuple(other for _, _, other in apart)


# -- the stage ---------------------------------------------------------------------------------------------------------


def rows_for_display(rows: Rows) -> Rows:
    """Return rows of `negatives` as people read them: the query first, and what differs from it in bold."""
    return [
        {
            "query": row["query"],
            "level": row["level"],
            "negative": mark_changes(row["query"], row["negative"]),
            "cosine": row["similarity"],
            "plausibility": row["plausibility"],
            "provider": row["provider"],
            "qid": row["qid"],
        }
        for row in rows
    ]


def mark_changes(query: str, negative: str) -> Markdown:
    """Return the negative with the words in bold that the query does not have at their place."""
    before, after = query.split(), negative.split()
    pieces = [
        (plain if kind == "equal" else bold)(" ".join(after[start:end]))
        for kind, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if end > start
    ]
    return Markdown(" ".join(pieces))


@dataclass(frozen=True)
class ChosenNegatives(Stage):
    """One negative for each query and level, of the candidates of all fills in their order."""

    name = STAGE
    version = 6
    unit = "query level"

    annotations: Artifact
    tags: Artifact
    masks: Artifact
    dictionary: Artifact
    fills: tuple[Artifact, ...]
    embeddings: Artifact
    choosing: Choosing
    encoding: Encoding
    reviews: tuple[Artifact, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the sentence encoder takes a GPU."""
        return self.encoding.on_gpu

    def inputs(self) -> dict[str, str]:
        """Return the digests of what says which words entail each other."""
        return wordnet_inputs()

    def shown(self, rows: Rows) -> Rows:
        """See `rows_for_display`."""
        return rows_for_display(rows)

    @cached_property
    def chooser(self) -> Chooser:
        """The chooser of all parts."""
        shared = self.annotations, self.tags, self.dictionary, self.choosing, self.encoding
        return Chooser.load(*shared, self.reviews)

    def part(self, piece: int) -> Part:
        """Choose the negatives of one part."""
        read = self.annotations, self.tags, self.masks, self.embeddings, *self.fills
        return self.chooser.part(*read_part(piece, *read))
