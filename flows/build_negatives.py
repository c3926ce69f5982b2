"""`build-negatives`: hierarchical hard negatives for training queries or, for evaluations, queries of other splits.

penumbra run build-negatives charades-cg
prefect deployment run build-negatives/charades-cg
"""

from collections.abc import Mapping
from dataclasses import replace

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.registry import Outcome, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.negatives.fills import fill, with_order, with_provider
from penumbra.tasks.negatives.in_video_negatives import InVideoNegatives, Pairing
from penumbra.tasks.negatives.parameters import Negatives, NegativeSource, NegativesParameters, QualityConfig, Queries
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.negatives.report import Rejected, report_negatives
from penumbra.tasks.negatives.reviews import reviews_of
from penumbra.tasks.negatives.selection import Choosing, ChosenNegatives
from penumbra.tasks.stage import plan_if, run
from penumbra.tasks.text.dictionary import WordCounts
from penumbra.tasks.text.embeddings import Embeddings, Encoding
from penumbra.tasks.text.masks import Masking, Masks
from penumbra.tasks.text.tags import Tagging, Tags


@named_flow("build-negatives")
def build_negatives(
    dataset: Dataset,
    tagging: Tagging = Tagging(),
    masking: Masking = Masking(),
    filling: Filling = Filling(),
    encoding: Encoding = Encoding(),
    choosing: Choosing = Choosing(),
    pairing: Pairing = Pairing(),
    judging: QualityConfig = QualityConfig(),
    sourcing: NegativeSource = NegativeSource(),
    engine: EngineName = None,
) -> Outcome[Negatives]:
    """Tag, count, mask, fill and choose (Fig. 3 of SHINE, ECCV 2024), each stage a Parquet artifact."""
    settings = NegativesParameters(
        sourcing=sourcing,
        tagging=tagging,
        masking=masking,
        filling=filling,
        encoding=encoding,
        choosing=choosing,
        pairing=pairing,
        judging=judging,
    )
    with use_engine(engine):
        result = negatives_of(dataset, settings)
    return result, result.outcome


def queries_of(dataset: Dataset, settings: NegativesParameters) -> Queries:
    """Return the artifacts about the queries: annotations, tags, embeddings and in-video negatives."""
    annotations = read_annotations(dataset)
    tags = run(Tags(annotations, settings.tagging))
    embeddings = run(Embeddings(annotations, settings.encoding))
    return Queries(annotations, tags, embeddings, run(InVideoNegatives(annotations, embeddings, settings.pairing)))


def negatives_of(dataset: Dataset, settings: NegativesParameters) -> Negatives:
    """Build the negatives; this is the flow's DAG."""
    queries = queries_of(dataset, settings)
    annotations, tags, embeddings, _ = queries
    dictionary = run(WordCounts(annotations, tags))
    sourcing = settings.sourcing
    if sourcing.kind:
        from penumbra.tasks.negatives.judging import FalseSentences

        sentences = run(FalseSentences(annotations, sourcing))
        return completed_negatives(sentences, queries, dictionary, settings)
    if sourcing.source != "fills":  # whole sentences: nothing is masked or filled
        from penumbra.tasks.negatives.sentence_negatives import make_sentence_negatives

        sentences = make_sentence_negatives(queries, dictionary, settings, reviews_of(dataset.name))
        return completed_negatives(sentences, queries, dictionary, settings)
    stage: type[ChosenNegatives] = ChosenNegatives
    if sourcing.is_for_judging:
        from penumbra.tasks.negatives.judging import JudgingNegatives, check_splits

        check_splits(annotations, sourcing.splits)
        stage = JudgingNegatives
    filling = with_provider(settings.filling, dataset)
    masks = run(Masks(annotations, tags, with_order(settings.masking, filling, dataset), sourcing.splits))
    unanswered: Mapping[str, str | None] = {}
    if filling.hosted:  # import the services' clients only if needed
        from penumbra.tasks.negatives.ask import ask

        unanswered = ask(annotations, tags, masks, dictionary, filling)
    with plan_if(filling.dry_run):  # a dry run only reports the price
        fills = fill(annotations, tags, masks, dictionary, filling, unanswered)
        if sourcing.is_for_judging:
            embeddings = run(Embeddings(annotations, settings.encoding, sourcing.splits))
        parents = annotations, tags, masks, dictionary, fills, embeddings
        chosen = run(stage(*parents, settings.choosing, settings.encoding, reviews_of(dataset.name)))
        return completed_negatives(chosen, queries, dictionary, settings, masks, fills, embeddings)


def completed_negatives(
    negatives: Artifact,
    queries: Queries,
    dictionary: Artifact,
    settings: NegativesParameters,
    masks: Artifact | None = None,
    fills: tuple[Artifact, ...] = (),
    embeddings: Artifact | None = None,
) -> Negatives:
    """Return all artifacts of a run, its outcome, and its quality report unless the negatives are for evaluations."""
    annotations, tags, of_queries, in_video = queries
    quality = None
    if settings.judging.judge and not settings.sourcing.is_for_judging:
        from penumbra.tasks.negatives.quality.report import report_quality

        quality = report_quality(negatives, annotations, tags, settings.encoding, settings.judging)
    rejected = run(Rejected((annotations, tags, *([masks] if masks else []), *fills, negatives)))
    result = Negatives(
        annotations, tags, dictionary, masks, fills, embeddings or of_queries, negatives, in_video, rejected, quality
    )
    return replace(result, outcome=report_negatives(result))
