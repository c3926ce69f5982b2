"""`penumbra doctor`: what works on this machine, and what to do about what does not."""

import typer
from rich.markup import escape

from penumbra.flows.commands.terminal import console

MARKS = {"works": "[green]✓[/]", "lacks": "[yellow]–[/]", "broken": "[red]✗[/]"}


def doctor() -> None:
    """Python, packages, folders, keys, devices, models, ports: what works here, and what to do about the rest.

    A dash marks what the default path does without; exit 1 where something that it needs is broken.
    """
    from penumbra.flows.diagnosis import State, examine

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
