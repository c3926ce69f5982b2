"""Stage `fills`: a provider's candidates for every query at every level."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.schemas import SCHEMAS, table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.negatives.providers.registry import TrainingText, sentences
from penumbra.tasks.stage import number_of_parts, part_by_part, run_stage, side_by_side
from penumbra.tasks.text.dictionary import Dictionary, load_dictionary
from penumbra.tasks.text.masks import render
from prefect import get_run_logger, task
from prefect.runtime import flow_run

STAGE = "fills"
VERSION = 2
FILLED, FAILED = "filled", "failed"
SUBSTITUTED = "no provider that was asked filled it"


def training_tokens(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[list[dict[str, Any]]]:
    """The tokens of every training query; `tagged` yields annotations and tags by part."""
    for annotations, tags in tagged:
        yield from tags.filter(pc.equal(annotations["split"], "train"))["tokens"].to_pylist()


def training_sentences(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[list[str]]:
    """The lower-cased words of every training query."""
    return sentences(training_tokens(tagged))


def make_provider(
    name: str, dictionary: Dictionary, tagged: Iterable[tuple[pa.Table, pa.Table]], filling: Filling, run: str = ""
) -> Provider:
    """The provider of this name, fitted to the training split where it needs to be; `run` is the run that fills."""
    return filling.settings(name).make(TrainingText(dictionary, training_tokens(tagged)), filling, run)


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
    """The query with a level's slots filled."""
    placed = {}
    for slot, word in zip(query.levels[level - 1], words, strict=True):
        placed[slot.token] = slot.surface(word)
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
        "model": [fill.model or provider.model for fill in fills],
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


def work(
    tags: Artifact, masks: Artifact, dictionary: Artifact, provider: str, filling: Filling, unanswered: str = ""
) -> Work:
    """Key material: what is filled, from which words, by whom and how, and what was not answered when it was filled."""
    return Work(
        dataset=masks.dataset,
        stage=STAGE,
        version=VERSION,
        parameters={**filling.determines(provider), **({"unanswered": unanswered} if unanswered else {})},
        parents=(tags, masks, dictionary),
        unit="query and level",
    )


@task(name=STAGE, task_run_name="fills: {provider}")
def fill(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, provider: str, filling: Filling,
    unanswered: str = "",
) -> Artifact:  # fmt: skip
    """Have one provider fill every level of every query; a hosted one has been asked before (task `ask`)."""

    def parts() -> Iterator[Callable[[], Part]]:
        training = side_by_side(annotations, tags)
        filler = make_provider(provider, load_dictionary(dictionary), training, filling, run_id())

        def make(tagged: pa.Table, masked: pa.Table) -> Part:
            return fill_part(tagged, masked, filler, filling.candidates_of(provider))

        return part_by_part(make, tags, masks)()

    return run_stage(work(tags, masks, dictionary, provider, filling, unanswered), parts, number_of_parts(masks))


def unfilled(masks: pa.Table, fills: Sequence[pa.Table]) -> set[tuple[str, int]]:
    """The queries and levels of a part that no provider filled."""
    filled: set[tuple[str, int]] = set()
    for table in fills:
        some = table.filter(pc.equal(table["status"], FILLED))
        filled.update(zip(some["qid"].to_pylist(), some["level"].to_pylist(), strict=True))
    return set(zip(masks["qid"].to_pylist(), masks["level"].to_pylist(), strict=True)) - filled


def substitute_part(tags: pa.Table, masks: pa.Table, fills: Sequence[pa.Table], provider: Provider, count: int) -> Part:
    """Fill what a part lacks, and mark it so."""
    missing = unfilled(masks, fills)
    qids = {qid for qid, _ in missing}
    wanted = pc.is_in(masks["qid"], pa.array(sorted(qids), pa.string()))
    part = fill_part(tags, masks.filter(wanted), provider, count)
    rows = [row for row in part.rows.to_pylist() if (row["qid"], row["level"]) in missing]
    for row in rows:
        row["problem"] = row["problem"] or SUBSTITUTED
    kept = {(row["qid"], row["level"]) for row in rows if row["status"] == FILLED}
    rejected = [
        rejection(qid, STAGE, "no provider filled it, nor could corpus", f"level {level}")
        for qid, level in sorted(missing - kept)
    ]
    return Part(table_of(STAGE, rows), len(missing), len(kept), rejected)


@task(name="substitute")
def substitute(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, fills: list[Artifact],
    filling: Filling,
) -> list[Artifact]:  # fmt: skip
    """The fills, and where some levels have none by anyone, `corpus`'s for just these."""
    store = Store()
    columns = ["qid", "level", "status"]
    missing = sum(
        len(unfilled(masked, filled))
        for masked, *filled in zip(
            store.parts(masks, columns[:2]), *(store.parts(artifact, columns) for artifact in fills), strict=True
        )
    )
    if not missing or not filling.substitute or "corpus" in filling.providers:
        return fills
    get_run_logger().warning("%d queries and levels were filled by no provider: taken from corpus", missing)
    key = Work(
        dataset=masks.dataset,
        stage=STAGE,
        version=VERSION,
        parameters={**filling.determines("corpus"), "substitutes": True},
        parents=(tags, masks, dictionary, *fills),
        unit="query and level",
    )

    def parts() -> Iterator[Callable[[], Part]]:
        corpus = make_provider("corpus", load_dictionary(dictionary), side_by_side(annotations, tags), filling)

        def make(tagged: pa.Table, masked: pa.Table, *filled: pa.Table) -> Part:
            return substitute_part(tagged, masked, filled, corpus, filling.candidates)

        return part_by_part(make, tags, masks, *fills)()

    return [*fills, run_stage(key, parts, number_of_parts(masks))]


def run_id() -> str:
    """The flow run that this is a part of, or a name of its own outside of one."""
    return str(flow_run.id or uuid4())
