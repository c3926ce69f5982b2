"""`penumbra demo-app`: a page that asks a trained run for moments in a video, and shows what its negatives change.

The page is Gradio's, behind a door of ours: it answers under its own names and to pages of its own, hands out no file
but those that were uploaded to it, fetches nothing from anywhere, and its browser may ask nobody else.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from jinja2 import Environment, StrictUndefined, Template
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
from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, PredictionError, Window, checked
from penumbra.tasks.grounding.prediction.negated import Negative, Negator
from penumbra.tasks.grounding.prediction.picture import saliency_beside, window_frames, windows_beside
from penumbra.tasks.grounding.prediction.watching import Watched
from penumbra.tasks.grounding.training.stage import chosen_run, name_of

TEMPLATE = Path(__file__).with_suffix(".html")
LARGEST = "2gb"  # of an uploaded file
KEPT_SECONDS = 3600  # of an uploaded file
LONGEST = 500  # characters of a sentence
SHOWN = 3  # windows
ABOUT = "Where a trained run sees what a sentence says, and its saliency under hard negatives of the sentence."
POLICY = (
    "default-src 'self' 'unsafe-inline' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)  # Gradio compiles its components' props in the page


class DemoError(PenumbraError):
    """The page can't be served; the message says what to do."""


@dataclass(frozen=True)
class Row:
    """A line of the table: the query or a negative, which of its words are not the query's, its best windows."""

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
    """What the page shows of a sentence in a video, as HTML: windows, saliency, also under its negatives, and frames.

    Where there are no negatives it says why. Raises as `Grounder` does.
    """
    [query] = checked([sentence])
    watched = _watched(run, video)
    negatives, why = _negatives(run, query)
    asked = {"query": query} | {_name(one): one.query for one in negatives if one.query}
    found = dict(zip(asked, _grounder(run).ask(watched, list(asked.values())), strict=True))
    drawings = [saliency_beside(found)] if found["query"].saliency else []
    drawings += [windows_beside(found), *(window_frames(watched, it) for it in found["query"].windows[:SHOWN])]
    notes = [*watched.notes, *([why] if why else [])]
    return _template().render(rows=_rows(query, negatives, found), notes=notes, drawings=drawings)


def _negatives(run: str, query: str) -> tuple[list[Negative], str]:
    """The negatives, or why there are none."""
    try:
        found = _negator(run).negatives(query)
    except PredictionError as error:
        return [], f"No negatives: {error}."
    return found, "" if found else "No negatives: the sentence has no word that may be masked."


def _name(negative: Negative) -> str:
    return f"level {negative.level}"


def _rows(query: str, negatives: Sequence[Negative], found: dict[str, Grounding]) -> list[Row]:
    words = query.split()
    rows = [Row("query", [(word, False) for word in words], found["query"].windows[:SHOWN])]
    for one in negatives:
        changed = [(word, word != own) for word, own in zip(one.query.split(), words, strict=False)]
        windows = found[_name(one)].windows[:SHOWN] if one.query else ()
        rows.append(Row(_name(one), changed, windows, one.problem))
    return rows


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = lambda drawing: Markup(drawing.svg())  # noqa: S704 (its texts are escaped)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def runs_to_ask(dataset: str | None) -> dict[str, str]:
    """The keys of the runs of a data set, or of all, by what people choose them by, the newest first.

    Raises `ArtifactError` where there is none.
    """
    found = Store().find(dataset, "metrics")
    if not found:
        raise Store().missing(dataset, "metrics")
    return {f"{name_of(one)} ({one.dataset})": one.key for one in reversed(found)}


class Door:
    """Around an application: answers pages of its own addresses only, fetches nothing, and lets browsers do neither."""

    def __init__(self, app: ASGIApp, urls: Sequence[str]) -> None:
        self.app, self.urls = app, urls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a page of elsewhere and an address to be fetched; else answer, with a policy."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = POLICY
            await send(message)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif Headers(scope=scope).get("origin", self.urls[0]) not in self.urls or "=http" in scope["path"].lower():
            await PlainTextResponse("not from here", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, told)


