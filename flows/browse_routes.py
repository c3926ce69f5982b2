"""The pages of `penumbra browse` on the server of `penumbra serve`: /browse, /browse/DATASET, and the videos beside it.

They show anyone's data, so they ask for the server's credential, as its API does; a browser asks its user for it.
`?run=` and `?provider=`, which may be repeated, are the command's options.
"""

import secrets
from base64 import b64encode
from collections.abc import Callable

from jinja2 import Template
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import NAME

LIST = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Penumbra: data sets</title>
<h1>Queries and their negatives</h1>
<ul>
{% for name in datasets %}<li><a href="/browse/{{ name }}">{{ name }}</a></li>
{% else %}<li>none yet: run build-negatives/scenes</li>
{% endfor %}
</ul>
"""


def browse_routes(credential: str) -> list[Route]:
    """Where the pages are, for who knows the credential (user:password)."""
    routes = (("/browse", _datasets), ("/browse/{dataset}", _page), ("/browse/{dataset}/videos/{file}", _video))
    return [Route(path, _guarded(endpoint, credential)) for path, endpoint in routes]


def _guarded(endpoint: Callable[[Request], Response], credential: str) -> Callable[[Request], Response]:
    """The endpoint behind HTTP's own question for user and password; what is not there is told in a line."""
    expected = b"Basic " + b64encode(credential.encode())

    def answer(request: Request) -> Response:
        if not secrets.compare_digest(request.headers.get("authorization", "").encode(), expected):
            return PlainTextResponse(
                "it asks for the credential that `penumbra serve` told",
                401,
                {"WWW-Authenticate": 'Basic realm="Penumbra", charset="UTF-8"'},
            )
        try:
            return endpoint(request)
        except PenumbraError as error:
            return PlainTextResponse(str(error), 404)

    return answer


def _datasets(_: Request) -> Response:
    from penumbra.artifacts.store import Store

    names = sorted({manifest.dataset for manifest in Store().find(stage="negatives")})
    return HTMLResponse(Template(LIST, autoescape=True).render(datasets=names))


def _page(request: Request) -> Response:
    from penumbra.artifacts.store import Store
    from penumbra.tasks.browsing.gather import gather
    from penumbra.tasks.browsing.page import write_page

    asked = request.query_params
    data = gather(Store(), request.path_params["dataset"], asked.getlist("provider"), asked.getlist("run"), None)
    return HTMLResponse(write_page(data))


def _video(request: Request) -> Response:
    from penumbra.tasks.data.dataset import videos_of
    from penumbra.tasks.features.files import VideoFolder

    dataset, name = request.path_params["dataset"], request.path_params["file"]
    folder = videos_of(dataset)
    found = VideoFolder(folder).find(name) if NAME.match(dataset) and folder.is_dir() else None
    return FileResponse(found) if found else PlainTextResponse("no such video", 404)
