"""`penumbra serve` and `penumbra demo-app`: servers that run until Ctrl-C."""

import sys
from typing import Annotated

import typer

from penumbra.flows.server import PORT

Host = Annotated[
    str, typer.Option(help="Address to listen on; another than this machine's own needs PENUMBRA_AUTH=user:password.")
]


def serve(
    port: Annotated[int, typer.Option(help="Port of the server and its UI.")] = PORT,
    host: Host = "127.0.0.1",
    env: Annotated[
        bool, typer.Option("--env", help="Print what another shell evaluates to reach the running server; start none.")
    ] = False,
) -> None:
    """Start server, work pools, workers and all deployments for one machine; Ctrl-C ends them all.

    The server asks for a user and a password: PENUMBRA_AUTH, or new ones at each start, which are printed.
    """
    from penumbra.flows import serve as server

    if env:
        sys.stdout.write(server.environment_of(port))
    else:
        server.serve(host, port)


def demo_app(
    run: Annotated[
        str | None, typer.Option(help="The run that is selected first; its key, first digits or name. Default: newest.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Only runs that were trained on this data set.")] = None,
    port: Annotated[int, typer.Option(help="Port of the page.")] = 7860,
    host: Host = "127.0.0.1",
) -> None:
    """Serve a page that takes a video and a sentence and shows windows, saliency and frames; Ctrl-C ends it.

    The page also shows the saliency of three negatives of the sentence. It needs Gradio: pip install 'penumbra[app]'.
    """
    from penumbra.flows.demo_app import serve_app

    serve_app(host, port, run, dataset)
