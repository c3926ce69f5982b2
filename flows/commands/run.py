"""`penumbra run` and `ablation` run a flow in this process; `penumbra serve` and `demo-app` are servers."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from penumbra.artifacts.markdown import counted
from penumbra.flows import server
from penumbra.flows.console import print_line, print_table, resumable
from penumbra.flows.registry import FLOWS

EPILOG = "penumbra run FLOW --help lists the flow's parameters by groups; --help GROUP, or all, explains each of them."


class RunCommand(TyperCommand):
    """The command `run`, whose help also lists the parameters of a flow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer `FLOW --help GROUP` before the arguments are read."""
        before, _, after = " ".join(args).partition("--help")
        flow = next((word for word in before.split() if word[0] != "-"), None)
        if "--help" not in args or not flow:
            return list(super().parse_args(ctx, args))
        from penumbra.flows.parameters import in_full, overview

        options = ", ".join(option.opts[-1] for option in self.get_params(ctx) if option.opts[0].startswith("-"))
        head = f"{self.get_usage(ctx)}\nOptions ({ctx.command_path} --help): {options}\n\n"
        typer.echo(in_full(flow, after.split()[0]) if after.split() else head + overview(flow))
        raise typer.Exit


def run(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help=", ".join(FLOWS))],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, scenes, your own …, or a deployment")],
    param: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, as in filling.candidates=4 or providers=\\[openai]; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of parameters; --param overrides it.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="List the artifacts that exist and those that would be made. For hosted models also log the price, "
            "which requires tags and masks of the queries; nothing is sent. Exit 1 if the run would fail.",
        ),
    ] = False,
) -> None:
    """Run a flow in this process; no server needed.

    Parameters start from the deployment of this name, then penumbra.yaml in the data set's folder, --config, --param.
    """
    if not dry_run and flow in FLOWS:
        server.start_early()
    from penumbra.flows.local_run import log_price, plan_flow, run_flow
    from penumbra.flows.parameters import parameters_in, parse_parameters
    from penumbra.tasks.stage import FAILS_FIRST

    layers = (parameters_in(config) if config else {}, parse_parameters(param or []))
    if dry_run:
        rows = plan_flow(flow, dataset, *layers)
        print_table(("stage", "", "key"), rows)
        if any(key.startswith(FAILS_FIRST) for _, _, key in rows):
            raise typer.Exit(1)
        log_price(flow, dataset, *layers)
        return
    with resumable():
        result = run_flow(flow, dataset, *layers)
    sys.stdout.write(f"{result.path}\n")


def ablation(
    name: Annotated[
        str, typer.Argument(help="A grid of tasks/grounding/ablation_grids.yaml: losses, llms, ratios, margins …")
    ],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, activitynet-cg, scenes or your own")],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row; several give intervals.")] = 3,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row, by its label; may be repeated. --dry-run lists them.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for every row, as in training.epochs=10; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the rows and their changes; train nothing.")] = False,
) -> None:
    """Train the rows of a grid, a table of the papers, on a data set, and print the table.

    Each row builds its negatives and features, trains, and is evaluated on every test split. Artifacts that exist are
    reused. If a row fails, the other rows continue, and the exit code is 1.
    """
    from penumbra.flows.local_run import prepare, run_flow
    from penumbra.flows.parameters import parse_parameters
    from penumbra.tasks.grounding.ablation import TRAINING, listing, plan, table_text

    changes = {**parse_parameters(param or []), "name": name, "rows": row or [], "seeds": seeds}
    _, _, values = prepare("ablation", dataset, changes)
    settings = {group: values[group] for group in TRAINING}
    groups = {**dict(values["negatives"] or {}), **dict(values["features"] or {}), **settings}
    grid, plans = plan(name, values["rows"], values["dataset"].name, values["preset"], groups)
    if dry_run:
        print_table(("row", "changes", "model"), listing(plans), grid.title)
        print_line(", ".join([f"{counted(len(plans), 'row')} × {counted(seeds, 'seed')}", *(param or [])]))
        return
    with resumable():
        artifact = run_flow("ablation", dataset, changes)
    sys.stdout.write(f"{table_text(artifact)}\n{artifact.path}\n")


def serve(
    port: Annotated[int, typer.Option(help="Port of the server and its UI.")] = server.PORT,
    env: Annotated[
        bool, typer.Option("--env", help="Print commands that connect another shell to the running server; start none.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Only the deployments of this data set.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also deployments of data sets without files here.")] = False,
) -> None:
    """Start server, work pools, workers and deployments for one machine; Ctrl-C ends them all.

    The command deploys the data sets whose annotation files exist. The server asks for a user and a password:
    PENUMBRA_AUTH, or new ones that each start prints.
    """
    if env:
        sys.stdout.write(server.environment_of(port))
    else:
        server.serve(port, dataset or ("--all" if every else ""))


def demo_app(
    run: Annotated[
        str | None, typer.Option(help="The run that is selected first; its key, first digits or name. Default: newest.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page.")] = 7860,
) -> None:
    """Serve a page that takes a video and a sentence and shows windows, existence and saliency; Ctrl-C ends it.

    The page also shows the saliency of three negatives of the sentence. It needs Gradio: pip install 'penumbra[app]'.
    """
    from penumbra.flows.demo_app import serve_app

    serve_app(port, run)
