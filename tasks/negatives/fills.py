"""Stage `fills`: a provider's candidates for every query at every level.

Task `ask` asks hosted language models before this stage, which reads their answers from the cache.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from prefect.runtime import flow_run

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.data.rows import training_queries
from penumbra.tasks.negatives.language_model_weights import INSTALL, is_at_hand
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot, TrainingText
from penumbra.tasks.negatives.providers.settings import FEW, Filling, HostedSettings
from penumbra.tasks.progress import counting, logger
from penumbra.tasks.stage import NotYetError, Stage, read_part, run, zip_parts
from penumbra.tasks.text.dictionary import Dictionary, load_dictionary
from penumbra.tasks.text.masks import NOUNS_FIRST, Masking, render

STAGE = "fills"
FILLED, FAILED = "filled", "failed"
SUBSTITUTE = "corpus"  # the provider that fills what no other filled
SECONDS = 2.5  # that a core takes at most for a query with the small language model
SUBSTITUTED = "no provider that was asked filled it"


def training_tokens(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the tokens of every training query; `tagged` yields annotations and tags by part."""
    for annotations, tags in tagged:
        yield from tags.filter(pc.equal(annotations["split"], "train"))["tokens"].to_pylist()


def make_provider(
    name: str, dictionary: Dictionary, tagged: Iterable[tuple[pa.Table, pa.Table]], filling: Filling, run: str = ""
) -> Provider:
    """Return the provider of this name, fitted to the training split if it needs that; `run` is the id of the run."""
    return filling.settings(name).make(TrainingText(dictionary, training_tokens(tagged)), filling, run)


def masked_queries(tags: pa.Table, masks: pa.Table) -> list[MaskedQuery]:
    """Return the masked queries of a part: its masks joined with its tokens."""
    levels: dict[str, list[list[dict[str, Any]]]] = {}
    for qid, slots in zip(masks["qid"].to_pylist(), masks["slots"].to_pylist(), strict=True):
        levels.setdefault(qid, []).append(slots)
    queries = []
    for qid, tokens in zip(tags["qid"].to_pylist(), tags["tokens"].to_pylist(), strict=True):
        if qid in levels:
            about = [{"lemma": token["lemma"], "is_subject": token["is_subject"]} for token in tokens]
            slots = tuple(tuple(Slot(**slot, **about[slot["token"]]) for slot in level) for level in levels[qid])
            queries.append(MaskedQuery(qid, tokens, slots))
    return queries


def places(table: pa.Table) -> set[tuple[str, int]]:
    """Return the (qid, level) pairs of the rows."""
    return set(zip(table["qid"].to_pylist(), table["level"].to_pylist(), strict=True))


def put_words(query: MaskedQuery, level: int, words: Sequence[str]) -> str:
    """Return the query with a level's slots filled."""
    pairs = zip(query.levels[level - 1], words, strict=True)
    return render(query.tokens, {slot.token: slot.surface(word) for slot, word in pairs})


def fill_part(tags: pa.Table, masks: pa.Table, provider: Provider, candidates: int) -> Part:
    """Fill one part; a query and level without any candidate is rejected with the provider's reason."""
    queries = {query.qid: query for query in masked_queries(tags, masks)}
    tick, begun, fills = counting("queries", len(queries)), set[str](), list[Fill]()
    for fill in provider.fill(list(queries.values()), candidates):
        tick(fill.qid not in begun)
        begun.add(fill.qid)
        fills.append(fill)
    fills.sort(key=lambda fill: (fill.qid, fill.level))
    filled = {(fill.qid, fill.level) for fill in fills if not fill.problem}
    failed = {(it.qid, it.level): it.problem for it in fills if it.problem and (it.qid, it.level) not in filled}
    rejected = [
        rejection(qid, STAGE, f"{provider.name}: {problem}", f"level {level}")
        for (qid, level), problem in failed.items()
    ]
    rows = [
        vars(fill)
        | {
            "provider": provider.name,
            "model": fill.model or provider.model,
            "prompt": provider.prompt,
            "negative": None if fill.problem else put_words(queries[fill.qid], fill.level, fill.words),
            "status": FAILED if fill.problem else FILLED,
            "problem": fill.problem or None,
        }
        for fill in fills
    ]
    paid = math.fsum(fill.cost_usd for fill in fills if not fill.cached)
    return Part(table_of(STAGE, rows), len(filled) + len(rejected), len(filled), rejected, cost_usd=paid)


