"""Damage a finished store in many ways: the next run must repair the damage or report it (docs/reliability.md).

python -m bench.campaigns.corruption

Exits with 1 after a silent loss (a run that succeeds with other bytes) or a crash (a traceback).
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from bench.campaigns.flows import NAME, OK, STOPPED, Place, undisturbed
from penumbra.artifacts.markdown import markdown_table

SAME, STOPPED_WITH_MESSAGE, RECOMPUTED = "same bytes", "stopped", "recomputed"
LOST, CRASH = "SILENT LOSS", "CRASH"
SOUND = "0 faults, 0 not finished"
GOOD = (SAME, STOPPED_WITH_MESSAGE, RECOMPUTED)


Damage = Callable[[Place], object]  # changes the store or its surroundings
OfFile = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """A damage, and the flow that runs after it.

    `changes_input`: the data set is damaged, so that new artifacts are made in addition to the old ones.
    `is_unnoticed`: `verify` does not check what is damaged.
    """

    name: str
    damage: Damage
    flow: str = "full-pipeline"
    changes_input: bool = False
    is_unnoticed: bool = False


@dataclass
class Case:
    """The result of a damage."""

    kind: Kind
    verify: str
    outcome: str

    def is_good(self) -> bool:
        """Return whether nothing is lost and `verify` has reported the damage."""
        return self.outcome in GOOD and (self.verify != SOUND or self.kind.is_unnoticed)


# -- what is damaged ---------------------------------------------------------------------------------------------------


def part(place: Place, stage: str, number: int = 0) -> Path:
    """Return a part of the only artifact of a stage, counted from the first (0) or the last (-1)."""
    return sorted(place.store.glob(f"{NAME}/{stage}/*/part-*.parquet"))[number]


def in_part(stage: str, damage: OfFile, number: int = 0) -> Damage:
    return lambda place: damage(part(place, stage, number))


def in_file(stage: str, damage: OfFile, name: str = "_manifest.json") -> Damage:
    return lambda place: damage(next(place.store.glob(f"{NAME}/{stage}/*/{name}")))


def in_run(name: str, damage: OfFile, *without: str) -> Damage:
    """Damage a file of the training; the artifacts of some stages are removed."""
    return several(
        *(lambda place, stage=stage: shutil.rmtree(place.store / NAME / stage) for stage in without),
        lambda place: damage(next(place.store.glob(f".runs/{NAME}/*/{name}"))),
    )


def several(*damages: Damage) -> Damage:
    return lambda place: [damage(place) for damage in damages]


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit at this share of a file."""
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * at), len(content) - 1)] ^= 8
    path.write_bytes(content)


def cut(path: Path, to: float = 0.5) -> None:
    """Keep the first share of a file."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])


def stray(name: str) -> OfFile:
    """Return a damage that copies a part to another name in its artifact's folder."""

    def damage(path: Path) -> None:
        (path.parent / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, path.parent / name)

    return damage


def edited(old: str, new: str) -> OfFile:
    """Return a damage that replaces the first match in a file."""

    def damage(path: Path) -> None:
        content, times = re.subn(old, new, path.read_text(), count=1)
        if not times:
            raise ValueError(f"{path} has no {old}")
        path.write_text(content)

    return damage


def link(place: Place) -> None:
    path, target = part(place, "masks"), place.folder / "elsewhere.parquet"
    shutil.move(path, target)
    path.symlink_to(target)


def swap(place: Place) -> None:
    one, other = part(place, "fills"), part(place, "fills", -1)
    content = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(content)


