"""`penumbra run FLOW DATASET`: a flow in this process."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from penumbra.flows.commands.terminal import console, goes_on, parse_parameters

EPILOG = "penumbra run FLOW --help lists the flow's parameters."


class RunCommand(TyperCommand):
    """`run`, whose help tells a flow's parameters where one is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the flow's name for the help, which is asked for before arguments are read."""
        ctx.obj = next((word for word in args if not word.startswith("-")), None)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The usual help, and the parameters."""
        from penumbra.flows.parameters import described

        return super().get_help(ctx) + (described(ctx.obj) if ctx.obj else "")


def run(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="FLOW",
            help="build-negatives, import-negatives, extract-features, train-grounding, evaluate-grounding, "
            "full-pipeline or ablation",
        ),
    ],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, scenes, your own …, or a preset")],
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", help="NAME=VALUE, as in filling.candidates=4 or providers=\\[openai]; may be repeated."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of parameters, by group or with dots; --param beats it.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorboard or wandb: where a training's losses and figures go besides, as training.log says; may be "
            "repeated."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what is there, what would be made, and what hosted models would cost; send nothing."
        ),
    ] = False,
) -> None:
    """Run a flow in this process; no server needed. Parameters start from the deployment of the data set's name.

    What penumbra.yaml in the data set's folder says of the flow beats these.
    """
    from penumbra.flows.parameter_files import parameters_in
    from penumbra.flows.running import placed_in_layers, run_flow

    said = parse_parameters([*(param or ()), *([f"training.log=[{','.join(log)}]"] if log else ())])
    changes = placed_in_layers(flow, dataset, parameters_in(config) if config else {}, said)
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
