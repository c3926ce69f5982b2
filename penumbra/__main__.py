"""`python -m penumbra …` is the console command, which launchers such as `accelerate launch -m penumbra` start."""

import os
import tempfile

if os.environ.get("RANK", "0") != "0":  # processes that start at once must not create one Prefect database together
    os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="penumbra-prefect-")

from penumbra.flows.commands import main

main()
