"""The base class of the stages that predict with a trained run: calibration, predictions, existence and evaluation."""

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Loaded
from penumbra.tasks.grounding.batches.inputs import Sources, load
from penumbra.tasks.grounding.configs import Ranking
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.training.loop import keep_memory
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_run
from penumbra.tasks.stage import Stage

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RunStage(Stage):
    """Base class of the stages that predict with a trained run."""

    metrics: Artifact
    sources: Sources

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return (*super().parents, *self.sources.parents)

    @cached_property
    def run(self) -> tuple[nn.Module, Settings]:
        """The best model of the run, and its settings."""
        keep_memory()
        return load_run(self.metrics)

    @cached_property
    def loaded(self) -> Loaded:
        return load(self.sources, self.run[1].inputs)

    def predict(self, rows: Rows, ranking: Ranking | None = None) -> tuple[list[Prediction], Rows, float]:
        """Return the predictions for rows of `annotations`, the rejected rows, and the duration in seconds.

        The query of a row may be any text with features. `ranking` defaults to the run's setting. Raise `FeatureError`
        if the model was trained on features of other widths.
        """
        (model, settings), loaded = self.run, self.loaded
        system = system_of(settings.model_copy(update={"ranking": ranking or settings.ranking}))
        examples = loaded.examples_of(rows, self.name)
        if not len(examples):
            return [], list(examples.rejected), 0.0
        widths, wanted = (loaded.videos.channels, loaded.texts.channels), system.widths(model.state_dict())
        if widths != wanted:
            raise FeatureError(
                f"the model was trained on features with {wanted[0]} (video) and {wanted[1]} (text) channels, found "
                f"{widths[0]} and {widths[1]}: name the encoders with inputs.video_features and inputs.text_features"
            )
        data = system.data(examples, device_of())
        model.to(device_of())
        started = time.perf_counter()
        predictions = system.predict(model, data)
        return predictions, list(examples.rejected), time.perf_counter() - started
