"""A finished store that is damaged in many ways: what `verify` says, and what the next run makes of it.

    python -m bench.campaigns.corruption

prints a row of a table in Markdown a kind and ends with 1 after a silent loss or a crash. Each kind damages one thing
in a whole store of `full-pipeline`. Then `penumbra artifacts verify` is asked, and a flow is run. It must either end
with the bytes of an undisturbed run or stop with one line that names what is wrong. A silent loss is a run that ends
well with other bytes; a crash is a traceback.
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

MENDED, TOLD, ANEW, LOST, CRASH = "same bytes", "stopped in one line", "made anew", "SILENT LOSS", "CRASH"
SOUND = "0 faults, 0 not finished"
GOOD = (MENDED, TOLD, ANEW)


@dataclass(frozen=True)
class Kind:
    """A damage, and the flow that is run then.

    Args:
        name: what is done
        damage: does it, to the store and what lies beside it
        flow: is run then
        anew: the damage is a change of the source, of which other artifacts are to be made beside the old ones
        beside: the damage is of no artifact, or of nothing that is read: `verify` says nothing about it

    """

    name: str
    damage: Callable[[Place], object]
    flow: str = "full-pipeline"
    anew: bool = False
    beside: bool = False


@dataclass
class Case:
    """What came of a kind."""

    kind: Kind
    verify: str
    outcome: str

    def is_good(self) -> bool:
        """Whether nothing is lost, and `verify` has told what there was to tell."""
        return self.outcome in GOOD and (self.verify != SOUND or self.kind.beside)


# -- how things are damaged -------------------------------------------------------------------------------------------


def part(place: Place, stage: str, number: int = 0) -> Path:
    """A part of the only artifact of a stage, from the first (0) or from the last (-1)."""
    return sorted(place.store.glob(f"{NAME}/{stage}/*/part-*.parquet"))[number]


def beside(place: Place, stage: str, name: str = "_manifest.json") -> Path:
    """Another file of it."""
    return next(place.store.glob(f"{NAME}/{stage}/*/{name}"))


def weights(place: Place, name: str) -> Path:
    """A checkpoint's file."""
    return next(place.store.glob(f".runs/{NAME}/*/{name}"))


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit, at this share of a file."""
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * at), len(content) - 1)] ^= 8
    path.write_bytes(content)


def cut(path: Path, to: float = 0.5) -> None:
    """Leave this share of a file."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])


def link(path: Path, target: Path) -> None:
    """Move a file and leave a link to it."""
    shutil.move(path, target)
    path.symlink_to(target)


def edit(path: Path, old: str, new: str) -> None:
    """Change the first text like this in a file."""
    content, times = re.subn(old, new, path.read_text(), count=1)
    if not times:
        raise ValueError(f"{path} has no {old}")
    path.write_text(content)


def swap(one: Path, other: Path) -> None:
    """Each of two files under the other's name."""
    content = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(content)


def without(place: Place, *stages: str) -> Place:
    """The place without these stages' artifacts, so that a run makes them again."""
    for stage in stages:
        shutil.rmtree(place.store / NAME / stage)
    return place


def extra(place: Place, stage: str) -> None:
    """A part more than there were."""
    shutil.copyfile(part(place, stage), part(place, stage).with_name("part-00077.parquet"))


def several(*damages: Callable[[Place], object]) -> Callable[[Place], None]:
    """One damage after the other."""

    def damage(place: Place) -> None:
        for one in damages:
            one(place)

    return damage


def kinds() -> Iterator[Kind]:
    """All of them."""
    yield from of_parts()
    yield from of_manifests()
    yield from of_trainings()
    yield from of_sources()


