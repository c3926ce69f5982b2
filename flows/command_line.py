"""The `penumbra` command: everything that a deployment does, from a terminal."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.schemas import shortened
from penumbra.artifacts.store import NAME, ArtifactError, Store
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree
from typer.core import TyperCommand

app = typer.Typer(
    help="Hierarchical hard negatives for temporal grounding. PENUMBRA_DATA is the folder of the annotation files, "
    "PENUMBRA_ARTIFACTS the folder or URL of the artifacts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Run(TyperCommand):
    """`run`, whose help tells a flow's parameters where one is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the flow's name for the help, which is asked for before arguments are read."""
        ctx.obj = next((word for word in args if not word.startswith("-")), None)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The usual help, and the parameters."""
        from penumbra.flows.parameters import described

        return super().get_help(ctx) + (described(ctx.obj) if ctx.obj else "")


artifacts_app = typer.Typer(help="What is there, its first rows, where it lies, and whether it is whole.",
                            no_args_is_help=True)  # fmt: skip
app.add_typer(artifacts_app, name="artifacts")
console = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width: don't wrap at 80

Reference = Annotated[str, typer.Argument(metavar="DATASET/STAGE", help="As in charades-cg/masks; /KEY may follow.")]


class Format(StrEnum):
    """File formats that `export` writes."""

    shine = "shine"
    jsonl = "jsonl"
    review = "review"


def resolve(store: Store, reference: str) -> Artifact:
    """The artifact that DATASET/STAGE (the newest whole one) or DATASET/STAGE/KEY names."""
    names = reference.strip("/").split("/")
    if len(names) == 3 and all(NAME.match(name) for name in names):
        dataset, stage, key = names
        return store.with_key(dataset, stage, key)
    if len(names) != 2:
        raise ArtifactError(f"{reference!r} is no DATASET/STAGE, as in charades-cg/masks")
    return store.newest(*names)


@artifacts_app.command("ls")
def list_artifacts(dataset: Annotated[str | None, typer.Argument(help="Only this data set's.")] = None) -> None:
    """All whole artifacts, oldest first."""
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


@artifacts_app.command()
def show(reference: Reference, rows: Annotated[int, typer.Option(help="How many rows to show.")] = 5) -> None:
    """What an artifact holds, what it was made from, and its first rows."""
    store = Store()
    artifact = resolve(store, reference)
    manifest = store.manifest(artifact)
    console.print(f"[bold]{artifact.dataset}/{artifact.stage}[/]  {artifact.path}", soft_wrap=True)
    console.print(f"{manifest.rows:,} rows; {manifest.unit}: {manifest.taken:,} in, {manifest.kept:,} out, "
                  f"{manifest.taken - manifest.kept:,} rejected; {manifest.seconds:.1f} s")  # fmt: skip
    for title, counts in (("rejected", manifest.rejected), ("changed", manifest.notes)):
        for reason, number in counts.items():
            console.print(f"  {title}: {number:,} × {reason}")
    console.print(f"parameters: {json.dumps(manifest.parameters)}", soft_wrap=True)
    console.print(_lineage(store, artifact, manifest))
    for part in store.parts(artifact):
        for row in shortened(part.slice(0, rows)).to_pylist():
            console.print_json(json.dumps(row, ensure_ascii=False), indent=None)
        rows -= min(rows, len(part))
        if rows <= 0:
            break


