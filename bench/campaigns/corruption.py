"""Damage a finished store in many ways: the next run must repair the damage or report it.

    python -m bench.campaigns.corruption

Prints a table in Markdown and exits with 1 after a silent loss or a crash. Each kind damages one thing in a store that
`full-pipeline` has made. Then `penumbra artifacts verify` and a flow are run. The flow must end with the bytes of an
undisturbed run, or stop with one line that names the cause. A silent loss is a run that succeeds with other bytes; a
crash is a traceback.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.campaigns.flows import NAME, OK, STOPPED, Place, undisturbed
from penumbra.artifacts.markdown import markdown_table

SAME, STOPPED_WITH_MESSAGE, RECOMPUTED = "same bytes", "stopped", "recomputed"
LOST, CRASH = "SILENT LOSS", "CRASH"
SOUND = "0 faults, 0 not finished"
GOOD = (SAME, STOPPED_WITH_MESSAGE, RECOMPUTED)


@dataclass(frozen=True)
class Kind:
    """A damage, and the flow that runs after it.

    Args:
        name: description
        damage: damages the store or its surroundings
        flow: the flow that runs then
        changes_input: the damage changes the data set, so that new artifacts must be made in addition to the old ones
        is_unnoticed: `verify` does not check what is damaged

    """

    name: str
    damage: Callable[[Place], object]
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


def part(place: Place, stage: str, number: int = 0) -> Path:
    """Return a part of the only artifact of a stage, counted from the first (0) or the last (-1)."""
    return sorted(place.store.glob(f"{NAME}/{stage}/*/part-*.parquet"))[number]


def file_of(place: Place, stage: str, name: str = "_manifest.json") -> Path:
    """Return another file of the artifact."""
    return next(place.store.glob(f"{NAME}/{stage}/*/{name}"))


def weights(place: Place, name: str) -> Path:
    return next(place.store.glob(f".runs/{NAME}/*/{name}"))


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit at this share of a file."""
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * at), len(content) - 1)] ^= 8
    path.write_bytes(content)


def cut(path: Path, to: float = 0.5) -> None:
    """Keep the first share of a file."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])


def stray(path: Path, name: str) -> None:
    """Copy a part to another name in its artifact's folder."""
    (path.parent / name).parent.mkdir(exist_ok=True)
    shutil.copyfile(path, path.parent / name)


def link(path: Path, target: Path) -> None:
    """Move a file and leave a link to it."""
    shutil.move(path, target)
    path.symlink_to(target)


def edit(path: Path, old: str, new: str) -> None:
    """Replace the first match in a file."""
    content, times = re.subn(old, new, path.read_text(), count=1)
    if not times:
        raise ValueError(f"{path} has no {old}")
    path.write_text(content)


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(content)


def without(place: Place, *stages: str) -> Place:
    """Remove the artifacts of these stages; return the place."""
    for stage in stages:
        shutil.rmtree(place.store / NAME / stage)
    return place


def extra(place: Place, stage: str) -> None:
    """Add a superfluous part."""
    shutil.copyfile(part(place, stage), part(place, stage).with_name("part-00077.parquet"))


def several(*damages: Callable[[Place], object]) -> Callable[[Place], None]:
    """Return a damage that consists of several."""

    def damage(place: Place) -> None:
        for one in damages:
            one(place)

    return damage


def kinds() -> Iterator[Kind]:
    yield from of_parts()
    yield from of_manifests()
    yield from of_trainings()
    yield from of_sources()