WAYS: dict[str, OfFile] = {"cut in half": cut, "a bit flipped": flip, "deleted": Path.unlink}
TAGS_GONE = in_file("tags", Path.unlink)
FLIPPED = {"annotations": 0, "tags": 1, "fills": -1, "dictionary": 0, "negatives": 0, "text_features": 0}
FLIPPED |= {"video_features": -1, "predictions": 0, "evaluation": 0, "metrics": 0}
PARTS: dict[str, Damage] = {
    **{f"part {number} of {stage}: a bit flipped": in_part(stage, flip, number) for stage, number in FLIPPED.items()},
    "a part cut in half": in_part("masks", cut),
    "a part's last byte missing": in_part("masks", lambda path: cut(path, 0.9999), -1),
    "a part emptied": in_part("embeddings", lambda path: cut(path, 0.0)),
    "a part replaced by another": lambda place: shutil.copyfile(part(place, "tags"), part(place, "tags", 1)),
    "two parts swapped": swap,
    "a part deleted": in_part("negatives", Path.unlink, 1),
    "all parts deleted": several(*[in_part("tags", Path.unlink)] * 4),
    "an extra part": in_part("masks", stray("part-00077.parquet")),
    "a stray Parquet file": in_part("masks", stray("more.parquet")),
    "a stray folder": in_part("masks", stray("level=2/more.parquet")),
    "a part that is a link elsewhere": link,
    "rejected rows: a bit flipped": in_file("negatives", flip, "_rejected/part-*.parquet"),
    "rejected rows deleted": in_file("negatives", Path.unlink, "_rejected/part-*.parquet"),
    "an artifact's folder deleted": lambda place: shutil.rmtree(place.store / NAME / "masks"),
}
EDITS = {
    "rows": ('"rows": [0-9]+', '"rows": 7'),
    "its digest emptied": ('"sha256": "[0-9a-f]+"(?=\\n})', '"sha256": ""'),
    "its digest removed": (',\\n "sha256": "[0-9a-f]+"(?=\\n})', ""),
    "a parameter": ('"candidates": 2', '"candidates": 3'),
    "a part's digest": ('"sha256": "..', '"sha256": "00'),
    "a parent's key": ('"key": "', '"key": "0'),
    "other data set": ('"dataset": "corner"', '"dataset": "other"'),
    "data set `..`": ('"dataset": "corner"', '"dataset": ".."'),
}
MANIFESTS: dict[str, Damage] = {
    "manifest deleted": TAGS_GONE,
    "manifest deleted, a bit of a part flipped": several(TAGS_GONE, in_part("tags", flip, 1)),
    "manifest deleted, an extra part": several(TAGS_GONE, in_part("tags", stray("part-00077.parquet"))),
    **{f"manifest of {stage} cut in half": in_file(stage, cut) for stage in ("masks", "metrics")},
    "manifest emptied": in_file("annotations", lambda path: cut(path, 0.0)),
    "manifest: a bit flipped": in_file("negatives", flip),
    "manifest is no text": in_file("fills", lambda path: path.write_bytes(bytes(range(128, 256)))),
    "manifest is a list": in_file("fills", lambda path: path.write_text("[1, 2]")),
    **{f"manifest edited: {what}": in_file("fills", edited(*change)) for what, change in EDITS.items()},
    "manifest of another artifact": in_file(
        "masks", lambda path: shutil.copyfile(path, next((path.parents[2] / "fills").glob("*/_manifest.json")))
    ),
}
CUT_BEFORE = (  # manifests that are cut in half before another flow reads them
    *(("negatives", "extract-features"), ("negatives", "train-grounding"), ("video_features", "train-grounding")),
    *(("metrics", "evaluate-grounding"), ("negatives", "evaluate-grounding"), ("tags", "evaluate-grounding")),
)


