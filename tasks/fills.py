"""Stage `fills`: a provider's candidates for every query at every level."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
from prefect import task
from pydantic import Field

from artifacts.manifest import Artifact, Part, Work, rejection
from artifacts.schemas import SCHEMAS
from tasks.dictionary import Dictionary, load_dictionary
from tasks.masks import render
from tasks.providers import Fill, MaskedQuery, Provider, Slot
from tasks.providers.corpus import CorpusProvider
from tasks.providers.random import RandomProvider
from tasks.stage import Parameters, number_of_parts, part_by_part, run_stage, side_by_side

STAGE = "fills"
VERSION = 1
FILLED, FAILED = "filled", "failed"


class Filling(Parameters):
    """Who fills the masks."""

    providers: list[Literal["corpus", "random"]] = Field(
        ["corpus"],
        min_length=1,
        description="Providers in order of preference. corpus: the training text's own statistics, no key and no "
        "network; random: any offered word, the paper's baseline.",
    )
    candidates: int = Field(16, ge=1, le=64, description="Candidates a query and level from each provider.")
    seed: int = Field(0, description="The same seed gives the same fills on every machine.")


def training_sentences(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[list[str]]:
    """The lower-cased tokens of every training query; `tagged` yields annotations and tags by part."""
    for annotations, tags in tagged:
        for split, tokens in zip(annotations["split"].to_pylist(), tags["tokens"].to_pylist(), strict=True):
            if split == "train":
                yield [token["text"].lower() for token in tokens]


def make_provider(
    name: str, dictionary: Dictionary, tagged: Iterable[tuple[pa.Table, pa.Table]], seed: int
) -> Provider:
    """The provider of this name, fitted to the training split where it needs to be."""
    if name == "corpus":
        return CorpusProvider(training_sentences(tagged), dictionary, seed)
    return RandomProvider(dictionary, seed)


def masked_queries(tags: pa.Table, masks: pa.Table) -> list[MaskedQuery]:
    """Join a part of `masks` with its tokens."""
    levels: dict[str, list[list[dict[str, Any]]]] = {}
    for qid, slots in zip(masks["qid"].to_pylist(), masks["slots"].to_pylist(), strict=True):
        levels.setdefault(qid, []).append(slots)
    queries = []
    for qid, tokens in zip(tags["qid"].to_pylist(), tags["tokens"].to_pylist(), strict=True):
        if qid in levels:
            slots = tuple(tuple(Slot(**s, lemma=tokens[s["token"]]["lemma"]) for s in level) for level in levels[qid])
            queries.append(MaskedQuery(qid, tokens, slots))
    return queries


def put_words(query: MaskedQuery, level: int, words: Sequence[str]) -> str:
    """The query with a level's slots filled; a word takes the capital of the one that it replaces."""
    placed = {}
    for slot, word in zip(query.levels[level - 1], words, strict=True):
        placed[slot.token] = word.capitalize() if slot.word[:1].isupper() else word
    return render(query.tokens, placed)


def fill_part(tags: pa.Table, masks: pa.Table, provider: Provider, candidates: int) -> Part:
    """Fill one part; a query and level that got no candidate at all is rejected with the provider's reason."""
    queries = {query.qid: query for query in masked_queries(tags, masks)}
    fills = sorted(provider.fill(list(queries.values()), candidates), key=lambda fill: (fill.qid, fill.level))
    filled = {(fill.qid, fill.level) for fill in fills if not fill.problem}
    failed = {(fill.qid, fill.level): fill.problem for fill in fills if fill.problem}
    rejected = [
        rejection(qid, STAGE, f"{provider.name}: {problem}", f"level {level}")
        for (qid, level), problem in failed.items()
        if (qid, level) not in filled
    ]
    texts = [None if f.problem else put_words(queries[f.qid], f.level, f.words) for f in fills]
    return Part(_table(fills, texts, provider), len(filled) + len(rejected), len(filled), rejected)


def _table(fills: list[Fill], texts: list[str | None], provider: Provider) -> pa.Table:
    """The rows of `fills`, built by column: there are many, and most columns hold one value."""
    columns = {
        "qid": [fill.qid for fill in fills],
        "level": [fill.level for fill in fills],
        "provider": [provider.name] * len(fills),
        "model": [provider.model] * len(fills),
        "prompt": [provider.prompt] * len(fills),
        "words": [fill.words for fill in fills],
        "query": texts,
        "status": [FAILED if fill.problem else FILLED for fill in fills],
        "problem": [fill.problem or None for fill in fills],
        "attempts": [fill.attempts for fill in fills],
        "prompt_tokens": [fill.prompt_tokens for fill in fills],
        "completion_tokens": [fill.completion_tokens for fill in fills],
        "cost_usd": [fill.cost_usd for fill in fills],
        "cached": [fill.cached for fill in fills],
    }
    return pa.table(columns, schema=SCHEMAS[STAGE])


def work(tags: Artifact, masks: Artifact, dictionary: Artifact, provider: str, filling: Filling) -> Work:
    """Key material: what is filled, from which words, by whom, how often and with which seed."""
    return Work(
        dataset=masks.dataset,
        stage=STAGE,
        version=VERSION,
        parameters={"provider": provider, "candidates": filling.candidates, "seed": filling.seed},
        parents=(tags, masks, dictionary),
        unit="query and level",
    )


@task(name=STAGE, task_run_name="fills: {provider}")
def fill(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, provider: str, filling: Filling
) -> Artifact:
    """Have one provider fill every level of every query."""

    def parts() -> Iterator[Callable[[], Part]]:
        training = side_by_side(annotations, tags)
        filler = make_provider(provider, load_dictionary(dictionary), training, filling.seed)

        def make(tagged: pa.Table, masked: pa.Table) -> Part:
            return fill_part(tagged, masked, filler, filling.candidates)

        return part_by_part(make, tags, masks)()

    return run_stage(work(tags, masks, dictionary, provider, filling), parts, number_of_parts(masks))
