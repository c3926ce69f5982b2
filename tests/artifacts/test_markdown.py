"""Text of unknown origin is escaped in markdown."""

from typing import Any

import pytest

from penumbra.artifacts.markdown import Markdown, bold, code, markdown_table, plain, printable
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


@pytest.mark.parametrize("text", TEXTS)
def test_code_is_shown_literally(text: str) -> None:
    from markdown_it import MarkdownIt

    [token] = [token for token in MarkdownIt("commonmark").parse(code(text)) if token.type == "inline"]
    assert [child.content for child in token.children or ()] == [printable(" ".join(text.split()))]


def test_markdown_is_not_escaped_again() -> None:
    assert plain(bold("a_b")) == "**a\\_b**"
    rows = markdown_table(("a",), [(Markdown("**b**"),), ("**c**",)]).splitlines()[2:]
    assert rows == ["| **b** |", "| \\*\\*c\\*\\* |"]
    assert markdown_table(("R1@0.5",), [("a_b",)], cell=str).splitlines()[::2] == ["| R1@0.5 |", "| a_b |"]
