"""`penumbra artifacts ls | show | path | verify`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree

from penumbra.flows.commands.terminal import console

if TYPE_CHECKING:
    from penumbra.artifacts.manifest import Artifact, Manifest
    from penumbra.artifacts.store import Store

artifacts = typer.Typer(
    help="What is there, its first rows, where it lies, and whether it is whole.", no_args_is_help=True
)
Reference = Annotated[str, typer.Argument(metavar="DATASET/STAGE", help="As in charades-cg/masks; /KEY may follow.")]


@artifacts.command("ls")
def list_artifacts(dataset: Annotated[str | None, typer.Argument(help="Only this data set's.")] = None) -> None:
    """All whole artifacts, oldest first."""
    from penumbra.artifacts.store import Store

    store = Store()
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
    from penumbra.artifacts.references import named
    from penumbra.artifacts.schemas import shortened
    from penumbra.artifacts.store import Store

    store = Store()
    artifact = named(store, reference)
    manifest = store.manifest(artifact)
    console.print(f"[bold]{artifact.dataset}/{artifact.stage}[/]  {artifact.path}", soft_wrap=True)
    console.print(f"{manifest.rows:,} rows; {manifest.unit}: {manifest.taken:,} in, {manifest.kept:,} out, "
                  f"{manifest.taken - manifest.kept:,} rejected; {manifest.seconds:.1f} s")  # fmt: skip
    for title, counts in (("rejected", manifest.rejected), ("changed", manifest.notes)):
        for reason, number in counts.items():
            console.print(f"  {title}: {number:,} × {reason}")
    console.print(f"parameters: {json.dumps(manifest.parameters)}", soft_wrap=True)
    console.print(_lineage(store, artifact, manifest))
    if artifact.stage == "evaluation":
        console.print(_figures(store.table(artifact).to_pylist()))
        return
    for part in store.parts(artifact):
        for row in shortened(part.slice(0, rows)).to_pylist():
            console.print_json(json.dumps(row, ensure_ascii=False), indent=None)
        rows -= min(rows, len(part))
        if rows <= 0:
            break


def _figures(rows: list[dict[str, Any]]) -> Table:
    """The figures of an evaluation as people read them."""
    from penumbra.tasks.grounding.evaluation.figures import results

    header, lines = results(rows)
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    return table


def _lineage(
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
        _lineage(store, parent, store.manifest(parent), branch, seen)
    return branch


@artifacts.command()
def path(reference: Reference) -> None:
    """Print the folder of the newest whole artifact, and nothing else."""
    from penumbra.artifacts.references import named
    from penumbra.artifacts.store import Store

    sys.stdout.write(named(Store(), reference).path + "\n")


@artifacts.command()
def verify(
    reference: Annotated[str | None, typer.Argument(help="DATASET/STAGE; default: every artifact.")] = None,
) -> None:
    """Hold every part against its digest; exit 1 if one is missing or changed."""
    from penumbra.artifacts.references import named
    from penumbra.artifacts.store import Store

    store = Store()
    several = [named(store, reference)] if reference else [store.reference(m) for m in store.find()]
    problems = [problem for artifact in several for problem in store.verify(artifact)]
    for problem in problems:
        console.print(f"[red]{problem}[/]: delete the folder and run its flow again", soft_wrap=True)
    console.print(f"{len(several)} artifacts, {len(problems)} faults")
    raise typer.Exit(1 if problems else 0)