def _lineage(
    store: Store, artifact: Artifact, manifest: Manifest, tree: Tree | None = None, seen: set[str] | None = None
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


@artifacts_app.command()
def path(reference: Reference) -> None:
    """Print the folder of the newest whole artifact, and nothing else."""
    store = Store()
    sys.stdout.write(resolve(store, reference).path + "\n")


@artifacts_app.command()
def verify(
    reference: Annotated[str | None, typer.Argument(help="DATASET/STAGE; default: every artifact.")] = None,
) -> None:
    """Hold every part against its digest; exit 1 if one is missing or changed."""
    store = Store()
    artifacts = [resolve(store, reference)] if reference else [store.reference(m) for m in store.find()]
    problems = [problem for artifact in artifacts for problem in store.verify(artifact)]
    for problem in problems:
        console.print(f"[red]{problem}[/]: delete the folder and run its flow again", soft_wrap=True)
    console.print(f"{len(artifacts)} artifacts, {len(problems)} faults")
    raise typer.Exit(1 if problems else 0)


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """`masking.ratios=[0.1,0.3,0.5]` as nested parameters; a value is YAML (so JSON too), as in providers=[openai]."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not all(name.split(".")):
            raise typer.BadParameter(f"{pair!r} is no NAME=VALUE, as in filling.candidates=4")
        *groups, last = name.split(".")
        place = parameters
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = _value(text)
    return parameters


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float | bool | list | dict | None) else text  # dates stay text


def tell_version(asked: bool) -> None:
    """Print the version, and nothing else."""
    if asked:
        typer.echo(f"penumbra {version('penumbra')}")
        raise typer.Exit


PATIENCE = 10.0  # seconds that a run which is ended may take to tell its server
ENDED = "penumbra: ended; the same command goes on from here\n"


@contextmanager
def goes_on() -> Iterator[None]:
    """A run that SIGTERM or Ctrl-C ends says in one line that it goes on; exit code 143 or 130.

    A signal to the whole process group ends Prefect's temporary server as well, which Prefect then asks for minutes,
    with handlers of its own. After `PATIENCE` seconds the process ends all the same, and loses nothing by it.
    """

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    over = threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def watch() -> None:
        for number in iter(lambda: os.read(readable, 1), b""):
            if number[0] in (signal.SIGTERM, signal.SIGINT) and not over.wait(PATIENCE):
                sys.stderr.write(ENDED)
                sys.stderr.flush()
                os._exit(128 + number[0])
        os.close(readable)

    before, told = signal.signal(signal.SIGTERM, terminate), signal.set_wakeup_fd(writable)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        sys.stderr.write(ENDED)
        raise SystemExit(128 + signal.SIGINT if isinstance(ended, KeyboardInterrupt) else ended.code) from None
    finally:
        over.set()
        signal.set_wakeup_fd(told)
        signal.signal(signal.SIGTERM, before)
        os.close(writable)


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=tell_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command(cls=Run, epilog="penumbra run FLOW --help lists the flow's parameters.")
def run(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="FLOW",
            help="build-negatives, extract-features, train-grounding, evaluate-grounding, full-pipeline or ablation",
        ),
    ],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, scenes, your own …, or a preset")],
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", help="NAME=VALUE, as in filling.candidates=4 or providers=\\[openai]; may be repeated."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what is there, what would be made, and what hosted models would cost; send nothing."
        ),
    ] = False,
) -> None:
    """Run a flow in this process; no server needed. Parameters start from the deployment of the data set's name."""
    from penumbra.flows.running import run_flow

    changes = parse_parameters(param or [])
    if dry_run:
        from penumbra.flows.running import log_price, plan_flow

        table = Table("stage", "", "key")
        for row in plan_flow(flow, dataset, changes):
            table.add_row(*map(escape, row))
        console.print(table)
        log_price(flow, dataset, changes)
        return
    with goes_on():
        made = run_flow(flow, dataset, changes)
    sys.stdout.write(f"{made.path}\n")


@app.command()
def ablation(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A grid of tasks/grounding/ablation/grids.yaml: losses, llms, "
            "ratios, margins, prepositions, systems …",
        ),
    ],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, activitynet-cg, scenes or your own")],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row; several give intervals.")] = 3,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row, by its label; may be repeated. --dry-run lists them.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=VALUE for every row, as in training.epochs=10; may be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the table as markdown, too.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the rows and what they change; train nothing.")
    ] = False,
) -> None:
    """Run a grid of trainings, a table of the papers, over a data set, and print the table.

    Each row builds its negatives and features, trains and is judged on every test split. What was done before is found,
    so that a grid that was ended goes on. A row that fails is told, the others go on, and the exit code is 1.
    """
    from penumbra.flows.running import prepare, run_flow
    from penumbra.tasks.grounding.ablation.grids import GROUPS, listing, plan
    from penumbra.tasks.grounding.ablation.tabulate import RowsFailedError, table_text

    changes = {**parse_parameters(param or []), "name": name, "rows": row or [], "seeds": seeds}
    _, _, known = prepare("ablation", dataset, changes)
    groups = {**dict(known["negatives"]), **dict(known["features"]), **known}
    grid, plans = plan(name, row or [], dataset, known["preset"], {group: groups[group] for group in GROUPS})
    if dry_run:
        table = Table("row", "changes", "model", "negatives", title=grid.title, title_justify="left")
        for line in listing(plans):
            table.add_row(*map(escape, line))
        console.print(table)
        console.print(f"{len(plans)} rows × {seeds} seeds")
        return
    failed = None
    try:
        with goes_on():
            artifact = run_flow("ablation", dataset, changes)
    except RowsFailedError as error:
        artifact, failed = error.artifact, error
    text = table_text(artifact)
    if output:
        output.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{text}\n{artifact.path}\n")
    if failed:
        raise failed


