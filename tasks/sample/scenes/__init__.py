"""The sample data set "scenes": scripted videos of our own with Compositional-Temporal-Grounding splits."""