def of_parts() -> Iterator[Kind]:
    """Parts, refused rows and records."""
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
    yield Kind(
        "a stray Parquet file", lambda p: shutil.copy(part(p, "masks"), part(p, "masks").with_name("more.parquet"))
    )
    yield Kind(
        "a stray folder", lambda p: shutil.copytree(part(p, "masks").parent, part(p, "masks").parent / "level=2")
    )
    yield Kind("a part that is a link elsewhere", lambda p: link(part(p, "masks"), p.folder / "elsewhere.parquet"))
    yield Kind("refused rows: a bit flipped", lambda p: flip(beside(p, "negatives", "_rejected/part-*.parquet")))
    yield Kind("refused rows deleted", lambda p: beside(p, "negatives", "_rejected/part-*.parquet").unlink())
    yield Kind("an artifact's folder deleted", lambda p: without(p, "masks"))
    record = "_records/part-00001.json"
    for damage, how in (
        (lambda path: path.unlink(), "deleted"),
        (cut, "cut in half"),
        (lambda path: edit(path, '"kept":[0-9]+', '"kept":1'), "edited"),
    ):
        yield Kind(f"a part's record {how}", lambda p, d=damage: d(beside(p, "fills", record)))
        yield Kind(
            f"a part's record {how}, the manifest deleted",
            lambda p, d=damage: (d(beside(p, "fills", record)), beside(p, "fills").unlink()),
        )


def of_manifests() -> Iterator[Kind]:
    """Manifests, with or without what they tell of."""
    gone = Kind("manifest deleted", lambda p: beside(p, "tags").unlink())
    yield gone
    yield Kind("manifest deleted, a bit of a part flipped", several(gone.damage, lambda p: flip(part(p, "tags", 1))))
    yield Kind("manifest deleted, an extra part", several(gone.damage, lambda p: extra(p, "tags")))
    for stage in ("masks", "metrics"):
        yield Kind(f"manifest of {stage} cut in half", lambda p, s=stage: cut(beside(p, s)))
    yield Kind("manifest emptied", lambda p: cut(beside(p, "annotations"), 0.0))
    yield Kind("manifest: a bit flipped", lambda p: flip(beside(p, "negatives")))
    yield Kind("manifest is no text", lambda p: beside(p, "fills").write_bytes(bytes(range(128, 256))))
    yield Kind("manifest is a list", lambda p: beside(p, "fills").write_text("[1, 2]"))
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
        yield Kind(f"manifest edited: {what}", lambda p, o=old, n=new: edit(beside(p, "fills"), o, n))
    yield Kind("manifest of another artifact", lambda p: shutil.copyfile(beside(p, "masks"), beside(p, "fills")))
    for stage, flow in (
        ("negatives", "extract-features"),
        ("negatives", "train-grounding"),
        ("video_features", "train-grounding"),
        ("metrics", "evaluate-grounding"),
        ("negatives", "evaluate-grounding"),
        ("tags", "evaluate-grounding"),
    ):
        yield Kind(f"manifest of {stage} cut in half, before {flow}", lambda p, s=stage: cut(beside(p, s)), flow)


def of_trainings() -> Iterator[Kind]:
    """What a training reads, its checkpoints, and what an evaluation reads."""
    train, judge = "train-grounding", "evaluate-grounding"
    for stage in ("video_features", "text_features", "negatives"):
        yield Kind(f"{stage} flipped before {train}", lambda p, s=stage: flip(part(without(p, "metrics"), s)), train)
    for file in ("best-*.safetensors", "best.json"):
        for damage, how in ((cut, "cut in half"), (flip, "a bit flipped"), (Path.unlink, "deleted")):
            yield Kind(
                f"weights ({file.replace('-*', '')}) {how} before {judge}",
                lambda p, f=file, d=damage: d(weights(without(p, "predictions", "evaluation"), f)),
                judge,
                beside=True,
            )
    for file in ("last-*.safetensors", "last.json"):
        for damage, how in ((cut, "cut in half"), (flip, "a bit flipped")):
            yield Kind(
                f"checkpoint ({file.replace('-*', '')}) {how}, before {train} goes on",
                lambda p, f=file, d=damage: d(weights(without(p, "metrics"), f)),
                train,
                beside=True,
            )
    yield Kind(
        f"an epoch's figure in last.json edited, before {train} goes on",
        lambda p: edit(weights(without(p, "metrics"), "last.json"), r'"value": (\d)', r'"value": 1\1'),
        train,
        beside=True,
    )