@dataclass(frozen=True)
class Fills(Stage):
    """One provider's candidates for every level of every query.

    `unanswered` is a digest of the questions that a hosted provider did not answer (`ask`): '' if it answered all, None
    in a plan if that is unknown. `others` are the fills of other providers: if given, the provider fills only the
    queries and levels that none of them filled, and its rows say so in `problem`.
    """

    name = STAGE
    version = 2
    unit = "query level"
    may_be_empty = True  # other providers fill what one does not

    annotations: Artifact
    tags: Artifact
    masks: Artifact
    dictionary: Artifact
    provider: str
    filling: Filling
    unanswered: str | None = ""
    others: tuple[Artifact, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}: {self.provider}{' for levels that no other filled' if self.others else ''}"

    @property
    def by_workers(self) -> bool:
        """Whether workers make the parts; not for a hosted model, whose answers are on the disk of the run."""
        return super().by_workers and not isinstance(self.filling.settings(self.provider), HostedSettings)

    @property
    def on_device(self) -> bool:
        return self.filling.settings(self.provider).on_device

    def parameters(self) -> dict[str, Any]:
        unanswered = {"unanswered": self.unanswered} if self.unanswered else {}
        substitutes = {"substitutes": True} if self.others else {}
        return {**self.filling.key_parameters(self.provider), **unanswered, **substitutes}

    def key_parameters(self) -> dict[str, Any]:
        """Return all parameters; raise `NotYetError` if it is unknown which questions are unanswered."""
        if self.unanswered is None:
            raise NotYetError(f"after {self.provider} is asked")
        return self.parameters()

    @cached_property
    def filler(self) -> Provider:
        training = zip_parts(self.annotations, self.tags)
        return make_provider(self.provider, load_dictionary(self.dictionary), training, self.filling, run_id())

    def part(self, piece: int) -> Part:
        """Fill one part, or the levels of it that the other providers did not fill."""
        tags, masks, *fills = read_part(piece, self.tags, self.masks, *self.others)
        candidates = self.filling.candidates_of(self.provider)
        if not self.others:
            return fill_part(tags, masks, self.filler, candidates)
        missing = places(masks).difference(*(places(it.filter(pc.equal(it["status"], FILLED))) for it in fills))
        if not missing:
            return Part(table_of(STAGE, []), 0, 0)
        logger().warning("%s filled by no provider: corpus fills them", counted(len(missing), "query level"))
        qids = pa.array(sorted({qid for qid, _ in missing}), pa.string())
        part = fill_part(tags, masks.filter(pc.is_in(masks["qid"], qids)), self.filler, candidates)
        rows = [row for row in part.rows.to_pylist() if (row["qid"], row["level"]) in missing]
        kept = table_of(STAGE, [{**row, "problem": row["problem"] or SUBSTITUTED} for row in rows])
        open_places = sorted(missing - places(kept.filter(pc.equal(kept["status"], FILLED))))
        reason = "no provider filled it, nor could corpus"
        rejected = [rejection(qid, STAGE, reason, f"level {level}") for qid, level in open_places]
        return Part(kept, len(missing), len(missing) - len(open_places), rejected)


def fill(
    annotations: Artifact,
    tags: Artifact,
    masks: Artifact,
    dictionary: Artifact,
    filling: Filling,
    unanswered: Mapping[str, str | None],
) -> tuple[Artifact, ...]:
    """Fill every level of every query with every provider; `corpus` then fills what hosted models left open."""
    parents = annotations, tags, masks, dictionary
    fills = tuple(run(Fills(*parents, name, filling, unanswered.get(name, ""))) for name in filling.providers)
    # a local model leaves a slot open only if it found no natural word for it
    if not filling.substitute or not filling.hosted or SUBSTITUTE in filling.providers:
        return fills
    return (*fills, run(Fills(*parents, SUBSTITUTE, filling, others=fills)))


def with_provider(filling: Filling, dataset: Dataset) -> Filling:
    """Return the parameters with a provider if none is named: `llama` for few training queries, `corpus` for many."""
    if filling.providers:
        return filling
    count, model = training_queries(dataset), filling.llama.model
    minutes = math.ceil(count * SECONDS / 60 / (os.cpu_count() or 1))
    queries, time = counted(count, "training query"), f"up to {counted(minutes, 'minute')} on a CPU the first time"
    provider = "llama" if count < FEW and is_at_hand(model) else "corpus"
    if provider == "llama":
        logger().info(f"{queries}: the language model {model} fills them, {time} (providers=[corpus] takes seconds)")
    elif count < FEW:
        logger().warning(
            f"{queries}: too little text for corpus, which then fills nearly at random. Install a language model "
            f"({INSTALL}) or name a provider with filling.providers"
        )
    elif is_at_hand(model):
        logger().info(f"{queries}: corpus fills them; providers=[llama] reads more naturally, {time}")
    return filling.model_copy(update={"providers": [provider]})


def with_order(masking: Masking, filling: Filling, dataset: Dataset) -> Masking:
    """Return the parameters with the order of masking if none is named: nouns first where `llama` fills few queries.

    Another noun is more often natural and false of the moment than another verb (docs/results/negatives.md), and models
    learn equally well from it (docs/does-it-help.md).
    """
    if masking.primitives or filling.providers != ["llama"] or training_queries(dataset, FEW) == FEW:
        return masking
    logger().info("few sentences, filled by llama: level 1 masks nouns (masking.primitives names another order)")
    return masking.model_copy(update={"primitives": NOUNS_FIRST})


def run_id() -> str:
    """Return the id of the flow run, or a new one outside of a flow run."""
    return str(flow_run.id or uuid4())
