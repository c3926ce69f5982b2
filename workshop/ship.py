"""Keep a run's best weights, in half precision and without its optimiser: what others may start from.

    python -m workshop.ship METRICS FOLDER

METRICS is the folder of the run's `metrics`, as `penumbra artifacts path` prints it. FOLDER is one that
`training.start_from` takes.
"""

import argparse
from pathlib import Path

from penumbra.artifacts.locations import runs_folder
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.checkpoints import Checkpoint, read_checkpoint, write_checkpoint

FIGURES = "validation"


def keep(run: Path, folder: Path) -> int:
    """Write the best weights of a run's folder into another, with the figures they were chosen by; their size in bytes.

    Raises `RunError` where the run has no checkpoint.
    """
    found = read_checkpoint(run, "best")
    if found is None:
        raise RunError(f"{run} holds no checkpoint")
    weights = {f"model.{name}": value.half() for name, value in found.part("model.").items()}
    epoch = found.state["epoch"]
    figures = [row for row in found.state["history"] if row["split"] == FIGURES and row["epoch"] == epoch]
    write_checkpoint(folder, "best", Checkpoint(weights, {"epoch": epoch, "history": figures}))
    return sum(value.nbytes for value in weights.values())


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workshop.ship", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path, metavar="METRICS", help="the folder of the run's metrics")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where its weights go; made if need be")
    options = parser.parse_args(arguments)
    metrics = options.metrics.resolve()
    size = keep(runs_folder() / metrics.parts[-3] / metrics.name, options.folder)
    print(f"{size / 1e6:.2f} MB in {options.folder}")


if __name__ == "__main__":
    main()
