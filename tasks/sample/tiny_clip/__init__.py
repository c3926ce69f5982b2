"""The shipped CLIP: a small one of the project's own, trained on rendered scenes."""