def application(runs: dict[str, str], chosen: str, folder: Path, urls: Sequence[str], credential: str = "") -> ASGIApp:
    """The page as an application.

    Args:
        runs: keys of runs by what they are called
        chosen: the key of the run that is chosen at first
        folder: where uploaded files lie, and nothing else does
        urls: where browsers find it
        credential: user:password that it asks for; '' asks for none

    Raises `DemoError` where Gradio is not installed.

    """
    gradio = _gradio(folder)
    page = _page(gradio, runs, chosen, folder)
    page.queue(max_size=20)
    app = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=LARGEST,
        auth=tuple(credential.split(":", 1)) if credential else None,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gradio.themes.Default(primary_hue="indigo", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )
    page.has_launched = True  # as `launch` sets it: without it Gradio lets a request name any file of this machine
    return TrustedHostMiddleware(Door(app, urls), allowed_hosts=host_names(urls), www_redirect=False)


def _gradio(folder: Path) -> Any:
    """Gradio, with its files in a folder, silent, and without its way to fetch what a request names."""
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(folder), HF_HUB_DISABLE_TELEMETRY="1")
    try:
        import gradio
        from gradio import processing_utils
    except ImportError:
        raise DemoError("the demo app needs Gradio: pip install 'penumbra[app]'") from None

    async def not_fetched(url: str, cache_dir: str) -> str:
        raise gradio.Error("Upload the video: nothing is fetched.", print_exception=False)

    processing_utils.async_ssrf_protected_download = not_fetched  # a file that is sent may say an address
    return gradio


def _page(gradio: Any, runs: dict[str, str], chosen: str, folder: Path) -> Any:
    """The fields, and what is done with them."""

    def ask(video: str | None, sentence: str, run: str) -> str:
        if not video or not Path(video).resolve().is_relative_to(folder.resolve()):
            raise gradio.Error("Choose a video file first.", print_exception=False)
        try:
            return show(run, Path(video), sentence)
        except PenumbraError as error:
            told = str(error).replace(video, Path(video).name)
            raise gradio.Error(harmless(told), print_exception=False) from None

    with gradio.Blocks(title="Penumbra", analytics_enabled=False, delete_cache=(KEPT_SECONDS, KEPT_SECONDS)) as page:
        gradio.Markdown(f"# Moments in a video\n{ABOUT}")
        with gradio.Row():
            video = gradio.Video(label="video", sources=["upload"], height=360)
            with gradio.Column():
                sentence = gradio.Textbox(label="sentence", placeholder="a person opens the door.", max_length=LONGEST)
                run = gradio.Dropdown(list(runs.items()), value=chosen, label="run")
                button = gradio.Button("Find", variant="primary")
        found = gradio.HTML()
        gradio.on([button.click, sentence.submit], ask, [video, sentence, run], found)
    return page


def serve_app(host: str, port: int, run: str | None, dataset: str | None) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        host: address to listen on
        port: 0 takes a free one
        run: chosen at first, by key, first digits or name; None: the newest
        dataset: of which runs can be chosen; None: of all

    Raises:
        ArtifactError: there is no run, or none is called so
        DemoError: Gradio is not installed
        ServeError: the address can't be listened on, or needs PENUMBRA_AUTH

    """
    import uvicorn

    credential = given_credential(host)
    runs = runs_to_ask(dataset)
    chosen = chosen_run(dataset, run).key if run else next(iter(runs.values()))
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="penumbra-demo-") as folder, listen(host, port) as listener:
        urls = addresses(host, listener.getsockname()[1])
        app = application(runs, chosen, Path(folder), urls, credential)
        sys.stdout.write(f"Penumbra's demo app: {urls[0]}\nCtrl-C ends it.\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)  # open pages hold connections
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
