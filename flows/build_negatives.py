"""`build-negatives`: hierarchical hard negatives for every training query of a data set.

penumbra run build-negatives charades-cg, or prefect deployment run build-negatives/charades-cg
"""

from prefect import State

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.named_flow import completed_state, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.negatives.ask import ask
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import fill
from penumbra.tasks.negatives.in_video_negatives import Pairing, pair
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters, QualityConfig
from penumbra.tasks.negatives.references import Negatives, Queries
from penumbra.tasks.negatives.report import gather_rejected, report_negatives, summarise
from penumbra.tasks.negatives.selection import Choosing, choose_negatives
from penumbra.tasks.stage import plan_if
from penumbra.tasks.text.dictionary import count
from penumbra.tasks.text.embeddings import Encoding, embed
from penumbra.tasks.text.masks import Masking, mask
from penumbra.tasks.text.tags import Tagging, tag


@named_flow(
    "build-negatives",
    lambda dataset, filling, sourcing, **_: f"build-negatives {dataset.name} {sourcing.name_of(filling)}",
)
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
    how = NegativesParameters(
        tagging=tagging,
        masking=masking,
        filling=filling,
        encoding=encoding,
        choosing=choosing,
        pairing=pairing,
        judging=judging,
        sourcing=sourcing,
    )
    with use_engine(engine):
        made = negatives_of(dataset, how)
    return completed_state(made, made.outcome)


def queries_of(dataset: Dataset, how: NegativesParameters) -> Queries:
    """What is known of the queries before any is negated."""
    annotations = read_annotations(dataset)
    tags, embeddings = tag(annotations, how.tagging), embed(annotations, how.encoding)
    return Queries(annotations, tags, embeddings, pair(annotations, embeddings, how.pairing))


def negatives_of(dataset: Dataset, how: NegativesParameters) -> Negatives:
    """The flow's DAG."""
    queries = queries_of(dataset, how)
    annotations, tags, embeddings, in_video = queries
    dictionary = count(annotations, tags)
    if how.sourcing.source != "fills":
        return taken_of(queries, dictionary, how)
    masks = mask(annotations, tags, how.masking)
    unanswered = ask(annotations, tags, masks, dictionary, how.filling)
    with plan_if(how.filling.dry_run):  # then the price has been told, and nothing more is made
        fills = fill(annotations, tags, masks, dictionary, how.filling, unanswered)
        chosen = choose_negatives(annotations, tags, masks, dictionary, fills, embeddings, how.choosing, how.encoding)
        quality = quality_of(chosen, fills, queries, how)
        rejected = gather_rejected(annotations, tags, masks, *fills, chosen)
        made = Negatives(annotations, tags, dictionary, masks, fills, embeddings, chosen, in_video, rejected, quality)
        return made.ended(report_negatives(made, summarise(annotations, tags, masks, fills, chosen)))


def taken_of(queries: Queries, dictionary: Artifact, how: NegativesParameters) -> Negatives:
    """The DAG where negatives are whole sentences: nothing is masked, filled or chosen."""
    annotations, tags, embeddings, in_video = queries
    from penumbra.tasks.negatives.sentence_negatives.imported import make_sentence_negatives

    taken = make_sentence_negatives(annotations, tags, dictionary, embeddings, how.sourcing, how.choosing, how.encoding)
    quality = quality_of(taken, (), queries, how)
    rejected = gather_rejected(annotations, tags, taken)
    made = Negatives(annotations, tags, dictionary, None, (), embeddings, taken, in_video, rejected, quality)
    return made.ended(report_negatives(made, summarise(annotations, tags, None, (), taken)))


def quality_of(
    negatives: Artifact, fills: tuple[Artifact, ...], queries: Queries, how: NegativesParameters
) -> Artifact | None:
    """Return the quality report on the negatives, if the parameters ask for one."""
    if not how.judging.judge:
        return None
    from penumbra.tasks.negatives.quality.report import report_quality

    annotations, tags, embeddings, _ = queries
    return report_quality(negatives, fills, annotations, tags, embeddings, how.encoding, how.judging)
