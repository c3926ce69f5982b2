"""Text of unknown origin is escaped in markdown and in charts, which are well-formed SVG."""

import base64
import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from penumbra.artifacts.charts import Drawing, Line, Panel, panels
from penumbra.artifacts.markdown import bold, code, counted, markdown_table, plain
from tests.markup import HARMLESS, HOSTILE, columns, kinds

TEXTS = [
    HOSTILE,
    "[click](javascript:alert(1))",
    "![](http://a.example/seen)",
    "1|2",
    "<http://a.example>",
    "# title",
    "`` ` ```",
    "`a",
    "a\n\n<script>\n",
    "&#60;script&#62;",
]
SVG = "{http://www.w3.org/2000/svg}"
TITLE = '</svg><script>alert(1)</script> ](x) "a" \x00\ud800'
LINE = Line(TITLE, [(0, 1.0), (1, math.nan), (2, 3.0), (3, math.inf), (4, 2.0), (5, 2.5)], 1)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("write", [plain, bold, code])
def test_no_text_is_markup(text: str, write: Any) -> None:
    for page in (write(text), f"Found {write(text)}.", markdown_table(("a", "b"), [(write(text), text)])):
        assert kinds(page).keys() <= HARMLESS
        assert columns(page) <= {(2,)}


def test_a_count_has_its_unit_in_the_singular_or_plural() -> None:
    counts = [(1, "pair"), (2, "pair"), (0, "query"), (1360, "query"), (2, "box"), (2, "key"), (435, "query level")]
    shown = ["1 pair", "2 pairs", "0 queries", "1,360 queries", "2 boxes", "2 keys", "435 query levels"]
    assert [counted(*count) for count in counts] == shown


@pytest.mark.parametrize(
    "drawing",
    [
        panels(TITLE, [Panel(TITLE, [LINE], 0, 5, "s", [(1, 2)], [3])] * 3, 2, legend=True),
        panels("empty", [Panel("nothing", [Line("none", [])], 0, 0, "s")], 1),
    ],
)
def test_charts_are_well_formed_and_described(drawing: Drawing) -> None:
    head, _, data = drawing.image().removesuffix(")").partition("(data:image/svg+xml;base64,")
    assert head.startswith("![")
    assert head.endswith("]")
    assert not set(head[2:-1]) & set("[]()<>\n"), "the title would end the image"
    picture = ElementTree.fromstring(base64.b64decode(data))
    assert picture.attrib["role"] == "img"
    assert picture.attrib["aria-label"]
    assert not list(picture.iter(f"{SVG}script"))
    for node in picture.iter():
        for name in ("x", "y", "width", "height", "points", "x1", "x2", "y1", "y2"):
            assert "nan" not in node.attrib.get(name, "")
            assert "inf" not in node.attrib.get(name, "")
