"""Training of grounding models: the stage, the loop with its step, checkpoints, logs and presets."""
