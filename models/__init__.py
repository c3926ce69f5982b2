"""Torch modules, losses and matching. A model knows tensors and nothing of files."""
