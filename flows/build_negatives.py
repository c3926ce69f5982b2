"""`build-negatives`: hierarchical hard negatives for every training query of a data set.

penumbra run build-negatives charades-cg
prefect deployment run build-negatives/charades-cg
"""

from prefect import State, flow
from prefect.states import Completed

from artifacts.manifest import Artifact
from tasks.annotations import read_annotations
from tasks.ask import ask
from tasks.dataset import Dataset
from tasks.dictionary import count
from tasks.embeddings import Encoding, embed
from tasks.fills import Filling, fill, substitute
from tasks.in_video_negatives import Pairing, pair
from tasks.masks import Masking, mask
from tasks.negatives import Choosing, choose_negatives
from tasks.quality.judging import Judging
from tasks.quality.stage import assess
from tasks.rejected import gather_rejected
from tasks.report import report_negatives
from tasks.tags import Tagging, tag


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
