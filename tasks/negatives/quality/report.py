"""Stage `quality`: the quality report on negatives, of an artifact or a user's file, as a table of figures.

Counts use every row, blind AUC by words and plausibility use at most 10,000 queries, and figures that need a parser or
an encoder use a smaller sample, drawn by the queries' ids. Random fills of the same masks are a control.
"""

import gzip
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import Resamples
from penumbra.tasks.data.rows import MASK
from penumbra.tasks.negatives.files import Negative, NegativesError
from penumbra.tasks.negatives.language_model import LanguageModel
from penumbra.tasks.negatives.language_model_weights import INSTALL, SMALL_MODEL, is_at_hand, weights_digest
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.negatives.quality.figures import (
    ALL,
    EVERY_LEVEL,
    MIN_HUMAN,
    MIN_ROWS,
    QUERIES,
    RANDOM_FILLS,
    Figures,
    Rows,
    texts_of,
)
from penumbra.tasks.negatives.quality.negatives import (
    MEASURES,
    AnnotatedDataset,
    ArtifactNegatives,
    Measures,
    Reference,
    Source,
    dataset_named,
    find_negatives,
    measure,
    words_of,
)
from penumbra.tasks.negatives.quality.page import write_page
from penumbra.tasks.stage import Stage, build, run, side_effect_task
from penumbra.tasks.text.embeddings import Encoding, encode, encoder_inputs
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, tag_texts

STAGE = "quality"
SEED = 0
MOST_QUERIES = 10_000  # for blind AUC by words and for plausibility
CONTROL_DIVISOR = 3  # for a third of the sample, random fills are parsed and the language model reads all texts
EXAMPLES = Path(__file__).with_name("sentences.txt.gz")  # in WordNet; written by `workshop/wordnet.py`
COLUMNS = ("qid", "level", "query", "negative")  # of a data frame
OPTIONAL = ("vid", "masked_query", "provider", "similarity")


def draw(queries: Iterable[str], count: int) -> set[str]:
    """Return `count` of the queries, or all if it is 0."""
    return set(heapq.nsmallest(count, queries, key=lambda qid: row_seed(SEED, qid, 4)) if count else queries)


def random_fills(rows: Sequence[Negative], reference: Reference) -> Iterator[Negative]:
    """Yield each row with random words, of those that the training split has under a slot's class and fine tag.

    A row whose masks are unknown, or with a slot that no other word fits, is left out.
    """
    most = max((row.masked.count(MASK) for row in rows if row.masked), default=0)
    seeds = np.array([row_seed(SEED, row.qid, row.level) for row in rows], dtype=np.uint64)
    for row, draws in zip(rows, uniform(seeds[:, None], np.arange(most)).tolist(), strict=True):
        slots, text = reference.slots(row), row.masked or ""
        if not slots or text.count(MASK) != len(slots):
            continue
        for number, slot in zip(draws, slots, strict=False):
            if open_to := slot.allowed(reference.dictionary).words:
                text = text.replace(MASK, slot.surface(open_to[int(number * len(open_to))]), 1)
        if MASK not in text:
            yield replace(row, negative=text, provider=RANDOM_FILLS, slots=slots, similarity=None)


def likelihoods(rows: Iterable[Negative], judge: LanguageModel) -> dict[str, float]:
    """Return the log-likelihood per word of each negative and query, NaN where the model can't read the text."""
    texts = texts_of(*rows)
    scored = zip(texts, judge.log_probabilities(texts), strict=True)
    return {text: round(total / max(1, len(words_of(text))), 3) for text, total in scored}


def own_providers(source: Source, judge: str) -> set[str]:
    """Return the providers whose words the judge has chosen itself; for a file, providers that are called llama."""
    if source.artifact is None:
        return {row.provider for row in source.rows() if row.provider == "llama"}
    makers = {(row["provider"], row["model"]) for row in source.store.rows(source.artifact, ["provider", "model"])}
    parameters = json.dumps(source.store.manifest(source.artifact).parameters).lower()
    has_ranked = _weights(judge) in parameters
    return {provider for provider, model in makers if has_ranked or _weights(model or "") == _weights(judge)}


def _weights(model: str) -> str:
    """Return the name of a model's weights without the hub's owner, the quantisation and the digest."""
    return model.partition("@")[0].rsplit("/", 1)[-1].partition(".Q")[0].lower()


