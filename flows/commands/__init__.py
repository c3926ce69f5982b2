"""The command `penumbra`. A command imports what it needs when it runs: a help text takes a fraction of a second."""

import os
import signal
from functools import cache
from typing import Annotated

import typer

from penumbra.artifacts.errors import PenumbraError
from penumbra.flows.commands.artifacts import artifacts
from penumbra.flows.commands.datasets import check, fetch, init
from penumbra.flows.commands.doctor import doctor
from penumbra.flows.commands.negatives import browse, export, quality, review
from penumbra.flows.commands.run import EPILOG, RunCommand, ablation, demo_app, run, serve
from penumbra.flows.commands.runs import compare, predict, runs
from penumbra.flows.console import end_at_once, warn

app = typer.Typer(
    help="Hierarchical hard negatives for temporal grounding. PENUMBRA_DATA is the folder of the annotation files, "
    "PENUMBRA_ARTIFACTS the folder or URL of the artifacts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(cls=RunCommand, epilog=EPILOG)(run)
COMMANDS = (init, check, ablation, serve, browse, review, export, quality, compare, predict, demo_app, fetch, doctor)
for command in COMMANDS:
    app.command()(command)
app.add_typer(artifacts, name="artifacts")
app.add_typer(runs, name="runs")


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penumbra {version('penumbra')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _: Annotated[bool, typer.Option("--version", help="Print version.", callback=print_version, is_eager=True)] = False,
) -> None:
    from penumbra.artifacts.catalogue import Catalogue

    Catalogue.announce = staticmethod(cache(warn))  # each line once
    context.call_on_close(lambda: setattr(Catalogue, "announce", None))


def main() -> None:
    """Run the command; print an expected fault as one line on standard error."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no file of the user's folder is imported as a module
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE", "DO_NOT_TRACK"):
        os.environ.setdefault(variable, "1")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    try:
        app()
    except (PenumbraError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        warn(" ".join(text.split()))
        raise SystemExit(1) from None
