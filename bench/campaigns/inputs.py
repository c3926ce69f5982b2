"""Change an input file at a random moment of a running flow: no artifact may hold other data than its key says.

Every part is compared with those of two undisturbed stores, of the old and of the new file: a key is a digest of the
inputs, so a part that is in neither, or differs, is *wrong data* (docs/reliability.md).
"""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import typer

from bench.campaigns.flows import IMPORTED, OK, STOPPED, Place
from penumbra.artifacts.markdown import markdown_table
from tests.corner import cut_out

REFUSED, FINISHED, WRONG, CRASH = "refused", "finished", "wrong data", "crash"


def changed_sentence(dataset: Path) -> Path:
    """Return the file of the training queries after one letter of each "person" is changed."""
    file = dataset / "train.json"
    file.write_text(file.read_text().replace("person", "parson"))
    return file


def changed_video(dataset: Path) -> Path:
    """Return a video after it is replaced by another one."""
    file, other = sorted((dataset / "videos").glob("*.mp4"))[:2]
    shutil.copy(other, file)
    return file


FLOWS = {"build-negatives": changed_sentence, "extract-features": changed_video}


def reference(folder: Path, flow: str, is_changed: bool) -> tuple[dict[str, str], float]:
    """Return the parts of an undisturbed run, and how many seconds it takes."""
    place = Place(folder)
    cut_out(place.dataset)
    if is_changed:
        FLOWS[flow](place.dataset)
    started = time.monotonic()
    place.finish(flow)
    return place.tree(), time.monotonic() - started


def case(folder: Path, flow: str, expected: dict[str, str], moment: float) -> str:
    """Change the input of a run at a moment; return the outcome."""
    place = Place(folder)
    cut_out(place.dataset)
    run = place.start(flow)
    time.sleep(moment)
    file = FLOWS[flow](place.dataset)
    code, output = run.wait(), run.output()
    if (code == STOPPED and str(file) not in output.strip().splitlines()[-1]) or code not in (OK, STOPPED):
        sys.stderr.write(output[-3000:])
        return CRASH
    place.finish(flow)
    is_right = place.tree().items() <= expected.items()
    return WRONG if not is_right else FINISHED if code == OK else REFUSED


def campaign(cases: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Return the outcomes of each flow."""
    draw, outcomes = random.Random(seed), {}
    for name in IMPORTED:
        import_module(name)
    with tempfile.TemporaryDirectory() as root:
        dataset = Path(root) / "place"  # one path for all: it is part of what a run says, and of no key
        for flow in FLOWS:
            expected: dict[str, str] = {}
            for is_changed in (False, True):
                parts, seconds = reference(dataset, flow, is_changed)
                expected |= parts
                shutil.rmtree(dataset)
            outcomes[flow] = Counter[str]()
            for _ in range(cases):
                outcomes[flow][case(dataset, flow, expected, draw.uniform(0, seconds))] += 1
                shutil.rmtree(dataset)
    return outcomes


def main(cases: int = 20) -> None:
    """Run this number of cases of each flow."""
    outcomes, names = campaign(cases), (REFUSED, FINISHED, WRONG, CRASH)
    rows = [(flow, *(str(counts[name]) for name in names)) for flow, counts in outcomes.items()]
    print(markdown_table(("an input changes while this runs", *names), rows, str))
    sys.exit(any(counts[WRONG] or counts[CRASH] for counts in outcomes.values()))


if __name__ == "__main__":
    typer.run(main)
