"""Training of grounding models: data on the device, the step, the loop, its checkpoints and presets."""
