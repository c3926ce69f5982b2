"""Text of unknown origin is escaped in markdown."""

from typing import Any

import pytest

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
