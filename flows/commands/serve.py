"""`penumbra serve`: everything on one machine."""

from typing import Annotated

import typer


def serve(
    port: Annotated[int, typer.Option(help="Port of the server and its UI.")] = 4200,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start server, work pool, worker and all deployments for one machine; Ctrl-C ends them all."""
    from penumbra.flows.serving import serve as serve_all

    serve_all(host, port)
