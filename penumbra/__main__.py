"""`python -m penumbra …` is the console command, which launchers such as `accelerate launch -m penumbra` start."""

from penumbra.flows.commands import main

main()
