"""`build-negatives`: hierarchical hard negatives for every training query of a data set, or for others to judge by.

penumbra run build-negatives charades-cg
prefect deployment run build-negatives/charades-cg
"""

from collections.abc import Mapping
from dataclasses import replace

from prefect import State

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.named_flow import completed_state, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import fill, with_provider
from penumbra.tasks.negatives.in_video_negatives import InVideoNegatives, Pairing
from penumbra.tasks.negatives.parameters import Negatives, NegativeSource, NegativesParameters, QualityConfig, Queries
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
) -> State[Negatives]:
    """Tag, count, mask, fill and choose (Fig. 3 of SHINE, ECCV 2024), each stage a Parquet artifact."""
    text = {"tagging": tagging, "masking": masking, "filling": filling, "encoding": encoding}
    chosen = {"choosing": choosing, "pairing": pairing, "judging": judging, "sourcing": sourcing}
    settings = NegativesParameters.model_validate({**text, **chosen})
    with use_engine(engine):
        result = negatives_of(dataset, settings)
    return completed_state(result, result.outcome)


def queries_of(dataset: Dataset, settings: NegativesParameters) -> Queries:
    """Return the artifacts about the queries: annotations, tags, embeddings and in-video negatives."""
    annotations = read_annotations(dataset)
    tags = run(Tags(annotations, settings.tagging))
    embeddings = run(Embeddings(annotations, settings.encoding))
    return Queries(annotations, tags, embeddings, run(InVideoNegatives(annotations, embeddings, settings.pairing)))


def negatives_of(dataset: Dataset, settings: NegativesParameters) -> Negatives:
    """Build the negatives; this is the flow's DAG."""
    queries = queries_of(dataset, settings)
    annotations, tags, _, in_video = queries
    dictionary = run(WordCounts(annotations, tags))
    if settings.sourcing.source != "fills":
        return sentences_of(queries, dictionary, settings)
    splits = settings.sourcing.splits
    if settings.sourcing.is_for_judging:
        from penumbra.tasks.negatives.judging import check_splits

        check_splits(annotations, splits)
    masks = run(Masks(annotations, tags, settings.masking, splits))
    filling = with_provider(settings.filling, dataset)
    unanswered = ask_hosted(annotations, tags, masks, dictionary, filling)
    with plan_if(filling.dry_run):  # a dry run only reports the price
        fills = fill(annotations, tags, masks, dictionary, filling, unanswered)
        stage, embeddings = ChosenNegatives, queries.embeddings
        if settings.sourcing.is_for_judging:
            from penumbra.tasks.negatives.judging import JudgingNegatives

            stage, embeddings = JudgingNegatives, run(Embeddings(annotations, settings.encoding, splits))
        parents = annotations, tags, masks, dictionary, fills, embeddings
        chosen = run(stage(*parents, settings.choosing, settings.encoding, reviews_of(dataset.name)))
        quality = quality_of(chosen, queries, settings)
        rejected = run(Rejected((annotations, tags, masks, *fills, chosen)))
        result = Negatives(annotations, tags, dictionary, masks, fills, embeddings, chosen, in_video, rejected, quality)
        return replace(result, outcome=report_negatives(result))


def sentences_of(queries: Queries, dictionary: Artifact, settings: NegativesParameters) -> Negatives:
    """Return negatives that are whole sentences: nothing is masked or filled."""
    from penumbra.tasks.negatives.sentence_negatives import make_sentence_negatives

    annotations, tags, embeddings, in_video = queries
    if settings.sourcing.kind:
        from penumbra.tasks.negatives.judging import FalseSentences

        sentences = run(FalseSentences(annotations, settings.sourcing))
    else:
        sentences = make_sentence_negatives(queries, dictionary, settings, reviews_of(annotations.dataset))
    quality = quality_of(sentences, queries, settings)
    rejected = run(Rejected((annotations, tags, sentences)))
    result = Negatives(annotations, tags, dictionary, None, (), embeddings, sentences, in_video, rejected, quality)
    return replace(result, outcome=report_negatives(result))


def quality_of(negatives: Artifact, queries: Queries, settings: NegativesParameters) -> Artifact | None:
    """Return the quality report on negatives to learn from, if the parameters ask for one."""
    if not settings.judging.judge or settings.sourcing.is_for_judging:
        return None
    from penumbra.tasks.negatives.quality.report import report_quality

    return report_quality(negatives, queries.annotations, queries.tags, settings.encoding, settings.judging)


def ask_hosted(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, filling: Filling
) -> Mapping[str, str | None]:
    """Ask the hosted models among the providers; their clients are imported if there are any."""
    if not filling.hosted:
        return {}
    from penumbra.tasks.negatives.ask import ask

    return ask(annotations, tags, masks, dictionary, filling)