def of_parts() -> Iterator[Kind]:
    """Yield damages of parts, rejected rows and records."""
    for stage, number, where in (
        ("annotations", 0, "the first"),
        ("tags", 1, "a middle"),
        ("fills", -1, "the last"),
        ("dictionary", 0, "the only"),
        ("negatives", 0, "the first"),
        ("text_features", 0, "the first"),
        ("video_features", -1, "the last"),
        ("predictions", 0, "the first"),
        ("evaluation", 0, "the only"),
        ("metrics", 0, "the only"),
    ):
        yield Kind(f"{where} part of {stage}: a bit flipped", lambda p, s=stage, n=number: flip(part(p, s, n)))
    yield Kind("a part cut in half", lambda p: cut(part(p, "masks")))
    yield Kind("a part's last byte missing", lambda p: cut(part(p, "masks", -1), 0.9999))
    yield Kind("a part emptied", lambda p: cut(part(p, "embeddings"), 0.0))
    yield Kind("a part replaced by another", lambda p: shutil.copyfile(part(p, "tags"), part(p, "tags", 1)))
    yield Kind("two parts swapped", lambda p: swap(part(p, "fills"), part(p, "fills", -1)))
    yield Kind("a part deleted", lambda p: part(p, "negatives", 1).unlink())
    yield Kind("all parts deleted", lambda p: [part(p, "tags").unlink() for _ in range(4)])
    yield Kind("an extra part", lambda p: extra(p, "masks"))
    yield Kind("a stray Parquet file", lambda p: stray(part(p, "masks"), "more.parquet"))
    yield Kind("a stray folder", lambda p: stray(part(p, "masks"), "level=2/more.parquet"))
    yield Kind("a part that is a link elsewhere", lambda p: link(part(p, "masks"), p.folder / "elsewhere.parquet"))
    yield Kind("rejected rows: a bit flipped", lambda p: flip(file_of(p, "negatives", "_rejected/part-*.parquet")))
    yield Kind("rejected rows deleted", lambda p: file_of(p, "negatives", "_rejected/part-*.parquet").unlink())
    yield Kind("an artifact's folder deleted", lambda p: without(p, "masks"))
    record = "_records/part-00001.json"
    for damage, how in (
        (lambda path: path.unlink(), "deleted"),
        (cut, "cut in half"),
        (lambda path: edit(path, '"kept":[0-9]+', '"kept":1'), "edited"),
    ):
        yield Kind(f"a part's record {how}", lambda p, d=damage: d(file_of(p, "fills", record)), is_unnoticed=True)
        yield Kind(
            f"a part's record {how}, the manifest deleted",
            lambda p, d=damage: (d(file_of(p, "fills", record)), file_of(p, "fills").unlink()),
        )


def of_manifests() -> Iterator[Kind]:
    """Yield damages of manifests, with or without their parts."""
    gone = Kind("manifest deleted", lambda p: file_of(p, "tags").unlink())
    yield gone
    yield Kind("manifest deleted, a bit of a part flipped", several(gone.damage, lambda p: flip(part(p, "tags", 1))))
    yield Kind("manifest deleted, an extra part", several(gone.damage, lambda p: extra(p, "tags")))
    for stage in ("masks", "metrics"):
        yield Kind(f"manifest of {stage} cut in half", lambda p, s=stage: cut(file_of(p, s)))
    yield Kind("manifest emptied", lambda p: cut(file_of(p, "annotations"), 0.0))
    yield Kind("manifest: a bit flipped", lambda p: flip(file_of(p, "negatives")))
    yield Kind("manifest is no text", lambda p: file_of(p, "fills").write_bytes(bytes(range(128, 256))))
    yield Kind("manifest is a list", lambda p: file_of(p, "fills").write_text("[1, 2]"))
    for what, old, new in (
        ("rows", '"rows": [0-9]+', '"rows": 7'),
        ("its digest emptied", '"sha256": "[0-9a-f]+"(?=\\n})', '"sha256": ""'),
        ("its digest removed", ',\\n "sha256": "[0-9a-f]+"(?=\\n})', ""),
        ("a parameter", '"candidates": 2', '"candidates": 3'),
        ("a part's digest", '"sha256": "..', '"sha256": "00'),
        ("a parent's key", '"key": "', '"key": "0'),
        ("other data set", '"dataset": "corner"', '"dataset": "other"'),
        ("data set `..`", '"dataset": "corner"', '"dataset": ".."'),
    ):
        yield Kind(f"manifest edited: {what}", lambda p, o=old, n=new: edit(file_of(p, "fills"), o, n))
    yield Kind("manifest of another artifact", lambda p: shutil.copyfile(file_of(p, "masks"), file_of(p, "fills")))
    for stage, flow in (
        ("negatives", "extract-features"),
        ("negatives", "train-grounding"),
        ("video_features", "train-grounding"),
        ("metrics", "evaluate-grounding"),
        ("negatives", "evaluate-grounding"),
        ("tags", "evaluate-grounding"),
    ):
        yield Kind(f"manifest of {stage} cut in half, before {flow}", lambda p, s=stage: cut(file_of(p, s)), flow)


