"""`penumbra artifacts ls | show | path | verify | du | rm`."""

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from penumbra.flows import completion
from penumbra.flows.commands.terminal import console, tell_taken

if TYPE_CHECKING:
    from penumbra.artifacts.manifest import Artifact, Manifest
    from penumbra.artifacts.store import Store

artifacts = typer.Typer(
    help="What is there, its first rows, where it lies, how large and whether whole it is, and taking it away.",
    no_args_is_help=True,
)
Reference = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.references, metavar="DATASET/STAGE", help="As in charades-cg/masks; /KEY may follow."
    ),
]


@artifacts.command("ls")
def list_artifacts(
    dataset: Annotated[
        str | None, typer.Argument(autocompletion=completion.data_sets, help="Only this data set's.")
    ] = None,
) -> None:
    """All whole artifacts, oldest first."""
    from penumbra.artifacts.catalogue import Catalogue  # what reads tables takes longer to import

    store = Catalogue()
    table = Table("data set", "stage", "key", "rows", "rejected", "seconds", "finished (UTC)")
    found = store.find(dataset)
    if dataset and not found:
        raise store.missing(dataset)
    for m in found:
        refused = f"{m.taken - m.kept:,}"
        table.add_row(
            m.dataset, m.stage, m.key, f"{m.rows:,}", refused, f"{m.seconds:.1f}", f"{m.ended:%Y-%m-%d %H:%M}"
        )
    console.print(
        table if table.row_count else f"No artifact below {store.root} yet: penumbra run build-negatives scenes"
    )


@artifacts.command()
def show(reference: Reference, rows: Annotated[int, typer.Option(help="How many rows to show.")] = 5) -> None:
    """What an artifact holds, what it was made from, and its first rows; of an evaluation all figures as a table."""
    from penumbra.artifacts.schemas import for_display
    from penumbra.artifacts.store import Store

    store = Store()
    artifact = store.resolve(reference)
    manifest = store.manifest(artifact)
    console.print(f"[bold]{artifact.dataset}/{artifact.stage}[/]  {artifact.path}", soft_wrap=True)
    console.print(
        f"{manifest.rows:,} rows; {manifest.unit}: {manifest.taken:,} in, {manifest.kept:,} out, "
        f"{manifest.taken - manifest.kept:,} rejected; {manifest.seconds:.1f} s"
    )
    for title, counts in (("rejected", manifest.rejected), ("changed", manifest.notes)):
        for reason, number in counts.items():
            console.print(f"  {title}: {number:,} × {reason}")
    console.print(f"parameters: {json.dumps(manifest.parameters)}", soft_wrap=True)
    console.print(lineage(store, artifact, manifest))
    if artifact.stage == "evaluation":
        console.print(figures_table(store.table(artifact).to_pylist()))
        return
    for part in store.parts(artifact):
        for row in for_display(part.slice(0, rows)).to_pylist():
            console.print_json(json.dumps(row, ensure_ascii=False), indent=None)
        rows -= min(rows, len(part))
        if rows <= 0:
            break


def figures_table(rows: list[dict[str, Any]]) -> Table:
    """The figures of an evaluation as people read them."""
    from penumbra.tasks.grounding.evaluation.figures import results

    header, lines = results(rows)
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    return table


def lineage(
    store: "Store", artifact: "Artifact", manifest: "Manifest", tree: Tree | None = None, seen: set[str] | None = None
) -> Tree:
    """The artifact's ancestors down to the input files; what was shown above is not unfolded again."""
    seen = set() if seen is None else seen
    label = f"{artifact.stage} [dim]{artifact.key}[/]"
    branch = tree.add(label) if tree else Tree(label)
    if artifact.path in seen:
        return branch
    seen.add(artifact.path)
    for name, digest in manifest.inputs.items():
        branch.add(f"{name} [dim]sha256 {digest[:16]}…[/]")
    for parent in manifest.parents:
        lineage(store, parent, store.manifest(parent), branch, seen)
    return branch


@artifacts.command()
def path(reference: Reference) -> None:
    """Print the folder of the newest whole artifact, and nothing else."""
    from penumbra.artifacts.store import Store

    sys.stdout.write(Store().resolve(reference).path + "\n")


@artifacts.command()
def verify(
    reference: Annotated[
        str | None, typer.Argument(autocompletion=completion.references, help="DATASET/STAGE; default: every artifact.")
    ] = None,
) -> None:
    """Hold every manifest and part against its digest; exit 1 if something is missing, changed or too much."""
    from penumbra.artifacts.store import Store

    store = Store()
    several = [store.resolve(reference)] if reference else list(store.folders())
    unfinished = [artifact for artifact in several if not store.has(artifact)]
    faults = {artifact.path: store.verify(artifact) for artifact in several if store.has(artifact)}
    for artifact in several:
        if store.has(artifact) and not faults[artifact.path]:
            gone = [parent.path for parent in store.missing_parents(artifact)]
            faults[artifact.path] = [f"{artifact.path} was made from {path}, which is not there" for path in gone]
    for problem in (problem for problems in faults.values() for problem in problems):
        console.print(f"[red]{escape(problem)}[/]", soft_wrap=True)
    for artifact in unfinished:
        console.print(f"{escape(artifact.path)} is not finished: its flow goes on from it", soft_wrap=True)
    count = sum(map(len, faults.values()))
    console.print(f"{len(faults)} artifacts, {count} faults, {len(unfinished)} not finished")
    if count:
        console.print("The flow that made an artifact makes what is damaged anew; penumbra artifacts rm takes it away.")
    raise typer.Exit(1 if count else 0)


@artifacts.command()
def du(
    dataset: Annotated[
        str | None, typer.Argument(autocompletion=completion.data_sets, help="Only this data set's.")
    ] = None,
) -> None:
    """How much room artifacts take, the largest stages first."""
    from penumbra.artifacts.store import Store

    store = Store()
    sizes: Counter[tuple[str, str]] = Counter()
    numbers: Counter[tuple[str, str]] = Counter()
    for artifact in store.folders(dataset):
        sizes[artifact.dataset, artifact.stage] += store.size(artifact)
        numbers[artifact.dataset, artifact.stage] += 1
    table = Table("data set", "stage", "artifacts", "MB")
    for (name, stage), size in sizes.most_common():
        table.add_row(name, stage, f"{numbers[name, stage]:,}", f"{size / 1e6:,.1f}")
    table.add_row("all", "", f"{numbers.total():,}", f"{sizes.total() / 1e6:,.1f}", style="bold")
    console.print(table)


@artifacts.command()
def rm(
    reference: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.references,
            metavar="[DATASET[/STAGE[/KEY]]]",
            help="Only what is below; default: everything.",
        ),
    ] = None,
    older: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Only what was finished more than so many days ago.")
    ] = None,
    unneeded: Annotated[
        bool, typer.Option("--unneeded", help="Only what is not the newest of its stage, and nothing kept needs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken away, and how large it is.")
    ] = False,
) -> None:
    """Take artifacts away, and what was made from them stays; a run that needs them makes them again.

    Checkpoints of trainings are not touched.
    """
    from penumbra.artifacts.catalogue import to_remove
    from penumbra.artifacts.store import Store

    if not reference and older is None and not unneeded:
        raise typer.BadParameter("name a data set, a stage or a key, or say --older-than or --unneeded")
    store = Store()
    chosen = to_remove(store, reference, older, unneeded)
    for artifact in chosen:
        size = store.size(artifact)
        if not dry_run:
            store.remove(artifact)
        tell_taken(artifact.path, size, dry_run)
    console.print(f"{len(chosen)} artifacts")
