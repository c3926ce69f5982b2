"""Charts are well-formed SVG with escaped text and values inside the picture."""

import base64
import math
import xml.etree.ElementTree as ElementTree

import pytest

from penumbra.artifacts.charts import Drawing, Line, Panel, panels

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</svg><script>alert(1)</script> ](x) "a" \x00\ud800'
LINE = Line(HOSTILE, [(0, 1.0), (1, math.nan), (2, 3.0), (3, math.inf), (4, 2.0), (5, 2.5)], 1)


def parsed(drawing: Drawing) -> ElementTree.Element:
    head, _, data = drawing.image().removesuffix(")").partition("(data:image/svg+xml;base64,")
    assert head.startswith("![")
    assert head.endswith("]")
    assert not set(head[2:-1]) & set("[]()<>\n"), "the title would end the image"
    return ElementTree.fromstring(base64.b64decode(data))


@pytest.mark.parametrize(
    "drawing",
    [
        panels(HOSTILE, [Panel(HOSTILE, [LINE], 0, 5, "s", [(1, 2)], [3])] * 3, 2, legend=True),
        panels("empty", [Panel("nothing", [Line("none", [])], 0, 0, "s")], 1),
    ],
)
def test_charts_are_well_formed_and_described(drawing: Drawing) -> None:
    picture = parsed(drawing)
    assert picture.attrib["role"] == "img"
    assert picture.attrib["aria-label"]
    assert not list(picture.iter(f"{SVG}script"))
    for node in picture.iter():
        for name in ("x", "y", "width", "height", "points", "x1", "x2", "y1", "y2"):
            assert "nan" not in node.attrib.get(name, "")
            assert "inf" not in node.attrib.get(name, "")
