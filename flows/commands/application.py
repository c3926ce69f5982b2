"""All commands together. What a command needs is imported when it runs: a help text takes a fraction of a second."""

import os
import sys
from typing import Annotated

import typer

from penumbra.artifacts.charts import printable
from penumbra.artifacts.errors import PenumbraError
from penumbra.flows.commands.ablation import ablation
from penumbra.flows.commands.artifacts import artifacts
from penumbra.flows.commands.browse import browse
from penumbra.flows.commands.check import check
from penumbra.flows.commands.compare import compare
from penumbra.flows.commands.demo_app import demo_app
from penumbra.flows.commands.doctor import doctor
from penumbra.flows.commands.export import export
from penumbra.flows.commands.fetch import fetch
from penumbra.flows.commands.init import init
from penumbra.flows.commands.predict import predict
from penumbra.flows.commands.quality import quality
from penumbra.flows.commands.run import EPILOG, RunCommand, run
from penumbra.flows.commands.runs import runs
from penumbra.flows.commands.serve import serve

app = typer.Typer(
    help="Hierarchical hard negatives for temporal grounding. PENUMBRA_DATA is the folder of the annotation files, "
    "PENUMBRA_ARTIFACTS the folder or URL of the artifacts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(cls=RunCommand, epilog=EPILOG)(run)
for command in (init, check, ablation, serve, browse, export, quality, compare, predict, demo_app, fetch, doctor):
    app.command()(command)
app.add_typer(artifacts, name="artifacts")
app.add_typer(runs, name="runs")


def tell_version(asked: bool) -> None:
    """Print the version, and nothing else."""
    if asked:
        from importlib.metadata import version

        typer.echo(f"penumbra {version('penumbra')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=tell_version, is_eager=True)
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point: expected faults are one line on standard error, not a traceback."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no process of ours takes a file of the user's folder for a module
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # nor shows how far a library has loaded its weights
    os.environ.setdefault("TQDM_DISABLE", "1")  # or is with anything else: how far a run is we show ourselves
    os.environ.setdefault("DO_NOT_TRACK", "1")  # nobody counts users, and Prefect prints no notice that it might
    try:
        app()
    except PenumbraError as error:
        sys.stderr.write(f"penumbra: {printable(str(error))}\n")  # what a file says must not steer a terminal
        raise SystemExit(1) from None
