"""Measure `extract-features scenes` on one core and on all cores, as a user runs it.

python -m bench.features
"""

import os
import tempfile

from bench.engines import RUN, places, run
from penumbra.artifacts.store import Store


def main() -> None:
    """Print a line for each number of cores."""
    cores = os.sched_getaffinity(0)
    for chosen in ({min(cores)}, cores):
        with tempfile.TemporaryDirectory() as folder:
            variables = places(folder)
            wall, cpu = run((*RUN, "extract-features", "scenes"), variables, chosen)
            stages = {manifest.stage: manifest.seconds for manifest in Store(variables["PENUMBRA_ARTIFACTS"]).find()}
        print(f"{len(chosen)} cores: {wall:.1f} s wall, {cpu:.1f} s CPU; stages in seconds: {stages}", flush=True)


if __name__ == "__main__":
    main()
