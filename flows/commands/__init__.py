"""The `penumbra` command: everything that a deployment does, from a terminal; a file a command."""

from penumbra.flows.commands.application import app, main

__all__ = ["app", "main"]
