"""The page in a browser: search, filters, order, keyboard, speed, and hostile data."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import Store
from penumbra.tasks.browsing.page import gather, write_page
from penumbra.tasks.negatives.reviewing import read_review
from tests.browser import Page, browser, needs_chromium
from tests.films import film
from tests.rows import DATASET, annotation, build, negative, prediction, run_of

pytestmark = [needs_chromium, pytest.mark.slow]

HOSTILE = "</script></template><img src=http://x.test/a onerror=alert(1)><script>hacked=1</script> =cmd|' /C calc'!A0 "
HOSTILE += "<a href=javascript:hacked=1>\u202egnp.\u202c \u2067 \x00\x07 {{7*7}} \" onload=alert(2) ' \ud7ff &lt;"
HUGE = "a very long word " * 20_000 + "x" * 50_000
MANY = 10_000
KEYS = {key: ord(key.upper()) for key in "arejk"} | {"Enter": 13, "Escape": 27, "/": 191}
KEYS |= {"End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
WIDE, NARROW = (1600, 1000), (400, 800)
EVIL = "</script><img src=x onerror=alert(1)>\u2028{{7*7}}"


class Shown:
    def __init__(self, tab: Page, file: Path, width: int = 1600, height: int = 1000) -> None:
        self.tab = tab
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        for domain in ("Page", "Network", "Log", "Runtime"):
            tab.call(f"{domain}.enable")
        tab.events.clear()
        tab.open(file.as_uri())
        tab.wait_for(
            f"location.pathname == {json.dumps(file.as_posix())} && document.documentElement.dataset.ready == 'yes'"
        )
        self.settle()

    def __call__(self, script: str) -> Any:
        return self.tab.evaluate(script)

    def settle(self) -> None:
        self("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def texts(self, selector: str) -> list[str]:
        return self(f"[...document.querySelectorAll({json.dumps(selector)})].map(it => it.textContent)")

    def queries(self) -> list[str]:
        return self.texts(".row .query")

    def choose(self, name: str, value: str) -> None:
        """Choose from a menu, as a hand does."""
        assert (
            self(f"""(() => {{ const menu = document.getElementById('filters').elements[{json.dumps(name)}];
            menu.value = {json.dumps(value)}; menu.dispatchEvent(new Event('change'));
            return menu.value; }})()""")
            == value
        )
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.press(key, KEYS[key])
        self.settle()

    def chosen(self) -> str:
        """The query that is chosen, for eyes and for ears alike."""
        [text] = self.texts(".row[aria-selected=true] .query")
        active = "document.getElementById('list').getAttribute('aria-activedescendant')"
        assert self(f"document.querySelector('.row[aria-selected=true]').id == {active}")
        assert self("document.querySelector('#detail h2').textContent") == text
        return text

    def events(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.tab.events if event["method"] == method]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def written(store: Store, folder: Path, *runs: str) -> Path:
    file = folder / "page.html"
    file.write_text(write_page(gather(store, DATASET, (), runs, folder)), encoding="utf-8")
    return file


def some(store: Store) -> list[str]:
    """Negatives of two queries, one of which lacks a level, and two runs on two others; returns the runs' keys."""
    novel = [{"type": "v-n", "words": ["shut", "box"]}]
    queries = [
        annotation("a1", "a person opens the door."),
        annotation("b1", "a dog sleeps on the mat."),
        annotation("c1", "a person shuts the box.", "composition", novel=novel),
        annotation("d1", "a cup falls.", "test"),
    ]
    annotations = build(store, "annotations", queries)
    rows = [
        negative("a1", 1, "a person shuts the door.", similarity=0.8),
        negative("a1", 2, "a cow shuts the door."),
        negative("a1", 3, "a cow shuts the moon."),
        negative("b1", 1, "a dog wakes on the mat.", similarity=0.6),
        negative("b1", 3, "a cat wakes on the sofa.", similarity=0.1, provider="openai"),
    ]
    build(store, "negatives", rows, (annotations,), [("b1", "leaks a test query", "level 2: a dog runs on the mat.")])
    good, bad = (5.0, 10.0, 0.9), (12.0, 15.0, 0.4)
    first = run_of(store, annotations, [prediction("c1", [good, bad], [0.1, 2.0, 0.3]), prediction("d1", [bad])])
    asked = [("c1", "near real", "a dog <i>sleeps", 0.12), ("c1", "another video", "a cup falls.", 0.61)]
    rows = [prediction("c1", [bad]) | {"existence": 0.7}, prediction("d1", [good])]
    return [first, run_of(store, annotations, rows, seed=1, asked=asked)]


