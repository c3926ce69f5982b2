"""`build-negatives`: hierarchical hard negatives for every training query of a data set.

penumbra run build-negatives charades-cg
prefect deployment run build-negatives/charades-cg
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.ask import ask
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import fill, substitute
from penumbra.tasks.negatives.in_video_negatives import Pairing, pair
from penumbra.tasks.negatives.quality.assessment import assess
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.rejected import gather_rejected
from penumbra.tasks.negatives.reports.run import report_negatives
from penumbra.tasks.negatives.selection import Choosing, choose_negatives
from penumbra.tasks.text.dictionary import count
from penumbra.tasks.text.embeddings import Encoding, embed
from penumbra.tasks.text.masks import Masking, mask
from penumbra.tasks.text.tags import Tagging, tag
from prefect import State, flow
from prefect.states import Completed


@flow(name="build-negatives", flow_run_name="{dataset.name}")
def build_negatives(
    dataset: Dataset,
    tagging: Tagging = Tagging(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    masking: Masking = Masking(),  # noqa: B008
    filling: Filling = Filling(),  # noqa: B008
    encoding: Encoding = Encoding(),  # noqa: B008
    choosing: Choosing = Choosing(),  # noqa: B008
    pairing: Pairing = Pairing(),  # noqa: B008
    judging: Judging = Judging(),  # noqa: B008
) -> Artifact | State[Artifact]:
    """Tag, count, mask, fill and choose (Fig. 3 of SHINE, ECCV 2024), each stage a Parquet artifact."""
    annotations = read_annotations(dataset)
    tags = tag(annotations, tagging)
    dictionary = count(annotations, tags)
    masks = mask(annotations, tags, masking)
    unanswered = ask(annotations, tags, masks, dictionary, filling)
    if filling.dry_run:
        return masks
    fills = [
        fill(annotations, tags, masks, dictionary, provider, filling, unanswered.get(provider, ""))
        for provider in filling.providers
    ]
    fills = substitute(annotations, tags, masks, dictionary, fills, filling)
    embeddings = embed(annotations, encoding)
    negatives = choose_negatives(annotations, tags, masks, dictionary, fills, embeddings, choosing, encoding)
    quality = [assess(negatives, encoding, judging)] if judging.judge else []
    in_video = pair(annotations, embeddings, pairing)
    rejected = gather_rejected([annotations, tags, masks, *fills, negatives])
    outcome = report_negatives([annotations, tags, dictionary, masks, *fills, negatives, in_video, rejected, *quality])
    return Completed(message=outcome, data=negatives)  # Prefect hands the caller the data, and shows the message
