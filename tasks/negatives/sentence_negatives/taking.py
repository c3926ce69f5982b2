"""Takes negatives that are whole sentences from where the parameters say."""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.negatives.sentence_negatives.imported import IMPORTED, ImportedNegatives, newest_imported
from penumbra.tasks.negatives.sentence_negatives.nearest import NearestNegatives
from penumbra.tasks.stage import run
from penumbra.tasks.text.embeddings import Encoding


def take_negatives(
    annotations: Artifact,
    tags: Artifact,
    dictionary: Artifact,
    embeddings: Artifact,
    sourcing: NegativeSource,
    choosing: Choosing,
    encoding: Encoding,
) -> Artifact:
    """Take the negatives, of a file that is not named those that were imported last."""
    if sourcing.source == IMPORTED and not sourcing.file:
        return newest_imported(annotations)
    kind = ImportedNegatives if sourcing.source == IMPORTED else NearestNegatives
    return run(kind(annotations, tags, dictionary, embeddings, sourcing, choosing, encoding))