@app.command()
def serve(
    port: Annotated[int, typer.Option(help="Port of the server and its UI.")] = 4200,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start server, work pool, worker and all deployments for one machine; Ctrl-C ends them all."""
    from penumbra.flows.serving import serve as serve_all

    serve_all(host, port)


@app.command()
def export(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set whose negatives are built.")],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="shine: the authors' keys; jsonl: one row a negative; review: a CSV sheet with two questions for "
            "people, which `penumbra quality --review` reads back.",
        ),
    ] = Format.shine,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Rows of the sheet for people.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the sheet's sample.")] = 0,
) -> None:
    """Write the newest negatives in the format of SHINE's release, one negative a row, or as a sheet for people."""
    from penumbra.tasks.negatives.export import export_rows, review_sheet, write_lines, write_text

    if format_ is Format.review:
        write_text([review_sheet(Store(), dataset, count, seed)], output)
    else:
        write_lines(export_rows(Store(), dataset, format_.value), output)


@app.command()
def quality(
    negatives: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Negatives of any origin: DATASET/negatives or DATASET/fills, with /KEY if need be, a folder or file "
            "of Parquet, or JSON lines in SHINE's form or one negative a row.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set whose annotations judge a file; default: the one that has its first query."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Queries for what needs a parser or an encoder; 0: all. Default: 600.")
    ] = None,
    classifier: Annotated[
        list[str] | None,
        typer.Option(help="Blind classifier: words, characters, sentences or gru; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of samples, random fills and intervals.")] = 0,
    human: Annotated[
        Path | None, typer.Option(help="More human text that the fillers did not draw from, one sentence a line.")
    ] = None,
    review: Annotated[Path | None, typer.Option(help="A filled-in sheet of `export --format review`.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write tables and charts as markdown, too.")] = None,
) -> None:
    """Judge negatives, anyone's: every figure a level and a provider, with intervals and two controls."""
    from penumbra.tasks.negatives.quality.command import judge_reference

    settings = {"sample": sample, "classifiers": classifier or None, "sampling_seed": seed}
    judged = judge_reference(negatives, dataset, settings, human, review)
    if page:
        page.write_text(judged.page, encoding="utf-8")
    for title, (header, *rows) in judged.tables:
        table = Table(*header, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in judged.notes:
        console.print(f"note: {note}", soft_wrap=True)
    sys.stdout.write(f"{judged.artifact.path}\n")


@app.command()
def compare(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set with two evaluated runs.")],
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A run's key, its first digits, or its name.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="The run that may be better.")],
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Is the second run better than the first? A paired bootstrap over the queries of each split."""
    from penumbra.tasks.grounding.evaluation.compare import compare as compare_runs

    table = Table("split", "metric", f"{escape(second)} − {escape(first)}", "95 % interval", "p")
    for split, metric, difference in compare_runs(dataset, first, second, seed):
        interval = f"{difference.low:+.2f} … {difference.high:+.2f}"
        table.add_row(split, metric, f"{difference.mean:+.2f}", interval, difference.told_p)
    console.print(table)


@app.command()
def predict(
    video: Annotated[Path, typer.Argument(metavar="VIDEO", help="Any video file that FFmpeg reads.")],
    query: Annotated[list[str], typer.Argument(metavar="QUERY…", help="What to look for, a sentence each.")],
    run: Annotated[str, typer.Option(help="Key of a trained run's metrics, its first digits, or the run's name.")],
    dataset: Annotated[str | None, typer.Option(help="Data set that the run was trained on, if need be.")] = None,
    output: Annotated[Path | None, typer.Option(help="Draw frames, saliency and windows into this .svg file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="All windows and the saliency of every clip as JSON.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Windows a query in the table.")] = 5,
) -> None:
    """Find the moments of a video that sentences describe, with a trained run."""
    from penumbra.tasks.grounding.prediction import command

    watched, found = command.predict(video, query, run, dataset, output)
    for note in watched.notes:
        sys.stderr.write(f"note: {note}\n")
    if as_json:
        sys.stdout.write(command.as_json(found) + "\n")
        return
    table = Table("query", "start, s", "end, s", "score")
    for row in command.as_rows(found, top):
        table.add_row(*map(escape, row))
    console.print(table)


@app.command()
def fetch(dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg or activitynet-cg")]) -> None:
    """Download a data set's public annotation files into PENUMBRA_DATA, digests checked."""
    from penumbra.tasks.data.fetch import fetch as fetch_files

    for file in fetch_files(dataset):
        console.print(f"{file}", soft_wrap=True)


def main() -> None:
    """Entry point: expected faults are one line on standard error, not a traceback."""
    try:
        app()
    except PenumbraError as error:
        sys.stderr.write(f"penumbra: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
