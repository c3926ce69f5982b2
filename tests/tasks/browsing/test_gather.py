"""The columns of the page, from artifacts, and its policy."""

import re
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.browsing.page import gather, policy, write_page
from penumbra.tasks.grounding.evaluation.figures import scores_by_split
from tests.markup import HOSTILE
from tests.rows import DATASET, annotation, build, filled, negative, prediction, run_of

QUERIES = [
    annotation("a1", "a person opens the door."),
    annotation("b1", "a dog sleeps.", duration=8.5, windows=[[1.25, 2.0], [4.0, 6.0]]),
    annotation("c1", "a person shuts the box.", "composition", novel=[{"type": "v-n", "words": ["shut", "box"]}]),
    annotation("d1", "nobody knows when.", "test", windows=[]),
]


@pytest.fixture
def annotations(store: Store) -> Artifact:
    return build(store, "annotations", QUERIES, rejected=[("e1", "query is no text", "9"), ("a1", "id is there", "x")])


@pytest.fixture
def negatives(store: Store, annotations: Artifact) -> Artifact:
    rows = [
        negative("b1", 1, "a cat sleeps."),
        negative("a1", 3, "a cow eats the moon.", plausibility=None),
        negative("a1", 1, "a person shuts the door."),
        negative("a1", 2, "a person shuts the box."),
    ]
    refused = [("b1", "no candidate is left", "level 2: a dog sleeps."), ("b1", "leaks", "level 3: other words")]
    return build(store, "negatives", rows, (annotations,), refused)


def shown(store: Store, *runs: str, providers: tuple[str, ...] = (), folder: Path = Path()) -> dict[str, Any]:
    return gather(store, DATASET, providers, runs, folder)


def decoded(column: dict[str, Any]) -> list[Any]:
    return [column["values"][code] for code in column["codes"]]


def test_rows_are_in_the_order_of_the_queries_then_what_was_rejected_first(store: Store, negatives: Artifact) -> None:
    data = shown(store)
    queries, [table], refused = data["queries"], data["negatives"], data["refused"]
    assert queries["qid"] == ["a1", "b1", "c1", "d1", "e1"]
    assert decoded(queries["text"]) == [*(row["query"] for row in QUERIES), ""]
    assert decoded(queries["split"]) == ["train", "train", "composition", "test", ""]
    assert queries["duration"] == [2000, 850, 2000, 2000, 0]
    assert queries["windows"] == [[500, 1000], [125, 200, 400, 600], [500, 1000], [], []]
    assert decoded(queries["novel"])[2:4] == [(("v-n", ("shut", "box")),), ()]
    assert (table["count"], table["level"]) == ([3, 1, 0, 0, 0], [1, 2, 3, 1])
    texts = ["a person shuts the door.", "a person shuts the box.", "a cow eats the moon.", "a cat sleeps."]
    assert decoded(table["text"]) == texts
    assert table["cosine"] == [750, 500, 250, 750]
    assert table["plausibility"] == [-50, -50, None, -50]
    assert decoded(table["checks"]) == [("template",)] * 4
    assert table["key"] == f"negatives/{negatives.key}"
    assert (refused["count"], refused["level"]) == ([1, 2, 0, 0, 1], [0, 2, 3, 0])
    assert decoded(refused["reason"]) == ["id is there", "no candidate is left", "leaks", "query is no text"]
    assert decoded(refused["stage"]) == ["annotations", "negatives", "negatives", "annotations"]
    assert decoded(refused["value"]) == ["x", "", "other words", "9"], "a query is not repeated"


def test_a_provider_has_its_negatives_or_its_first_fills(store: Store, annotations: Artifact) -> None:
    fills = [filled("a1", 1, None), filled("a1", 1, "one"), filled("a1", 1, "two")]
    fills += [filled("b1", 2, "three"), filled("b1", 2, "four"), filled("b1", 3, None)]
    drawn = build(store, "fills", fills, (annotations,), parameters={"provider": "openai"})
    build(store, "negatives", [negative("a1", 1, "of corpus")], (annotations,))
    both = [negative("a1", 1, "mixed"), negative("a1", 2, "mixed", provider="openai")]
    build(store, "negatives", both, (annotations, drawn))
    openai, corpus = shown(store, providers=("openai", "corpus"))["negatives"]
    assert (openai["name"], decoded(openai["text"])) == ("openai, first fills", ["one", "three"])
    assert openai["level"] == [1, 2]
    assert openai["cosine"] == [None, None]
    assert (corpus["name"], decoded(corpus["text"])) == ("corpus", ["of corpus"])
    with pytest.raises(ArtifactError, match=r"by 'opena': did you mean openai\? there is: corpus, openai"):
        shown(store, providers=("opena",))


