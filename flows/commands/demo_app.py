"""`penumbra demo-app`: moments in a video, and what a sentence's negatives change, as a page."""

from typing import Annotated

import typer


def demo_app(
    run: Annotated[
        str | None,
        typer.Option(help="The run that is chosen at first; its key, first digits or name. Default: newest."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Only runs that were trained on this data set.")] = None,
    port: Annotated[int, typer.Option(help="Port of the page.")] = 7860,
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's own asks for PENUMBRA_AUTH.")
    ] = "127.0.0.1",
) -> None:
    """Serve a page that takes a video and a sentence and shows windows, saliency and frames; Ctrl-C ends it.

    Saliency is shown under three negatives of the sentence, too. It needs Gradio: pip install 'penumbra[app]'.
    """
    from penumbra.flows.demo_app import serve_app

    serve_app(host, port, run, dataset)
