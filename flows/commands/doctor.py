"""`penumbra doctor`: what works on this machine, and what to do about what does not."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from penumbra.flows.commands.terminal import console

MARKS = {"works": "[green]✓[/]", "lacks": "[yellow]–[/]", "broken": "[red]✗[/]"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="A list with what, told, state (works, lacks or broken) and remedy of each.")
    ] = False,
) -> None:
    """Python, packages, folders, keys, devices, models, ports: what works here, and what to do about the rest.

    A dash marks what the default path does without; exit 1 where something that it needs is broken.
    """
    from penumbra.flows.diagnosis import State, examine

    if as_json:
        findings = list(examine())
        sys.stdout.write(json.dumps([asdict(it) for it in findings], ensure_ascii=False, indent=2) + "\n")
        raise typer.Exit(1 if any(it.state is State.BROKEN for it in findings) else 0)
    broken = 0
    for finding in examine():
        console.print(f"{MARKS[finding.state]} {finding.what:<17} {escape(finding.told)}", soft_wrap=True)
        if finding.remedy:
            console.print(f"  {'':<17} → {escape(finding.remedy)}", soft_wrap=True)
        broken += finding.state is State.BROKEN
    console.print(
        f"{broken} broken" if broken else "Everything that `penumbra run full-pipeline scenes` needs is here."
    )
    raise typer.Exit(1 if broken else 0)