def kinds() -> Iterator[Kind]:
    """Yield all kinds: of parts and records, of manifests, of what a training or evaluation reads, and of sources."""
    yield from (Kind(name, damage) for name, damage in PARTS.items())
    for how, way in {**WAYS, "edited": edited('"kept":[0-9]+', '"kept":1')}.items():
        if how != "a bit flipped":
            record = in_file("fills", way, "_records/part-00001.json")
            yield Kind(f"a part's record {how}", record, is_unnoticed=True)
            yield Kind(f"a part's record {how}, the manifest deleted", several(record, in_file("fills", Path.unlink)))
    yield from (Kind(name, damage) for name, damage in MANIFESTS.items())
    for stage, flow in CUT_BEFORE:
        yield Kind(f"manifest of {stage} cut in half, before {flow}", in_file(stage, cut), flow)
    train, judge = "train-grounding", "evaluate-grounding"
    no_metrics: Damage = lambda place: shutil.rmtree(place.store / NAME / "metrics")  # noqa: E731
    for stage in ("video_features", "text_features", "negatives"):
        yield Kind(f"{stage} flipped before {train}", several(no_metrics, in_part(stage, flip)), train)
    for how, way in WAYS.items():
        for file in ("best-*.safetensors", "best.json"):
            damage = in_run(file, way, "predictions", "evaluation")
            yield Kind(f"{file.replace('-*', '')} {how} before {judge}", damage, judge, is_unnoticed=True)
        for file in ("last-*.safetensors", "last.json") if how != "deleted" else ():
            damage = in_run(file, way, "metrics")
            yield Kind(f"{file.replace('-*', '')} {how}, before {train} resumes", damage, train, is_unnoticed=True)
    figure = in_run("last.json", edited(r'"value": (\d)', r'"value": 1\1'), "metrics")
    yield Kind(f"an epoch's figure in last.json edited, before {train} resumes", figure, train, is_unnoticed=True)
    change = edited(r"(\d)\.\d", r"\1.05")
    yield Kind("the annotations changed", lambda p: change(p.dataset / "train.json"), "full-pipeline", True, True)
    yield Kind("the annotations cut in half", lambda p: cut(p.dataset / "train.json"), is_unnoticed=True)
    for how, way in WAYS.items():
        video: Damage = lambda p, way=way: way(sorted((p.dataset / "videos").iterdir())[0])  # noqa: E731
        yield Kind(f"a video {how}", video, "full-pipeline", True, True)
    spoilt: dict[str, OfFile] = {"cut in half": cut, "emptied": lambda path: cut(path, 0.0)}
    spoilt |= {"a bit flipped": lambda path: flip(path, 0.0), "replaced": lambda path: path.write_bytes(b"no database")}
    for how, way in spoilt.items():
        memory: Damage = lambda p, way=way: way(p.folder / "cache/penumbra/digests.sqlite")  # noqa: E731
        yield Kind(f"the cache of digests {how}", memory, is_unnoticed=True)
    leases: Damage = lambda p: [file.write_bytes(bytes(40)) for file in p.store.glob(".leases/*")]  # noqa: E731
    yield Kind("the leases' files overwritten", leases, is_unnoticed=True)


# -- the campaign ------------------------------------------------------------------------------------------------------


class Campaign:
    """A finished store, which is restored before each case."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        trees, _ = undisturbed(self.place)
        self.expected = trees["full-pipeline"]
        self.kept = [self.place.dataset, self.place.folder / "cache"]
        for path in self.kept:
            shutil.copytree(path, path.with_name(f"{path.name}-whole"))

    def case(self, kind: Kind) -> Case:
        """Damage the store, verify it, and run the flow."""
        self.place.restore("done")
        kind.damage(self.place)
        code, shown = self.place.penumbra("artifacts", "verify")
        counts = re.search(r"(\d+ faults?, \d+ not finished)", shown)
        verify = counts[1] if counts and code in (OK, STOPPED) else CRASH
        run = self.place.start(kind.flow)
        result = outcome(self.place, self.expected, kind, run.wait(), run.output())
        case = Case(kind, verify, CRASH if verify == CRASH else result)
        if not case.is_good():
            said = f"verify: {shown}; run: {run.output()[-3000:]}"
            print(f"{kind.name}: {case.verify}; {case.outcome}; {said}", file=sys.stderr)
        for path in self.kept:
            shutil.rmtree(path)
            shutil.copytree(path.with_name(f"{path.name}-whole"), path)
        return case


def outcome(place: Place, expected: dict[str, str], kind: Kind, code: int, output: str) -> str:
    """Return the outcome of a run from its exit code, its output and the store."""
    if code == STOPPED:
        line = output.strip().splitlines()[-1]
        return STOPPED_WITH_MESSAGE if line.startswith("penumbra: ") and str(place.folder) in line else CRASH
    if code != OK:
        return CRASH
    tree = place.tree()
    if not kind.changes_input:
        return SAME if tree == expected else LOST
    if not tree.items() > expected.items():
        return LOST
    place.restore("full-pipeline")
    place.finish(kind.flow)
    return RECOMPUTED if place.tree().items() <= tree.items() else LOST


def main(only: str = "", every: int = 1) -> None:
    """Run the kinds whose name matches the regular expression `only`, one of every `every`."""
    with tempfile.TemporaryDirectory() as folder:
        here = Campaign(Path(folder))
        cases = [here.case(kind) for kind in [kind for kind in kinds() if re.search(only, kind.name)][::every]]
    rows = [(case.kind.name, case.kind.flow, case.verify, case.outcome) for case in cases]
    print(markdown_table(("damage", "flow", "`verify`", "the next run"), rows, str))
    sys.exit(not all(case.is_good() for case in cases))


if __name__ == "__main__":
    typer.run(main)
