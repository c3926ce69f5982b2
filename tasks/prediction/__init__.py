"""Prediction for one's own video: `Grounder.of_run("ab12").ground("video.mp4", ["a person opens the door."])`."""

from tasks.prediction.grounder import Grounder, Grounding, PredictionError, Window
from tasks.prediction.watching import Watched

__all__ = ["Grounder", "Grounding", "PredictionError", "Watched", "Window"]
