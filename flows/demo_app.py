"""`penumbra demo-app`: a page that finds moments in an uploaded video, and shows what negatives of the sentence change.

The page is Gradio's. It accepts requests only for its own host names and from its own pages, and serves only files that
were uploaded to it. It fetches nothing from a network, and its pages may call no other server.
"""

import os
import signal
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import harmless
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.flows.server import HOSTS, addresses, given_credential, interrupt, listen
from penumbra.tasks.data.rows import check_query
from penumbra.tasks.grounding.prediction import Grounder, checked, saliency_by_text
from penumbra.tasks.grounding.training.stage import chosen_run, name_of
from penumbra.tasks.negatives.fills import fill_part, make_provider
from penumbra.tasks.negatives.providers import Provider
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.stage import zip_parts
from penumbra.tasks.text.dictionary import load_dictionary
from penumbra.tasks.text.masks import Masking, mask_part
from penumbra.tasks.text.tags import load_pipeline, tag_part

TEMPLATE = Path(__file__).with_suffix(".html")
LARGEST_FILE = "2gb"
KEPT_SECONDS = 3600  # of an uploaded file
LONGEST_SENTENCE = 500  # characters
WINDOWS = 3
ABOUT = "The moments that a trained run finds for a sentence, and saliency for the sentence and its hard negatives."
POLICY = (
    "default-src 'self' 'unsafe-inline' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)  # Gradio compiles its components' properties in the page


_grounder = lru_cache(maxsize=2)(Grounder.of_run)
_watched = lru_cache(maxsize=8)(lambda run, video: _grounder(run).watch(video))


@lru_cache(maxsize=2)
def _corpus(dataset: str) -> tuple[str, Masking, Provider]:
    """Return the spaCy pipeline, the masking and the provider `corpus` of a data set."""
    store = Store()
    dictionary = store.newest(dataset, "dictionary")
    annotations, tags = (store.ancestors(dictionary)[stage][0] for stage in ("annotations", "tags"))
    masks = store.newest_if_any(dataset, "masks")
    made = store.manifest(masks).parameters if masks else {}
    masking = Masking(**{name: made[name] for name in Masking.model_fields.keys() & made.keys()})
    provider = make_provider("corpus", load_dictionary(dictionary), zip_parts(annotations, tags), Filling())
    return store.manifest(tags).parameters["spacy_model"], masking, provider


def negatives_of(dataset: str, sentence: str) -> list[dict[str, Any]]:
    """Return the first fill of each level as rows of `fills`, or none if the sentence has no word that may be masked.

    The sentence is tagged, masked and filled as a training query is, by the same functions. Raise `ArtifactError` if
    the data set has no dictionary.
    """
    spacy_model, masking, provider = _corpus(dataset)
    row = {"qid": "0", "vid": "", "split": "train", "query": sentence, "duration": 1.0, "windows": [], "novel": []}
    annotations = table_of("annotations", [row])
    tags = tag_part(annotations, load_pipeline(spacy_model)).rows
    masks = mask_part(annotations, tags, masking).rows
    return list(fill_part(tags, masks, provider, 1).rows.to_pylist())


def show(run: str, video: Path, sentence: str) -> str:
    """Return windows, saliency and frames of a sentence and of its negatives as HTML; raise as `Grounder` does."""
    [query] = checked([sentence])
    watched = _watched(run, video)
    notes, fills = list(watched.notes), list[dict[str, Any]]()
    try:
        fills = negatives_of(chosen_run(None, run).dataset, query)
        notes += [] if fills else ["No negatives: the sentence has no word that may be masked."]
    except PenumbraError as error:
        notes.append(f"No negatives: {error}.")
    negatives = {f"level {it['level']}": it["negative"] or "" for it in fills}
    problems = {f"level {it['level']}": it["problem"] for it in fills}
    sentences = {name: text for name, text in {"query": query, **negatives}.items() if text}
    results = dict(zip(sentences, _grounder(run).ask(watched, list(sentences.values())), strict=True))
    windows = {name: result.windows[:WINDOWS] for name, result in results.items()}
    # Rows of the table: name, words (marked if they differ from the query's), best windows, problem.
    rows = []
    for name, text in {"query": query, **negatives}.items():
        words = [(word, word != own) for word, own in zip(text.split(), query.split(), strict=False)]
        rows.append((name, words, windows.get(name, ()), problems.get(name) or ""))
    drawing = Markup(saliency_by_text(results).svg()) if results["query"].saliency else ""  # noqa: S704 (it is escaped)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(rows=rows, found=results, notes=notes, drawing=drawing)


def application(runs: dict[str, str], selected: str, folder: Path, urls: list[str], credential: str) -> ASGIApp:
    """Return the page as an application; raise `PenumbraError` if Gradio is not installed.

    `runs` are keys of runs by their names, `folder` holds the uploaded files, `urls` are the page's addresses, and
    `credential` is user:password or ''.
    """
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(folder), HF_HUB_DISABLE_TELEMETRY="1")
    try:
        import gradio
        from gradio import processing_utils
    except ImportError:
        raise PenumbraError("the demo app needs Gradio: pip install 'penumbra[app]'") from None

    async def refuse(url: str, cache_dir: str) -> str:
        raise gradio.Error("Upload the video: this page downloads nothing.", print_exception=False)

    processing_utils.async_ssrf_protected_download = refuse  # an uploaded file may name an address
    site, page = FastAPI(openapi_url=None), _page(gradio, runs, selected, folder)

    @site.middleware("http")
    async def guard(request: Request, answer: RequestResponseEndpoint) -> Response:
        """Refuse calls from pages of other origins and addresses to fetch, and send a content policy."""
        if request.headers.get("origin", urls[0]) not in urls or "=http" in request.url.path.lower():
            return PlainTextResponse("the request is refused", 403)
        response = await answer(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    look = gradio.themes.Default(primary_hue="indigo", font=["system-ui", "sans-serif"], font_mono=["monospace"])
    refused = dict.fromkeys(("run_history", "show_error", "ssr_mode", "enable_monitoring", "pwa", "mcp_server"), False)
    auth = tuple(credential.split(":", 1)) if credential else None
    options = {"footer_links": [], "max_file_size": LARGEST_FILE, "auth": auth, "theme": look, **refused}
    gradio.mount_gradio_app(site, page.queue(max_size=20), path="/", **options)
    page.has_launched = True  # as `launch` sets it: without it Gradio lets a request name any file of this machine
    return TrustedHostMiddleware(site, allowed_hosts=HOSTS, www_redirect=False)


def _page(gradio: Any, runs: dict[str, str], selected: str, folder: Path) -> Any:
    def ask(video: str | None, sentence: str, run: str) -> str:
        if not video or not Path(video).resolve().is_relative_to(folder.resolve()):
            raise gradio.Error("Choose a video file first.", print_exception=False)
        if len(sentence) > LONGEST_SENTENCE or check_query(sentence):  # a request may exceed the page's limit
            reason = f"Write an English sentence of at most {LONGEST_SENTENCE} characters."
            raise gradio.Error(reason, print_exception=False)
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


def serve_app(port: int, run: str | None) -> None:
    """Serve the page until Ctrl-C or SIGTERM; port 0 takes a free one. `run` is selected first; default: the newest.

    Raises `PenumbraError` if there is no such run, Gradio is not installed, or the port is taken.
    """
    import uvicorn

    credential = given_credential()
    trained = Store().find(None, "metrics")
    if not trained:
        raise Store().missing(None, "metrics")
    runs = {f"{name_of(it)} ({it.dataset})": it.key for it in reversed(trained)}
    selected = chosen_run(None, run).key if run else trained[-1].key
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="penumbra-demo-") as folder, listen(port) as listener:
        urls = addresses(listener.getsockname()[1])
        app = application(runs, selected, Path(folder), urls, credential)
        sys.stdout.write(f"Penumbra's demo app: {urls[0]}\nCtrl-C ends it.\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)  # open pages hold connections
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
