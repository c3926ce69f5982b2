"""The parameters of `extract-features`, and references to the artifacts that it makes."""

from dataclasses import dataclass

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports import Imports
from penumbra.tasks.features.simulated import Simulation
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.stage import Parameters


class FeaturesParameters(Parameters):
    """The parameter groups of `extract-features`."""

    clip: Clip = Clip()
    texts: Texts = Texts()
    videos: Videos = Videos()
    imports: Imports = Imports()
    simulation: Simulation = Simulation()

    def with_patches(self, wanted: bool) -> "FeaturesParameters":
        """Return these parameters, with patch features if they are wanted."""
        return self.model_copy(update={"videos": self.videos.model_copy(update={"patches": True})}) if wanted else self


@dataclass(frozen=True)
class ExtractedFeatures:
    """The artifacts of an `extract-features` run; `outcome` says in one line how the run ended."""

    annotations: Artifact
    text_features: Artifact
    video_features: tuple[Artifact, ...]
    patch_features: Artifact | None
    outcome: str | None = None

    @property
    def path(self) -> str:
        return self.video_features[0].path
