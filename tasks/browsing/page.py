"""The page: template, style, script and data as one HTML file that asks for nothing else.

The data may come from anyone. They are compressed and in base64, so that none of their text is markup; the script
turns them into text nodes; and the page's policy lets only the page's own script run, and nothing be fetched.
"""

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent
SCRIPTS = ("words.js", "found.js", "rows.js", "review.js", "query.js", "page.js")  # one script, in this order


def write_page(data: Mapping[str, Any]) -> str:
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_own("page.html"))
    style, script = _own("page.css"), "".join(map(_own, SCRIPTS))
    return template.render(
        dataset=data["dataset"],
        verdict=data["verdict"],
        policy=policy(style, script),
        data=packed(data),
        style=Markup(style),  # noqa: S704 (files of this package)
        script=Markup(script),  # noqa: S704 (files of this package)
    )


def packed(data: Mapping[str, Any]) -> str:
    """Return the data as JSON, compressed, in base64; the same data give the same text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy: this style, this script, videos next to the page, and nothing else."""
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; media-src 'self' file:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