def _notes(
    config: QualityConfig, judge: LanguageModel | None, own: set[str], reference: Reference, measures: pa.Table
) -> Iterator[str]:
    """Yield who judges, what is not evaluated, and what is evaluated on a sample."""
    human, model, dataset = len(reference.human), config.language_model, reference.dataset
    text = f"{human:,} other sentences" if human >= MIN_HUMAN else "the examples in WordNet"
    trigrams = f"a trigram model of {text}"
    if not judge:
        how = f"`{INSTALL}`" if model == SMALL_MODEL else f"`hf download {model}`"
        yield (
            f"the verdict is by {trigrams}, and likelihood is left out: the language model {model} is not installed, "
            f"{how} gets it"
        )
    elif own:
        yield (
            f"the language model {judge.name} judges, but it has chosen the words of {', '.join(sorted(own))}: "
            f"{trigrams} decides with it, and likelihood and naturalness flatter these words; --model "
            "(judging.language_model) names another judge"
        )
    else:
        yield f"the verdict is by the language model {judge.name}, which has chosen none of the words"
    left_out = []
    if max(pc.value_counts(measures["level"]).field("counts").to_pylist(), default=0) < MIN_ROWS:
        left_out.append(f"blind AUC (needs {MIN_ROWS} negatives a level)")
    if human < MIN_HUMAN:
        left_out.append(f"plausibility and attested relations (need {MIN_HUMAN} other sentences, there are {human})")
    if left_out:
        yield f"left out, because they mean nothing on so few sentences: {'; '.join(left_out)}"
    if not reference.tests:
        yield f"{dataset} has no test split: leaks are not judged"
    if not reference.leakage.is_labelled:
        yield f"{dataset} has no labels of novel compositions or words: held-out ones are not judged"
    rows, queries = len(measures), len(measures["qid"].unique())
    no_slots = "keep no template, or have masks that don't fit their query: slots are not judged"
    for what, count in (
        ("have no masked query: template is not judged", measures["template_kept"].null_count),
        (no_slots, measures["slots"].null_count),
        (f"have a query that {dataset} lacks", rows - (pc.sum(measures["known_query"]).as_py() or 0)),
    ):
        if count:
            yield f"{count:,} of {counted(rows, 'row')} {what}"
    if config.sample and queries > config.sample:
        yield (
            f"judged on {config.sample:,} of {counted(queries, 'query')}: attested relations, blind AUC by characters, "
            f"cosines that are not known; on a third of them likelihood; on {MOST_QUERIES:,} at most plausibility and "
            "blind AUC by words"
        )