def test_the_verdict_of_the_quality_report_is_at_the_top(store: Store, negatives: Artifact) -> None:
    assert "verdict" not in re.findall(r'id="(\w+)"', write_page(shown(store)))
    usual = {"provider": "all", "metric": "verdict"}
    figures = [{**usual, "level": level, "value": 1.0 + level // 3} for level in (1, 2, 3)]
    build(store, "quality", figures, (negatives,))
    page = write_page(shown(store))
    assert "Negatives: levels 1 and 2: near random; level 3: less natural than the queries</p>" in page


def test_predictions_of_two_runs_have_the_scores_of_the_evaluation(store: Store, annotations: Artifact) -> None:
    many = [(float(n), n + 2.0, 0.9 - n / 10) for n in range(7)]
    first = run_of(store, annotations, [prediction("c1", [(4.0, 9.0, 0.9)], [0.5, -1, 2.0]), prediction("a1", many)])
    second = run_of(store, annotations, [prediction("d1", [(0.0, 1.0, 0.1)]), prediction("c1", [])], seed=1)
    data = shown(store, first, second[:6])
    one, other = data["runs"]
    assert data["negatives"] == [], "a run can be looked at where there are no negatives"
    assert one["count"] == [1, 0, 1, 0, 0]
    assert one["windows"][1:] == [[400, 900]]
    assert len(one["windows"][0]) == 10, "the five best"
    assert one["scores"][0] == [900, 800, 700, 600, 500]
    predictions = store.reference(store.find(DATASET, "predictions")[0])
    scores = scores_by_split(predictions)["test"]["mIoU"]
    assert one["iou"] == [round(10 * value) for value in scores.tolist()]
    assert other["count"] == [0, 0, 1, 1, 0]
    assert other["iou"] == [None, None], "one has no prediction, the other no truth"
    assert one["saliency"][1] == [500, -1000, 2000]
    assert other["saliency"] == [[], []]
    assert one["name"].startswith("qd_detr-" + first[:6])


def test_only_videos_of_the_folder_are_linked(store: Store, tmp_path: Path, datasets: Path) -> None:
    videos = datasets / DATASET / "videos"
    videos.mkdir(parents=True)
    for name in ("there.mp4", "a b#?'\".webm"):
        (videos / name).touch()
    (tmp_path / "secret.mp4").touch()
    (videos / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    vids = ["there", "../../../secret", str(tmp_path / "secret"), "link", "", "..", "a b#?'\"", "absent"]
    rows = [annotation(f"q{number}", "a query", vid=vid) for number, vid in enumerate(vids)]
    build(store, "negatives", [], (build(store, "annotations", rows),))
    links = shown(store, folder=tmp_path / "pages & more")["videos"]
    assert links["folder"] == "../data/mine/videos/"
    assert links["files"] == ["there.mp4", None, None, None, None, None, "a%20b%23%3F%27%22.webm", None]


def test_the_page_s_policy_knows_its_own_style_and_script_alone(store: Store) -> None:
    build(store, "negatives", [], (build(store, "annotations", [annotation("a1", f"{HOSTILE[:-1]} abracadabra")]),))
    page = write_page(shown(store))
    assert "abracadabra" not in page, "no text of the data is in the markup"
    assert page.count("</script>") == 2
    style, script = re.findall(r"<style>(.*?)</style>|<script>(.*?)</script>", page, re.DOTALL)
    header = page.split('Content-Security-Policy" content="')[1].split('"')[0].replace("&#39;", "'")
    assert header == policy(style[0], script[1])
    assert header.startswith("default-src 'none'; script-src 'sha256-")
    for name in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch("):
        assert name not in script[1]
    assert set(re.findall(r"https?://[^\s'\"]+", page)) == {"http://www.w3.org/2000/svg"}
