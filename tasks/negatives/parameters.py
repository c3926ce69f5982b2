"""All parameter groups of `build-negatives`, for the flows that do its work on the way."""

from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.negatives.whole.sourcing import Sourcing
from penumbra.tasks.stage import Parameters
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging


class NegativesParameters(Parameters):
    """How the negatives are built: the groups of `build-negatives`."""

    sourcing: Sourcing = Sourcing()
    tagging: Tagging = Tagging()
    masking: Masking = Masking()
    filling: Filling = Filling()
    encoding: Encoding = Encoding()
    choosing: Choosing = Choosing()
    pairing: Pairing = Pairing()
    judging: Judging = Judging()