@dataclass(frozen=True)
class Quality(Stage):
    name = STAGE
    version = 8
    unit = "figure"
    pieces = (0,)

    negatives: Source
    measures: Artifact | None  # None for a file, whose rows are measured at once
    data: AnnotatedDataset
    encoding: Encoding
    judging: QualityConfig

    @property
    def dataset(self) -> str:
        return self.data.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return tuple(filter(None, (self.negatives.artifact, self.measures, *self.data.artifacts)))

    def key_parameters(self) -> dict[str, Any]:
        settings = self.judging.model_dump(mode="json", exclude={"judge"}, exclude_defaults=True)
        return {**settings, "sentence_model": self.encoding.sentence_model}

    def inputs(self) -> dict[str, str]:
        """Return the digests of the file of negatives and of the models."""
        own, judge = self.negatives, self.judging.language_model
        digests = {f"negatives: {own.path.name}": file_digest(own.path)} if own.artifact is None else {}
        digests |= {"language model": weights_digest(judge)} if is_at_hand(judge) else {}
        return digests | encoder_inputs("sentence model", self.encoding.sentence_model)

    def part(self, piece: int) -> Part:
        data, config = self.data, self.judging
        if self.measures:
            reference = Reference(data, with_human=True)
            measures = Store().table(self.measures)
        else:
            rows = self.negatives.rows()
            reference = Reference(data, {row.query for row in rows}, with_human=True)
            measures = table_of(MEASURES, [measure(row, reference) for row in rows])
        videos = {vid: number for number, vid in enumerate(measures["vid"].unique().to_pylist())}
        figures = Figures(videos, Resamples(len(videos), config.resamples, SEED))
        figures.put_measures(measures, reference)
        known = measures.filter(measures["similarity"].is_valid())
        if len(known):
            figures.put_similarity(known["qid"].to_pylist(), known["similarity"].to_numpy(), figures.places(known))
        queries = measures["qid"].unique().to_pylist()
        most = max(MOST_QUERIES, config.sample) if config.sample else len(queries)
        rows = self.negatives.rows(draw(queries, most) if most < len(queries) else None)
        drawn = draw({row.qid for row in rows}, config.sample)
        few = [row for row in rows if row.qid in drawn]
        if not len(known):
            texts = texts_of(*few)
            vectors = dict(zip(texts, encode(texts, self.encoding), strict=True))
            cosines = np.array([float(vectors[row.query] @ vectors[row.negative]) for row in few], dtype=np.float64)
            figures.put_similarity([row.qid for row in few], cosines, figures.places(few))
        judge = LanguageModel.load(config.language_model) if is_at_hand(config.language_model) else None
        own = own_providers(self.negatives, judge.name) if judge else set[str]()
        self.put_samples(rows, few, judge, bool(own), reference, figures)
        figures.put_verdicts(own)
        providers = measures["provider"].unique().to_pylist()
        if len(providers) == 1:  # its figures are also stored under its own name
            figures.rows += [{**row, "provider": providers[0]} for row in figures.rows if row["provider"] == ALL]
        notes = Counter(_notes(config, judge, own, reference, measures))
        return Part(table_of(STAGE, figures.rows), len(figures.rows), len(figures.rows), notes=notes)

    def put_samples(
        self, rows: Rows, few: Rows, judge: LanguageModel | None, is_own: bool, reference: Reference, figures: Figures
    ) -> None:
        """Add the figures of the rows, of a sample of `few` rows and of the control.

        The language model `judge` reads the queries of the control. Plausibility and relations need `MIN_HUMAN` human
        sentences; else WordNet's examples judge if there is no language model, or if it chose the words (`is_own`).
        """
        randoms, sample, data = list(random_fills(rows, reference)), self.judging.sample, self.data
        figures.put_blind_auc(rows)
        figures.put_blind_auc(few, "characters")
        figures.put_blind_auc(randoms)
        qids = draw({row.qid for row in rows}, max(sample // CONTROL_DIVISOR, 1) if sample else 0)
        control = [row for row in randoms if row.qid in qids]
        if judge:
            judged = [row for row in few if row.qid in qids]
            figures.put_likelihood(judged, control, likelihoods([*judged, *control], judge))
        if len(reference.human) >= MIN_HUMAN:
            figures.put_plausibility(rows, randoms, reference.human, "plausibility")
            first = {row.qid: row for row in reversed(few)}.values()
            own = [Negative(row.qid, row.vid, EVERY_LEVEL, row.query, row.query, QUERIES) for row in first]
            texts = texts_of(*few, *control, *own)
            parser = data.store.manifest(data.tags).parameters["spacy_model"] if data.tags else SHIPPED_PIPELINE
            parsed = dict(zip(texts, tag_texts(texts, load_pipeline(parser)), strict=True))
            figures.put_relations(few, control, parsed, reference.relations)
            figures.put_relations(own, [], parsed, reference.relations)
        elif is_own or not judge:
            examples = gzip.decompress(EXAMPLES.read_bytes()).decode().splitlines()
            figures.put_plausibility(rows, randoms, examples, "plausibility.examples")


def report_quality(
    negatives: Artifact, annotations: Artifact, tags: Artifact, encoding: Encoding, config: QualityConfig
) -> Artifact:
    """Evaluate the negatives of a run, and publish the report."""
    store = Store()
    data, source = AnnotatedDataset(store, negatives.dataset, annotations, tags), ArtifactNegatives(store, negatives)
    quality = run(Quality(source, run(Measures(source, data)), data, encoding, config))
    _publish(quality)
    return quality


@side_effect_task("report")
def _publish(quality: Artifact) -> None:
    publish_report(quality.dataset, STAGE, write_page(Store(), quality))


def evaluate(negatives: "str | Path | pd.DataFrame", dataset: str | None, settings: Mapping[str, Any]) -> Artifact:
    """Evaluate an artifact, file or data frame of negatives without Prefect, and return the artifact of the report.

    An artifact is evaluated against the data set that it was made from unless `dataset` names another. A data frame has
    the columns of the artifact `negatives`. Raises `NegativesError` if the negatives or the settings are wrong.
    """
    if isinstance(negatives, pd.DataFrame):
        known = [name for name in (*COLUMNS, *OPTIONAL) if name in negatives.columns]
        if lacking := [name for name in COLUMNS if name not in known]:
            raise NegativesError(f"the data frame lacks {', '.join(lacking)}: give one that build_negatives returns")
        with TemporaryDirectory(prefix="penumbra-") as folder:
            file = Path(folder) / "negatives.parquet"
            negatives[known].to_parquet(file, index=False)
            return evaluate(file, dataset, settings)
    try:
        config = QualityConfig(**{name: value for name, value in settings.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise NegativesError(f"{first['loc'][0]}: {first['msg']} (was {first['input']!r})") from None
    store = Store()
    found = find_negatives(store, str(negatives))
    data = dataset_named(store, dataset) if dataset else found.dataset()
    measures = None if found.artifact is None else build(Measures(found, data))
    return build(Quality(found, measures, data, Encoding(), config))
