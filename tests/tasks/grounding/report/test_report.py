"""The parts of a run's report: curves, and pages without foreign markup."""

import re

import pytest

from penumbra.artifacts.charts import Line, Panel, panels
from penumbra.artifacts.document import Document, Section, Table
from penumbra.tasks.grounding.training.logs import curves_section, headline
from tests.markup import HARMLESS, HOSTILE, columns, kinds

pytestmark = pytest.mark.slow


def metrics(name: str, values: list[float], split: str = "train") -> list[dict[str, object]]:
    return [{"epoch": n, "split": split, "name": name, "value": value} for n, value in enumerate(values, 1)]


def test_curves_have_a_panel_for_each_term_and_mark_the_best_epoch() -> None:
    found = [row for name in ("span", "total", "learning_rate", "seconds") for row in metrics(name, [3, 2, 1.0])]
    found += [row for name in ("mIoU", "mAP", "chosen_by") for row in metrics(name, [10, 30, 30.0], "validation")]
    assert headline(found) == "mIoU 30.00 on the validation queries, epoch 2", "the first of equals"
    judged, losses = curves_section(found).drawings
    titles = re.findall(r'font-weight="600"[^>]*>([^<]+)<', "".join(losses.body))
    assert titles == ["total", "span", "learning_rate"]
    assert "mIoU" in judged.description
    assert curves_section([]).text == ["No epoch was trained."]


def document() -> Document:
    table = Table(("what", HOSTILE), [(HOSTILE, "1.5"), ("a|b", "−2")], HOSTILE)
    drawing = panels(HOSTILE, [Panel(HOSTILE, [Line(HOSTILE, [(0, 1.0), (1, 2.0)])], 0, 1, "s")], 1, legend=True)
    shown, folded = Section(HOSTILE, [HOSTILE], [table], [drawing]), Section("folded", ["hidden"], folded=True)
    return Document(HOSTILE, HOSTILE, [shown, folded])


def test_the_html_is_one_file_in_which_no_text_is_markup() -> None:
    page = document().html()
    tags = re.findall(r"<([a-z]+)((?:\s+[\w:-]+(?:=\"[^\"]*\")?)*)\s*/?>", page)
    names = [name for name, _ in tags]
    assert "script" not in names
    assert not re.search(r"\son\w+=|(?:src|href)=\"(?!#|data:image/)", " ".join(found for _, found in tags))
    assert names.count("svg") == 1
    assert {"main", "nav", "details", "figcaption", "caption"} <= set(names)
    assert "default-src 'none'" in page, "a browser is told to fetch nothing"
    assert "&lt;script&gt;alert(1)&lt;/script&gt; it&#39;s" in page
    page.encode("utf-8")
    assert "\x00" not in page


def test_the_markdown_is_not_indented_and_no_text_is_markup() -> None:
    page = document().markdown()
    assert kinds(page).keys() <= HARMLESS | {"image"}
    assert all(len(table) == 1 for table in columns(page))
    assert "&#" not in page, "the Prefect UI shows character references as they are"
    written = "\n".join(line for line in page.splitlines() if not line.startswith("!["))
    assert not re.search(r"[^\\]@|http:/|www\.", written), "and makes links of addresses"
    assert not any(line.startswith((" ", "\t")) for line in page.splitlines())
    assert "hidden" not in page, "what is folded is for the file"
