"""`penumbra serve`: everything on one machine."""

import sys
from typing import Annotated

import typer


def serve(
    port: Annotated[int, typer.Option(help="Port of the server and its UI.")] = 4200,
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's own asks for PENUMBRA_AUTH.")
    ] = "127.0.0.1",
    env: Annotated[
        bool, typer.Option("--env", help="Print what another shell evaluates to reach the running server; start none.")
    ] = False,
) -> None:
    """Start server, work pool, worker and all deployments for one machine; Ctrl-C ends them all.

    The server asks for a user and a password: PENUMBRA_AUTH=user:password, or new ones a start, told when it is up.
    """
    from penumbra.flows.serve import serve as start
    from penumbra.flows.serve import told_environment

    if env:
        sys.stdout.write(told_environment(port))
    else:
        start(host, port)
