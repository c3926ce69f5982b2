"""What `extract-features` takes and gives, for its own flow and for those that have features extracted on the way."""

from dataclasses import dataclass

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports.importer import Imports
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.stage import Parameters


class FeaturesParameters(Parameters):
    """How features are extracted or imported: the groups of `extract-features`."""

    clip: Clip = Clip()
    texts: Texts = Texts()
    videos: Videos = Videos()
    imports: Imports = Imports()


@dataclass(frozen=True)
class Features:
    """All that is made on the way, for whoever goes on from here; `outcome` says in a line how it ended."""

    annotations: Artifact
    text_features: Artifact
    video_features: Artifact
    patch_features: Artifact | None
    outcome: str | None = None

    @property
    def path(self) -> str:
        """Where the features of the videos lie."""
        return self.video_features.path
