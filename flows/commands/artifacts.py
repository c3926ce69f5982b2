"""`penumbra artifacts ls | show | path | pin | verify | du | rm`."""

import json
import re
import sys
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from penumbra.artifacts.markdown import Markdown, cell_text, counted
from penumbra.flows.console import console, json_text, print_line, print_table, write_text

if TYPE_CHECKING:
    from penumbra.artifacts.manifest import Artifact
    from penumbra.artifacts.store import Store

artifacts = typer.Typer(
    help="List artifacts, show their first rows, folder and size, verify, name and remove them.", no_args_is_help=True
)
Reference = Annotated[
    str, typer.Argument(metavar="DATASET/STAGE", help="As in charades-cg/masks: the newest; /KEY or @PIN may follow.")
]
Below = Annotated[
    str | None,
    typer.Argument(metavar="[DATASET[/STAGE[/KEY]]]", help="Only what is below; also DATASET/STAGE@PIN. Default: all."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be removed and its size; remove nothing.")]


@artifacts.command("ls")
def list_artifacts(reference: Below = None) -> None:
    """List all finished artifacts, oldest first."""
    from penumbra.artifacts.catalogue import Catalogue  # `Store` reads tables and takes longer to import

    store = Catalogue()
    if reference and not list(store.folders(reference.partition("/")[0])):
        raise store.missing(reference.partition("/")[0])
    below, pins = set(store.below(reference)), store.pins()
    rows = []
    for it in store.find():
        artifact = store.reference(it)
        if artifact in below:
            names = " ".join(f"@{pin.name}" for pin in pins if pin.artifact == artifact)
            figures = f"{it.rows:,}", f"{it.taken - it.kept:,}", f"{it.seconds:.1f}", f"{it.ended:%F %H:%M}"
            rows.append((it.dataset, it.stage, it.key, names, *figures))
    if rows:
        print_table(("data set", "stage", "key", "pinned", "rows", "rejected", "seconds", "finished (UTC)"), rows)
    else:
        print_line(f"No artifact below {store.root} yet: penumbra run build-negatives scenes")


@artifacts.command()
def show(
    reference: Reference,
    rows: Annotated[int | None, typer.Option(help="How many rows to show. Default: 5; with --json all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the rows, as JSON lines with all columns.")] = False,
) -> None:
    """Show an artifact's counts, parameters, ancestors and first rows; of an evaluation, show all figures.

    Rows look as in the Prefect UI: ** surrounds the words that a negative changes.
    """
    from penumbra.artifacts.display import rows_for_display
    from penumbra.artifacts.store import Store

    store = Store()
    artifact = store.resolve(reference)
    manifest = store.manifest(artifact)
    if as_json:
        write_text((json_text(row) + "\n" for row in islice(store.shown_rows(artifact), rows)), None)
        return
    print_line(f"{artifact.dataset}/{artifact.stage}  {artifact.path}")
    print_line(f"{counted(manifest.rows, 'row')}; {manifest.counts}; {manifest.seconds:.1f} s")
    for title, counts in (("rejected", manifest.rejected), ("counted", manifest.notes)):
        for reason, number in counts.items():
            print_line(f"  {title}: {number:,} × {reason}")
    for line in manifest.differences:
        print_line(f"  {line}")
    print_line(f"parameters: {json.dumps(manifest.parameters)}")
    console.print(lineage(store, artifact))
    if artifact.stage == "evaluation":
        print_figures(store.table(artifact).to_pylist())
        return
    if shown := rows_for_display(store, artifact, 5 if rows is None else rows):
        print_table(shown[0], ([cell(value) for value in row.values()] for row in shown))


def cell(value: Any) -> str:
    """Return a cell of the terminal's table: two digits, and ** around what is bold in the UI."""
    if isinstance(value, Markdown):
        return re.sub(r"\\(.)", r"\1", value)
    return f"{value:.2f}" if isinstance(value, float) else cell_text(value)


def print_figures(rows: list[dict[str, Any]]) -> None:
    from penumbra.tasks.grounding.evaluation.figures import tables_of

    for header, lines in tables_of(rows):
        print_table(header, lines)


def lineage(store: "Store", artifact: "Artifact", tree: Tree | None = None, seen: set[str] | None = None) -> Tree:
    """Return the tree of an artifact's ancestors down to the input files; each ancestor is unfolded once."""
    seen = set() if seen is None else seen
    label = Text.assemble(f"{artifact.stage} ", (artifact.key, "dim"))
    branch = tree.add(label) if tree else Tree(label)
    if artifact.path not in seen:
        seen.add(artifact.path)
        manifest = store.manifest(artifact)
        for name, digest in manifest.inputs.items():
            branch.add(Text.assemble(f"{name} ", (f"sha256 {digest[:16]}…", "dim")))
        for parent in manifest.parents:
            lineage(store, parent, branch, seen)
    return branch


@artifacts.command()
def path(reference: Reference) -> None:
    """Print the folder of the newest finished artifact, and nothing else."""
    from penumbra.artifacts.store import Store

    sys.stdout.write(Store().resolve(reference).path + "\n")


@artifacts.command()
def pin(
    reference: Annotated[str, typer.Argument(metavar="DATASET/STAGE", help="As in charades-cg/negatives.")],
    key: Annotated[str | None, typer.Argument(help="Key or its first digits. Default: the newest.")] = None,
    name: Annotated[str, typer.Option("--as", help="The name: lower-case letters, digits and '-'.")] = "release",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the name; the artifact stays.")] = False,
) -> None:
    """Give an artifact a name, by which all commands take it: DATASET/STAGE@release.

    A pinned artifact is not removed. If another artifact of the stage has the name, that one loses it.
    """
    from penumbra.artifacts.catalogue import names_in
    from penumbra.artifacts.errors import ArtifactError
    from penumbra.artifacts.store import Store

    store, names = Store(), names_in(reference)
    if len(names) != 2:
        raise ArtifactError(f"{reference!r} is no DATASET/STAGE, as in charades-cg/negatives")
    if remove:
        store.unpin(names[0], names[1], name)
        print_line(f"removed the pin {'/'.join(names)}@{name}")
        return
    pinned = store.pin(store.resolve("/".join([*names, *([key] if key else [])])), name)
    print_line(f"{pinned.text} is {pinned.artifact.key}")


@artifacts.command()
def verify(reference: Below = None) -> None:
    """Compare every manifest and part with its digest; exit 1 if something is missing, changed or additional.

    A pin whose artifact is missing is also a fault.
    """
    from penumbra.artifacts.catalogue import names_in
    from penumbra.artifacts.store import Store
    from penumbra.tasks.grounding.runs import checkpoint_fault

    store, faults = Store(), list[str]()
    folders = store.below(reference)
    finished = [artifact for artifact in folders if store.has(artifact)]
    for artifact in folders:
        if artifact not in finished:
            print_line(f"{artifact.path} is not finished: its flow resumes it")
            continue
        lines, manifest = store.verify(artifact), store.readable_manifest(artifact)
        if manifest and not lines:
            gone = [parent.path for parent in manifest.parents if not store.has(parent)]
            lines = [f"{artifact.path} was made from {path}, which does not exist any more" for path in gone]
            if not gone and artifact.stage == "metrics" and (fault := checkpoint_fault(manifest)):
                lines = [f"{artifact.path}: {fault}"]
        faults += lines
        for line in manifest.differences if manifest else ():
            print_line(f"{artifact.path}: {line}")
    pins = store.pins(*(names_in(reference)[:2] if reference else []))
    faults += [pin.fault for pin in pins if not store.has(pin.artifact)]
    for fault in faults:
        console.print(fault, style="red", soft_wrap=True, markup=False)
    print_line(
        f"{counted(len(finished), 'artifact')}, {counted(len(faults), 'fault')}, "
        f"{len(folders) - len(finished)} not finished"
    )
    if faults:
        print_line(
            "Run the flow again: it makes damaged parts again, and after `penumbra artifacts rm` the whole artifact."
        )
        raise typer.Exit(1)


@artifacts.command()
def du(reference: Below = None) -> None:
    """Show the disk space of artifacts and of the checkpoints of trainings, the largest stages first."""
    from penumbra.artifacts.catalogue import names_in
    from penumbra.artifacts.locations import runs_folder
    from penumbra.artifacts.store import Store

    store, names = Store(), names_in(reference) if reference else []
    artifacts = store.below(reference)
    found = [(it.dataset, it.stage, store.size(it)) for it in artifacts]
    if len(names) < 2 or names[1] == "metrics":
        for folder in runs_folder().glob(f"{names[0] if names else '*'}/*"):
            if len(names) < 3 or folder.name in {it.key for it in artifacts}:
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                found.append((folder.parent.name, "checkpoints", size))
    numbers, sizes = Counter((dataset, stage) for dataset, stage, _ in found), Counter[tuple[str, str]]()
    for dataset, stage, size in found:
        sizes[dataset, stage] += size
    rows = [(*row, f"{numbers[row]:,}", f"{size / 1e6:,.1f}") for row, size in sizes.most_common()]
    total = ("all", "", f"{numbers.total():,}", f"{sizes.total() / 1e6:,.1f}")
    print_table(("data set", "stage", "number", "MB"), [*rows, total])


@artifacts.command()
def rm(
    reference: Below = None,
    unneeded: Annotated[bool, typer.Option("--unneeded", help="Only older artifacts that nothing else needs.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove artifacts; what was made from them stays. A run that needs them makes them again.

    Nothing is removed while a run uses the data set, or if a part of it is pinned. Checkpoints of trainings stay, and
    so do reviews unless they are named (DATASET/reviews).
    """
    from penumbra.artifacts.catalogue import to_remove
    from penumbra.artifacts.store import Store

    if not reference and not unneeded:
        raise typer.BadParameter("name a data set, a stage or a key, or add --unneeded")
    store = Store()
    chosen = to_remove(store, reference, unneeded)
    if not dry_run:
        store.check_unused(chosen)
    for artifact in chosen:
        size = store.size(artifact)
        if not dry_run:
            store.remove(artifact)
        print_removed(artifact.path, size, dry_run)
    print_line(counted(len(chosen), "artifact"))


def print_removed(name: str, size: int, dry_run: bool) -> None:
    print_line(f"{'would remove' if dry_run else 'removed'} {name} ({size / 1e6:,.1f} MB)")
