"""`python -m penumbra.flows.commands`, the same as `penumbra`."""

from penumbra.flows.commands import main

main()
