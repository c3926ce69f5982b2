"""Prediction for any video: `Grounder.of_run("ab12").ground("video.mp4", ["a person opens the door."])`."""

from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, Watched, Window

__all__ = ["Grounder", "Grounding", "Watched", "Window"]