def of_trainings() -> Iterator[Kind]:
    """Yield damages of the inputs of training and evaluation, and of checkpoints."""
    train, judge = "train-grounding", "evaluate-grounding"
    for stage in ("video_features", "text_features", "negatives"):
        yield Kind(f"{stage} flipped before {train}", lambda p, s=stage: flip(part(without(p, "metrics"), s)), train)
    for file in ("best-*.safetensors", "best.json"):
        for damage, how in ((cut, "cut in half"), (flip, "a bit flipped"), (Path.unlink, "deleted")):
            yield Kind(
                f"weights ({file.replace('-*', '')}) {how} before {judge}",
                lambda p, f=file, d=damage: d(weights(without(p, "predictions", "evaluation"), f)),
                judge,
                is_unnoticed=True,
            )
    for file in ("last-*.safetensors", "last.json"):
        for damage, how in ((cut, "cut in half"), (flip, "a bit flipped")):
            yield Kind(
                f"checkpoint ({file.replace('-*', '')}) {how}, before {train} resumes",
                lambda p, f=file, d=damage: d(weights(without(p, "metrics"), f)),
                train,
                is_unnoticed=True,
            )
    yield Kind(
        f"an epoch's figure in last.json edited, before {train} resumes",
        lambda p: edit(weights(without(p, "metrics"), "last.json"), r'"value": (\d)', r'"value": 1\1'),
        train,
        is_unnoticed=True,
    )


def of_sources() -> Iterator[Kind]:
    """Yield damages of the data set's files and of the cache of digests."""
    annotations, videos = "train.json", "videos"
    yield Kind(
        "the annotations changed in the middle",
        lambda p: edit(p.dataset / annotations, r"(\d)\.\d", r"\1.05"),
        changes_input=True,
        is_unnoticed=True,
    )
    yield Kind("the annotations cut in half", lambda p: cut(p.dataset / annotations), is_unnoticed=True)
    for damage, how in ((flip, "a bit flipped in the middle"), (cut, "cut in half"), (Path.unlink, "deleted")):
        yield Kind(
            f"a video: {how}",
            lambda p, d=damage: d(sorted((p.dataset / videos).iterdir())[0]),
            changes_input=True,
            is_unnoticed=True,
        )
    memory = "cache/penumbra/digests.sqlite"
    for damage, how in (
        (cut, "cut in half"),
        (lambda path: cut(path, 0.0), "emptied"),
        (lambda path: flip(path, 0.0), "a bit flipped"),
        (lambda path: path.write_bytes(b"no database"), "replaced"),
    ):
        yield Kind(f"the cache of digests: {how}", lambda p, d=damage: d(p.folder / memory), is_unnoticed=True)
    yield Kind(
        "the leases' files overwritten",
        lambda p: [file.write_bytes(bytes(40)) for file in p.store.glob(".leases/*")],
        is_unnoticed=True,
    )


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
            sys.stderr.write(
                f"{kind.name}: {case.verify}; {case.outcome}; verify: {shown}; run: {run.output()[-3000:]}\n"
            )
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


def campaign(only: str = "", every: int = 1) -> list[Case]:
    """Run the cases whose name matches `only`, one of every `every`."""
    chosen = [kind for kind in kinds() if re.search(only, kind.name)][::every]
    with tempfile.TemporaryDirectory() as folder:
        here = Campaign(Path(folder))
        return [here.case(kind) for kind in chosen]


def table(cases: Sequence[Case]) -> str:
    rows = [(case.kind.name, case.kind.flow, case.verify, case.outcome) for case in cases]
    return markdown_table(("damage", "flow", "`verify`", "the next run"), rows, str)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of the names of the kinds")
    parser.add_argument("--every", type=int, default=1, help="run one of this many kinds")
    cases = campaign(**vars(parser.parse_args()))
    sys.stdout.write(table(cases) + "\n")
    return not all(case.is_good() for case in cases)


if __name__ == "__main__":
    sys.exit(main())
