"""Prediction for one's own video: `Grounder.of_run("ab12").ground("video.mp4", ["a person opens the door."])`."""

from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, PredictionError, Window
from penumbra.tasks.grounding.prediction.watching import Watched

__all__ = ["Grounder", "Grounding", "PredictionError", "Watched", "Window"]
