"""Write the best weights of a run, in half precision and without the optimiser.

    python -m workshop.ship METRICS FOLDER

METRICS is the folder of the run's `metrics`, as `penumbra artifacts path` prints it. `training.start_from` accepts
FOLDER.
"""

from pathlib import Path

import typer

from penumbra.artifacts.locations import runs_folder
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.checkpoints import Checkpoint, read_checkpoint, write_checkpoint


def main(metrics: Path, folder: Path) -> None:
    metrics = metrics.resolve()
    run = runs_folder() / metrics.parts[-3] / metrics.name
    found = read_checkpoint(run, "best")
    if found is None:
        raise RunError(f"{run} has no checkpoint")
    weights = {f"model.{name}": value.half() for name, value in found.part("model.").items()}
    epoch = found.state["epoch"]
    history = [row for row in found.state["history"] if row["split"] == "validation" and row["epoch"] == epoch]
    write_checkpoint(folder, "best", Checkpoint(weights, {"epoch": epoch, "history": history}))
    print(f"{sum(value.nbytes for value in weights.values()) / 1e6:.2f} MB in {folder}")


if __name__ == "__main__":
    typer.run(main)