def of_sources() -> Iterator[Kind]:
    """The data set's files, and what is remembered of them."""
    annotations, videos = "train.json", "videos"
    yield Kind(
        "the annotations changed in the middle",
        lambda p: edit(p.dataset / annotations, r"(\d)\.\d", r"\1.05"),
        anew=True,
        beside=True,
    )
    yield Kind("the annotations cut in half", lambda p: cut(p.dataset / annotations), beside=True)
    for damage, how in ((flip, "a bit flipped in the middle"), (cut, "cut in half"), (Path.unlink, "deleted")):
        yield Kind(
            f"a video: {how}", lambda p, d=damage: d(sorted((p.dataset / videos).iterdir())[0]), anew=True, beside=True
        )
    memory = "cache/penumbra/digests.sqlite"
    for damage, how in (
        (cut, "cut in half"),
        (lambda path: cut(path, 0.0), "emptied"),
        (lambda path: flip(path, 0.0), "a bit flipped"),
        (lambda path: path.write_bytes(b"no database"), "replaced"),
    ):
        yield Kind(f"the memory of digests: {how}", lambda p, d=damage: d(p.folder / memory), beside=True)
    yield Kind(
        "the leases' files overwritten",
        lambda p: [file.write_bytes(bytes(40)) for file in p.store.glob(".leases/*")],
        beside=True,
    )


# -- the campaign -----------------------------------------------------------------------------------------------------


class Campaign:
    """A finished store, which each case finds whole."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        trees, _ = undisturbed(self.place)
        self.expected = trees["full-pipeline"]
        self.kept = [self.place.dataset, self.place.folder / "cache"]
        for path in self.kept:
            shutil.copytree(path, path.with_name(f"{path.name}-whole"))

    def case(self, kind: Kind) -> Case:
        """Damage, verify, run."""
        self.place.restore("done")
        kind.damage(self.place)
        code, said = self.place.penumbra("artifacts", "verify")
        counts = re.search(r"(\d+ faults?, \d+ not finished)", said)
        verify = counts[1] if counts and code in (OK, STOPPED) else CRASH
        run = self.place.start(kind.flow)
        came = outcome(self.place, self.expected, kind, run.wait(), run.told())
        case = Case(kind, verify, CRASH if verify == CRASH else came)
        if not case.is_good():
            sys.stderr.write(f"{kind.name}: {case.verify}; {case.outcome}; verify: {said}; run: {run.told()[-3000:]}\n")
        for path in self.kept:
            shutil.rmtree(path)
            shutil.copytree(path.with_name(f"{path.name}-whole"), path)
        return case


def outcome(place: Place, expected: dict[str, str], kind: Kind, code: int, told: str) -> str:
    """What came of a run, by its exit code, what it said and what is there."""
    if code == STOPPED:
        line = told.strip().splitlines()[-1]
        return TOLD if line.startswith("penumbra: ") and str(place.folder) in line else CRASH
    if code != OK:
        return CRASH
    tree = place.tree()
    if not kind.anew:
        return MENDED if tree == expected else LOST
    if not tree.items() > expected.items():
        return LOST
    place.restore("full-pipeline")
    place.finish(kind.flow)
    return ANEW if place.tree().items() <= tree.items() else LOST


def campaign(only: str = "", every: int = 1) -> list[Case]:
    """Every kind, or those whose name is like `only`, or one of so many."""
    chosen = [kind for kind in kinds() if re.search(only, kind.name)][::every]
    with tempfile.TemporaryDirectory() as folder:
        here = Campaign(Path(folder))
        return [here.case(kind) for kind in chosen]


def table(cases: Sequence[Case]) -> str:
    """A row a case, in Markdown."""
    rows = [(case.kind.name, case.kind.flow, case.verify, case.outcome) for case in cases]
    return markdown_table(("damage", "flow", "`verify`", "the next run"), rows, str)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds whose names are like this")
    parser.add_argument("--every", type=int, default=1, help="one kind of so many")
    cases = campaign(**vars(parser.parse_args()))
    sys.stdout.write(table(cases) + "\n")
    return not all(case.is_good() for case in cases)


if __name__ == "__main__":
    sys.exit(main())
