"""`penumbra run FLOW DATASET`: a flow in this process."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from penumbra.flows import completion
from penumbra.flows.commands.terminal import console, goes_on, parse_parameters
from penumbra.flows.registry import FLOWS

EPILOG = "penumbra run FLOW --help lists the flow's parameters by groups; --help GROUP, or all, tells all of them."


PREFECT = "prefect"  # of --log


class RunCommand(TyperCommand):
    """`run`, whose help tells a flow's parameters where one is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the flow's name for completion; `FLOW --help GROUP` is answered before arguments are read."""
        asked = args.index("--help") if "--help" in args else len(args)
        words = [word for word in args[:asked] if not word.startswith("-")]
        ctx.obj = next((word for word in words if word in FLOWS), next(iter(words), None))
        if asked < len(args) and ctx.obj:
            typer.echo(self.told(ctx, ctx.obj, next(iter(args[asked + 1 :]), None)))
            ctx.exit()
        return super().parse_args(ctx, args)

    def told(self, ctx: Any, flow: str, group: str | None) -> str:
        """A flow's parameters by groups with the usual usage, or a group's in full."""
        from penumbra.flows.parameter_help import in_full, overview

        if group:
            return in_full(flow, group)
        options = ", ".join(option.opts[-1] for option in self.get_params(ctx) if option.opts[0].startswith("-"))
        return f"{self.get_usage(ctx)}\nOptions ({ctx.command_path} --help): {options}\n\n{overview(flow)}"


def run(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="FLOW",
            autocompletion=completion.flows,
            help="build-negatives, import-negatives, extract-features, train-grounding, evaluate-grounding, "
            "full-pipeline or ablation",
        ),
    ],
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET", help="charades-cg, scenes, your own …, or a preset", autocompletion=completion.run_names
        ),
    ],
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            autocompletion=completion.parameters,
            help="NAME=VALUE, as in filling.candidates=4 or providers=\\[openai]; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of parameters, by group or with dots; --param beats it.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=lambda incomplete: completion.beginning((PREFECT, "tensorboard", "wandb"), incomplete),
            help="prefect: Prefect's own log lines instead of the live display. tensorboard or wandb: where a "
            "training's losses and figures go besides, as training.log says. May be repeated.",
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
    from penumbra.flows.server import begin

    if not dry_run and flow in FLOWS:
        begin()
    from penumbra.flows.local_run import run_flow
    from penumbra.flows.parameters import parameters_in, placed_in_layers

    scalars = [place for place in log or () if place != PREFECT]
    said = parse_parameters([*(param or ()), *([f"training.log=[{','.join(scalars)}]"] if scalars else ())])
    changes = placed_in_layers(flow, dataset, parameters_in(config) if config else {}, said)
    if dry_run:
        from penumbra.flows.local_run import log_price, plan_flow

        table = Table("stage", "", "key")
        for row in plan_flow(flow, dataset, changes):
            table.add_row(*map(escape, row))
        console.print(table)
        log_price(flow, dataset, changes)
        return
    with goes_on():
        made = run_flow(flow, dataset, changes, prefects_lines=PREFECT in (log or ()))
    sys.stdout.write(f"{made.path}\n")