@pytest.fixture(scope="module")
def usual(module_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(module_store, tmp_path_factory.mktemp("usual"), *some(module_store))


class TestUsual:
    """Two queries with negatives and two with predictions."""

    @pytest.fixture
    def page(self, tab: Page, usual: Path) -> Shown:
        page = Shown(tab, usual)
        [told], splits = page.texts("#count"), ("composition, test", "test, composition")
        assert told in [f"2 of 4 queries · with predictions · split {several}" for several in splits]
        page.choose("which", "")
        page("document.getElementById('list').focus()")
        return page

    def test_a_query_is_shown_with_its_negatives_and_its_rejections(self, page: Shown) -> None:
        assert page.queries()[0] == "a person opens the door."
        lines = ["a person shuts the door.", "a cow shuts the door.", "a cow shuts the moon."]
        assert page.texts("#row-0 .line .text") == lines
        assert page.texts("#row-0 .cosine") == ["0.80", "0.50", "0.25"]
        assert page.texts("#row-1 .level") == ["1", "3", "2"]
        assert page.texts("#row-1 .refused") == ["negatives: leaks a test query"]
        assert page("document.querySelector('#row-0 .bar i').style.left") == "25%"
        assert page("document.querySelector('#row-0 .bar i').style.width") == "25%"
        assert page.texts("#count") == ["4 queries · split train, composition, test"]
        assert page.texts("#row-0 mark") == ["shuts", "cow shuts", "cow shuts", "moon"]
        assert page.texts("#row-0 .was") == ["person opens", "door"], "the words that the last level changes"

    @pytest.mark.parametrize(
        ("name", "value", "rows"),
        [
            ("split", "test", [3]),
            ("level", "2", [0]),
            ("provider", "openai", [1]),
            ("novel", "v-n", [2]),
            ("which", "partly", [1]),
            ("which", "refused", [1]),
            ("which", "predicted", [2, 3]),
            ("order", "far", [1, 0, 2, 3]),
            ("order", "best 0", [2, 3, 0, 1]),
            ("order", "loss", [2, 3, 0, 1]),
        ],
    )
    def test_menus_filter_and_sort(self, page: Shown, name: str, value: str, rows: list[int]) -> None:
        every = page.queries()
        page.choose(name, value)
        assert page.queries() == [every[row] for row in rows]
        assert page.chosen() == every[rows[0]]

    def test_words_are_found_in_queries_negatives_and_ids(self, page: Shown) -> None:
        for typed, rows in (("MOON", 1), ("the door", 1), ("a dog", 1), ("c1", 1), ("zebra", 0), ("", 4)):
            page.press("/")
            page(f"document.execCommand('{'insertText' if typed else 'delete'}', false, {json.dumps(typed)})")
            page.settle()
            assert len(page.queries()) == rows, typed
            assert page("document.getElementById('none').hidden") is (rows > 0)
            page.press("Enter")

    def test_by_keyboard_alone(self, page: Shown) -> None:
        first, second, _, last = page.queries()
        assert page("document.activeElement.id") == "list"
        for keys, query in ((["ArrowDown"], second), (["End", "j"], last), (["Home", "k"], first)):
            page.press(*keys)
            assert page.chosen() == query
        page.press("Enter")
        assert page("document.activeElement.id") == "detail"
        page.press("j")
        assert page.chosen() == second, "the keys also work in the query's own page"
        page.press("Escape", "/")
        assert page("document.activeElement.id") == "words"
        page.tab.type("box")
        page.press("Escape")
        assert page("document.getElementById('words').value") == ""
        page.press("Escape")
        assert page("document.activeElement.id") == "list"
        assert page("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus is to be seen"
        assert page("[...document.querySelectorAll('.row')].every(it => it.role == 'option' && it.ariaSetSize == '4')")

    def test_two_runs_are_compared(self, page: Shown) -> None:
        page.choose("which", "predicted")
        assert [text.split(" ", 1)[1] for text in page.texts("#row-0 .number")] == ["1.00", "0.00"]
        assert page.texts("#detail .windows li")[:2] == ["5.0 – 10.0 s0.900", "12.0 – 15.0 s0.400"]
        false = ["near real: a dog <i>sleeps0.12 not in this video", "another video: a cup falls.0.61"]
        assert page.texts("#detail .windows li")[3:] == false
        assert "existence 0.70" in page.texts("#detail .card")[1]
        assert page("document.querySelectorAll('#detail .saliency path').length") == 1
        assert page("document.querySelectorAll('#detail .lane').length") == 3


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_hostile_texts_do_nothing(
    store: Store, tmp_path: Path, tab: Page, datasets: Path, size: tuple[int, int]
) -> None:
    novel = [{"type": HOSTILE, "words": [HOSTILE]}]
    queries = [
        annotation(HOSTILE, HOSTILE, HOSTILE, vid=HOSTILE, novel=novel),
        annotation("h", HUGE, vid="../../etc/passwd"),
        annotation("e", "", vid="javascript:alert(1)"),
    ]
    annotations = build(store, "annotations", queries)
    rows = [
        negative(qid, level, text, provider=HOSTILE, model=HOSTILE, checks=[HOSTILE])
        for qid, text in ((HOSTILE, HOSTILE[::-1]), ("h", HUGE[5:]))
        for level in (1, 2, 3, 100)
    ]
    refused = [(qid, HOSTILE, text) for qid in (HOSTILE, "nobody") for text in (HOSTILE, f"level 2: {HUGE}")]
    build(store, "negatives", rows, (annotations,), refused)
    page = Shown(tab, written(store, tmp_path), *size)
    page.choose("which", "")
    for row in range(4):
        page(f"document.getElementById('row-{row}').click()")
        page.settle()
        assert page("document.documentElement.scrollWidth") <= size[0]
        page.press("Escape")
    for menu in ("split", "provider", "novel"):
        value = page(f"document.getElementById('filters').elements.{menu}?.options[1].value ?? ''")
        assert value == ("" if menu == "provider" else HOSTILE)
        if value:
            page.choose(menu, value)
            assert HOSTILE[:60] in page.queries()[0]
            page.choose(menu, "")
    foreign = (
        "img, iframe, object, embed, link, a, form:not(#filters), video, style ~ style, body script:not(:last-child)"
    )
    assert page(f"document.querySelectorAll({json.dumps(foreign)}).length") == 0
    assert page("typeof hacked") == "undefined"
    assert page.events("Page.javascriptDialogOpening") == []
    asked_for = {event["request"]["url"] for event in page.events("Network.requestWillBeSent")}
    assert asked_for == {(tmp_path / "page.html").as_uri()}
    assert page.events("Log.entryAdded") == [], "the policy had nothing to refuse"
    assert page.events("Runtime.exceptionThrown") == []


class TestReview:
    """A reviewer judges by keys and by mouse; the browser keeps the verdicts, and the command takes the file."""

    @pytest.fixture
    def file(self, store: Store, tmp_path: Path) -> Path:
        texts = {"a1": "a person opens the door.", "b1": "no negative.", "c1": EVIL}
        queries = [annotation(qid, text) for qid, text in texts.items()]
        annotations = build(store, "annotations", queries)
        tags = build(store, "tags", [{"qid": row["qid"], "tokens": []} for row in queries])
        rows = [negative("a1", 1, "a person shuts the door.", queries[0]["query"])]
        rows += [negative("a1", level, f"a cow {level}", queries[0]["query"]) for level in (2, 3)]
        rows += [negative("c1", level, f"{EVIL} {level}", EVIL) for level in (1, 2)]
        others = [build(store, stage, []) for stage in ("masks", "dictionary", "fills", "embeddings")]
        build(store, "negatives", rows, (annotations, tags, *others))
        return written(store, tmp_path)

    def focused(self, page: Shown) -> str:
        [text] = page.texts(".card.focused .full")
        return text

    def downloaded(self, page: Shown, folder: Path) -> list[dict[str, Any]]:
        page.tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        page("document.getElementById('reviewer').value = ''")
        page("document.getElementById('save').click()")
        assert page.texts("#kept") == ["Type your name first: the file names its reviewer."]
        assert page("document.activeElement.id") == "reviewer"
        page.tab.type("ann")
        page("document.getElementById('save').click()")
        [told] = page.texts("#kept")
        file = folder / told.rpartition(" ")[2]
        deadline = time.monotonic() + 30
        while not file.is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]

    def test_by_keys_and_by_mouse(self, store: Store, tab: Page, file: Path, tmp_path: Path) -> None:
        page = Shown(tab, file)
        assert page.queries() == ["a person opens the door.", EVIL], "it opens on those with negatives"
        assert page.texts("#count") == ["2 of 3 queries · with negatives · split train"]
        assert page("document.getElementById('save').disabled") is True
        assert "a accept, r reject, e edit" in page.texts("#review span")[0]
        page.press("a", "r", "e")
        assert page("document.activeElement.className") == "rewrite"
        page("document.activeElement.value = ''")
        page.tab.type("a cow reads <b>r</b>.")
        page.press("Enter")
        assert self.focused(page) == f"{EVIL} 1", "on to the next query's"
        assert page.texts("#verdicts") == ["1 accepted, 1 rejected, 1 edited"]
        assert page.texts("#row-0 .verdict") == ["✓ ", "✗ ", "✎ "]
        page("document.querySelectorAll('.card')[1].querySelector('.reject').click()")
        page.press("ArrowLeft")
        assert self.focused(page) == f"{EVIL} 1"
        page.press("e")
        page.tab.type(" nothing")
        page.press("Escape")
        assert page.texts("#verdicts") == ["1 accepted, 2 rejected, 1 edited"], "an edit that is given up is none"
        page.press("a", "ArrowLeft", "a")
        assert page.texts("#verdicts") == ["1 accepted, 2 rejected, 1 edited"], "the same key again takes it back"
        header, *rows = self.downloaded(page, tmp_path)
        key = store.newest(DATASET, "negatives").key
        expected = {"dataset": DATASET, "stage": "negatives", "key": key, "reviewer": "ann"}
        assert {name: header[name] for name in expected} == expected
        given = [(row["qid"], row["level"], row["negative"], row["verdict"], row.get("edited")) for row in rows]
        assert given == [
            ("a1", 1, "a person shuts the door.", "accept", None),
            ("a1", 2, "a cow 2", "reject", None),
            ("a1", 3, "a cow 3", "edit", "a cow reads <b>r</b>."),
            ("c1", 2, f"{EVIL} 2", "reject", None),
        ]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", row["time"]) for row in rows)
        assert page("document.querySelectorAll('#detail b, #detail img, #rows b').length") == 0
        assert page.events("Runtime.exceptionThrown") == page.events("Log.entryAdded") == []
        again = Shown(tab, file)
        assert again.texts("#verdicts") == ["1 accepted, 2 rejected, 1 edited"], "the browser keeps them"
        assert again("document.getElementById('reviewer').value") == "ann"
        review = read_review(store, next(tmp_path.glob("*.review.jsonl")), DATASET)
        assert [row["verdict"] for row in review.rows] == ["accept", "reject", "edit", "reject"]


def test_ten_thousand_queries_stay_fluid(store: Store, tmp_path: Path, tab: Page) -> None:
    queries = [annotation(f"q{n}", f"person {n} opens the {n % 97} doors of a house.") for n in range(MANY)]
    rows = [
        negative(f"q{n}", level, f"person {n} shuts the {n % 89} doors of a {level}.", similarity=n / MANY)
        for n in range(MANY)
        for level in (1, 2, 3)
    ]
    build(store, "negatives", rows, (build(store, "annotations", queries),))
    file = written(store, tmp_path)
    assert file.stat().st_size < 1_000_000
    page = Shown(tab, file)
    assert page("document.getElementById('list').scrollHeight") > 100 * MANY
    most = page("""(async () => {
        const list = document.getElementById('list'), frame = () => new Promise(requestAnimationFrame);
        let most = 0;
        for (let step = 0; step <= 100; step++) {
            list.scrollTop = step * list.scrollHeight / 100;
            await frame(); await frame();
            const rows = [...document.querySelectorAll('.row')].map(row => row.getBoundingClientRect());
            const seen = list.getBoundingClientRect();
            const top = Math.min(...rows.map(it => it.top)), bottom = Math.max(...rows.map(it => it.bottom));
            if (top > seen.top || bottom < seen.bottom - 1) throw new Error('a gap at ' + list.scrollTop);
            most = Math.max(most, rows.length);
        }
        return most;
    })()""")
    assert most < 40, "only what is in sight is drawn"
    page.press("End")
    assert page.chosen() == queries[-1]["query"]


def test_a_video_jumps_to_the_window(store: Store, tmp_path: Path, tab: Page, datasets: Path) -> None:
    videos = datasets / DATASET / "videos"
    videos.mkdir(parents=True)
    film(videos / "v 1.mp4", frames=80, rate=10)
    one = annotation("a1", "one", vid="v 1", duration=8.0, windows=[[2.5, 4.0], [6.0, 7.0]])
    build(store, "negatives", [], (build(store, "annotations", [one, annotation("b1", "two")]),))
    page = Shown(tab, written(store, tmp_path))
    page.tab.wait_for("document.querySelector('video').readyState >= 2")
    assert page("document.querySelector('video').currentTime") == pytest.approx(2.5, abs=0.11)
    page("document.querySelectorAll('.lane button')[0].click()")  # the last window lies lowest
    page.tab.wait_for("document.querySelector('video').currentTime >= 6")
    page.press("j")
    assert page("document.querySelector('video')") is None, "a missing file is not offered"
