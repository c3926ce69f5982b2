"""`penumbra demo-app`: a page that finds moments in an uploaded video, and shows what negatives of the sentence change.

The page is Gradio's. It answers only under its own host names and to its own pages, hands out only files that were
uploaded to it, fetches nothing from a network, and its browser may call no other server.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import harmless
from penumbra.artifacts.store import Store
from penumbra.flows.serve import addresses, given_credential, interrupt
from penumbra.flows.server import host_names, listen
from penumbra.tasks.grounding.prediction.grounder import Grounder, Watched, Window, checked
from penumbra.tasks.grounding.prediction.negator import Negator
from penumbra.tasks.grounding.prediction.pictures import saliency_beside, window_frames, windows_beside
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.stage import chosen_run, name_of

TEMPLATE = Path(__file__).with_suffix(".html")
LARGEST_FILE = "2gb"
KEPT_SECONDS = 3600  # of an uploaded file
LONGEST_SENTENCE = 500  # characters
WINDOWS = 3
ABOUT = "Where a trained run sees what a sentence says, and its saliency under hard negatives of the sentence."
POLICY = (
    "default-src 'self' 'unsafe-inline' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)  # Gradio compiles its components' properties in the page


@dataclass(frozen=True)
class Row:
    """A line of the table: a sentence, whose words are marked if they are not the query's, and its best windows."""

    name: str
    words: Sequence[tuple[str, bool]]
    windows: Sequence[Window]
    problem: str = ""


_grounder = lru_cache(maxsize=2)(Grounder.of_run)


@lru_cache(maxsize=2)
def _negator(run: str) -> Negator:
    return Negator.of_run(chosen_run(None, run))


@lru_cache(maxsize=8)
def _watched(run: str, video: Path) -> Watched:
    return _grounder(run).watch(video)


def show(run: str, video: Path, sentence: str) -> str:
    """Return windows, saliency and frames of a sentence in a video, and of its negatives, as HTML.

    If there are no negatives, the page says why. Raises as `Grounder` does.
    """
    [query] = checked([sentence])
    watched, notes = _watched(run, video), list[str]()
    notes += watched.notes
    try:
        negatives = list(_negator(run).negatives(query))
        if not negatives:
            notes.append("No negatives: the sentence has no word that may be masked.")
    except RunError as error:
        negatives = []
        notes.append(f"No negatives: {error}.")
    sentences = {"query": query} | {f"level {it.level}": it.query for it in negatives if it.query}
    results = dict(zip(sentences, _grounder(run).ask(watched, list(sentences.values())), strict=True))
    rows = [Row("query", [(word, False) for word in query.split()], results["query"].windows[:WINDOWS])]
    for it in negatives:
        words = [(word, word != own) for word, own in zip(it.query.split(), query.split(), strict=False)]
        windows = results[f"level {it.level}"].windows[:WINDOWS] if it.query else ()
        rows.append(Row(f"level {it.level}", words, windows, it.problem))
    drawings = [saliency_beside(results)] if results["query"].saliency else []
    drawings += [windows_beside(results), *(window_frames(watched, it) for it in results["query"].windows[:WINDOWS])]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = lambda drawing: Markup(drawing.svg())  # noqa: S704 (its texts are escaped)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(rows=rows, notes=notes, drawings=drawings)


class OriginGuard:
    """Middleware that refuses calls from pages of other origins and addresses to fetch, and sends a content policy."""

    def __init__(self, app: ASGIApp, urls: Sequence[str]) -> None:
        self.app, self.urls = app, urls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or refuse it."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = POLICY
            await send(message)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif Headers(scope=scope).get("origin", self.urls[0]) not in self.urls or "=http" in scope["path"].lower():
            await PlainTextResponse("not from here", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send_with_policy)


def application(runs: dict[str, str], selected: str, folder: Path, urls: Sequence[str], credential: str) -> ASGIApp:
    """Return the page as an application; raise `PenumbraError` if Gradio is not installed.

    `runs` are keys of runs by their names. The folder holds the uploaded files. `urls` are the page's addresses as
    browsers know them. The page asks for the credential, user:password, unless it is ''.
    """
    gradio = _gradio(folder)
    page = _page(gradio, runs, selected, folder)
    page.queue(max_size=20)
    app = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=LARGEST_FILE,
        auth=tuple(credential.split(":", 1)) if credential else None,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gradio.themes.Default(primary_hue="indigo", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )
    page.has_launched = True  # as `launch` sets it: without it Gradio lets a request name any file of this machine
    return TrustedHostMiddleware(OriginGuard(app, urls), allowed_hosts=host_names(urls), www_redirect=False)


def _gradio(folder: Path) -> Any:
    """Import Gradio with its files in the folder, without telemetry, and without fetching what a request names."""
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(folder), HF_HUB_DISABLE_TELEMETRY="1")
    try:
        import gradio
        from gradio import processing_utils
    except ImportError:
        raise PenumbraError("the demo app needs Gradio: pip install 'penumbra[app]'") from None

    async def refuse(url: str, cache_dir: str) -> str:
        raise gradio.Error("Upload the video: nothing is fetched.", print_exception=False)

    processing_utils.async_ssrf_protected_download = refuse  # an uploaded file may name an address
    return gradio


def _page(gradio: Any, runs: dict[str, str], selected: str, folder: Path) -> Any:
    def ask(video: str | None, sentence: str, run: str) -> str:
        if not video or not Path(video).resolve().is_relative_to(folder.resolve()):
            raise gradio.Error("Choose a video file first.", print_exception=False)
        try:
            return show(run, Path(video), sentence)
        except PenumbraError as error:
            message = str(error).replace(video, Path(video).name)
            raise gradio.Error(harmless(message), print_exception=False) from None

    with gradio.Blocks(title="Penumbra", analytics_enabled=False, delete_cache=(KEPT_SECONDS, KEPT_SECONDS)) as page:
        gradio.Markdown(f"# Moments in a video\n{ABOUT}")
        with gradio.Row():
            video = gradio.Video(label="video", sources=["upload"], height=360)
            with gradio.Column():
                placeholder = "a person opens the door."
                sentence = gradio.Textbox(label="sentence", placeholder=placeholder, max_length=LONGEST_SENTENCE)
                run = gradio.Dropdown(list(runs.items()), value=selected, label="run")
                button = gradio.Button("Find", variant="primary")
        gradio.on([button.click, sentence.submit], ask, [video, sentence, run], gradio.HTML())
    return page


def serve_app(host: str, port: int, run: str | None, dataset: str | None) -> None:
    """Serve the page until Ctrl-C or SIGTERM; port 0 takes a free one.

    `run`, a key, its first digits, or a name, is selected first; by default the newest. Without a data set all runs are
    offered. Raises `PenumbraError` if there is no such run, Gradio is not installed, the port is taken, or
    PENUMBRA_AUTH is missing.
    """
    import uvicorn

    credential = given_credential(host)
    trained = Store().find(dataset, "metrics")
    if not trained:
        raise Store().missing(dataset, "metrics")
    runs = {f"{name_of(it)} ({it.dataset})": it.key for it in reversed(trained)}
    selected = chosen_run(dataset, run).key if run else trained[-1].key
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="penumbra-demo-") as folder, listen(host, port) as listener:
        urls = addresses(host, listener.getsockname()[1])
        app = application(runs, selected, Path(folder), urls, credential)
        sys.stdout.write(f"Penumbra's demo app: {urls[0]}\nCtrl-C ends it.\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)  # open pages hold connections
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
