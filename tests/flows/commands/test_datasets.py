"""`penumbra init` and `penumbra check` on real files, and the parameters of one's own data set."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penumbra.artifacts.locations import DEPLOYMENTS
from penumbra.flows.deploy import all_deployments
from penumbra.flows.local_run import plan_flow, prepare
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.data.rows import training_queries
from tests.films import film
from tests.rows import json_lines
from tests.terminal import penumbra as run
from tests.terminal import printed, refusal

pytestmark = pytest.mark.usefixtures("datasets", "store")
ROWS = [
    {"text": f"a person {verb} the {noun}.", "t0": "0:01", "t1": "0:04.5", "clip": f"v{i}", "len": 30, "set": split}
    for i, (verb, noun, split) in enumerate(
        [("opens", "door", "train"), ("closes", "box", "training"), ("holds", "cup", "dev"), ("opens", "box", "test")]
    )
]


def table(folder: Path, rows: list[dict[str, Any]] = ROWS, without: str = "") -> str:
    path = folder / "own.csv"
    pd.DataFrame(rows).drop(columns=without.split()).to_csv(path, index=False)
    return str(path)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / "mine" / name).read_text().splitlines()]


def test_a_csv_becomes_a_data_set_that_build_negatives_takes(tmp_path: Path) -> None:
    assert "start: column 't0', by its name" in printed("init", "mine", "--from", table(tmp_path))
    assert [row["vid"] for row in lines(tmp_path, "train.jsonl")] == ["v0", "v1"]
    own = {"qid": "2", "query": "a person holds the cup.", "vid": "v2", "duration": 30.0}
    own |= {"relevant_windows": [[1.0, 4.5]], "source_row": "own.csv:4"}
    assert lines(tmp_path, "val.jsonl") == [own]
    assert "annotations" in printed("run", "build-negatives", "mine", "--dry-run")


def test_check_shows_an_example_of_each_rejection(tmp_path: Path) -> None:
    backwards = {**ROWS[0], "text": "a person sits down.", "t0": 20, "t1": 3}
    unread = {**ROWS[0], "text": "a person stands up.", "t1": "?"}
    shared = {**ROWS[3], "clip": "v0", "t1": 99}
    run("init", "mine", "--from", table(tmp_path, [*ROWS, backwards, unread, shared]))
    output = " ".join(run("check", "mine").output.split())
    assert "window ends before it begins" in output
    assert "[[20.0, 3.0]] of 30.0 s" in output
    assert "window is not two finite numbers" in output
    assert "window clipped to the video's end: 1 row" in output
    assert "also in train: 1 video of test: v0" in output


def test_check_counts_sentences_without_a_verb(tmp_path: Path) -> None:
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0
    assert "verb" not in run("check", "mine").output
    fragments = [{**ROWS[0], "text": "a red \u202ecar."}, {**ROWS[3], "text": "the kitchen"}]
    assert run("init", "mine", "--from", table(tmp_path, [*ROWS, *fragments]), "--force").exit_code == 0
    [line] = [line for line in run("check", "mine").output.splitlines() if "verb" in line]
    found = "note: no verb is found, and none replaced, in 2 of 6 different queries:"
    assert line.startswith(f"{found} own.csv:7: 'the kitchen'; own.csv:6: ")


@pytest.mark.parametrize("novel", [[], ["--novel"]])
def test_init_accounts_for_every_row_of_a_dirty_table(tmp_path: Path, novel: list[str]) -> None:
    dirty = [
        {**ROWS[0], "text": "a  person opens\u200b the door.\x07"},
        {**ROWS[1], "t0": 9, "t1": 12},
        {**ROWS[2], "text": "\u202e!"},
        {**ROWS[0], "text": "a \ud800 person opens it."},
        {**ROWS[1], "clip": "\ud800"},
    ]
    file = json_lines(tmp_path / "own.jsonl", [*ROWS, *dirty])
    output = " ".join(run("init", "mine", "--from", str(file), *novel).output.split())
    assert "2 merged with earlier rows of the same sentence and video: own.jsonl:5, own.jsonl:6" in output
    assert "query: control or format characters removed, rows: 2" in output
    assert "query: blanks between words made single spaces, rows: 1" in output
    for reason in ("query has no letter │ 1 │ own.jsonl:7", "query is no valid Unicode text │ 1 │ own.jsonl:8"):
        assert reason in output
    assert "own.jsonl:9" in output, "video id is rejected, too"
    written = "".join(path.read_text() for path in (tmp_path / "data" / "mine").glob("*.json*"))
    assert not any(character in written for character in ("\\u200b", "\u200b", "\\u0007", "\u202e"))


def test_only_usable_training_queries_are_counted_and_check_fails_without_one(tmp_path: Path) -> None:
    assert run("init", "mine", "--from", table(tmp_path, [*ROWS, {**ROWS[0], "text": "", "clip": "v9"}])).exit_code == 0
    assert training_queries(Dataset(name="mine")) == 2
    assert training_queries(Dataset(name="mine"), 1) == 1
    unusable = [{**row, "len": -1} for row in ROWS]
    assert run("init", "mine", "--from", table(tmp_path, unusable), "--force").exit_code == 1
    assert training_queries(Dataset(name="mine")) == 0
    assert run("check", "mine").exit_code == 1


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0  # the same rows again
    again = refusal("init", "mine", "--from", table(tmp_path, ROWS[:2], "set"), "--test", "0")
    assert "choose another name, or replace it with --force" in again
    assert len(lines(tmp_path, "val.jsonl")) == 1
    assert run("init", "mine", "--from", table(tmp_path, ROWS[:2], "set"), "--test", "0", "--force").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "data" / "mine").glob("*.json*")) == ["train.jsonl"]
    (tmp_path / "data" / "mine" / "my_train.jsonl").touch()
    assert "remove it first" in refusal("init", "mine", "--from", table(tmp_path), "--force")


def test_a_row_of_no_known_split_is_left_out_and_named(tmp_path: Path) -> None:
    done = run("init", "mine", "--from", table(tmp_path, [*ROWS, {**ROWS[0], "text": "a man sits.", "set": "trian"}]))
    assert "1 row left out, where column 'set' is not train, val, test: own.csv:6" in " ".join(done.output.split())
    assert [row["vid"] for row in lines(tmp_path, "train.jsonl")] == ["v0", "v1"]


@pytest.mark.parametrize(
    ("name", "changes", "arguments", "message"),
    [
        ("Mine", {}, [], "'Mine' is no name of a data set"),
        ("scenes", {}, [], "scenes is the shipped data set"),
        ("mine", {"set": "exam"}, ["--split", "set"], "does not hold train, val or test: "),
        ("mine", {"len": None}, [], "no duration is given, and there is no folder "),
        ("mine", {"set": "test"}, [], "no query is of split 'train'"),
        ("mine", {"set": None, "clip": "v0"}, [], "one video can't be both for training and for a test"),
    ],
)
def test_what_can_t_be_made_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, changes: dict[str, Any], arguments: list[str], message: str
) -> None:
    assert message in refusal("init", name, "--from", table(tmp_path, [row | changes for row in ROWS]), *arguments)
    assert not list(tmp_path.glob("data/*/*"))


def test_a_missing_duration_is_decoded_from_the_video(tmp_path: Path) -> None:
    videos = tmp_path / "films"
    videos.mkdir()
    for i in range(4):
        film(videos / f"v{i}.mp4", frames=10 + 10 * i, rate=10)
    words = ("init", "mine", "--from", table(tmp_path, without="len"), "--videos", str(videos))
    assert "duration: of 4 videos decoded" in run(*words).output
    assert [row["duration"] for row in lines(tmp_path, "train.jsonl")] == pytest.approx([1.0, 2.0])
    assert prepare("extract-features", "mine")[2]["videos"].folder == str(videos), "kept for its own flows"
    assert prepare("full-pipeline", "mine")[2]["features"].videos.folder == str(videos)
    (videos / "v3.mp4").write_bytes(b"no film")
    assert "v3.mp4 has no duration: file can't be opened as a video" in refusal(*words, "--force")
    (videos / "v3.mp4").unlink()
    assert "holds no file of video 'v3', and its rows have no duration" in refusal(*words, "--force")


def test_novel_splits_hold_out_words_and_pairs_of_them(tmp_path: Path) -> None:
    verbs, nouns = ["opens", "closes", "holds", "takes", "throws"], ["door", "box", "cup", "book", "bag", "lamp"]
    rows = [
        {"query": f"a person {verb} the {noun}.", "vid": f"{verb}-{noun}", "windows": "[[1, 2]]", "duration": 9}
        for verb in verbs
        for noun in nouns
    ]
    rows.append({"query": "a person paints a fence.", "vid": "rare", "windows": "[[1, 2], [3, 4]]", "duration": 9})
    words = ("init", "mine", "--from", table(tmp_path, rows), "--novel", "--test", "0.4")
    printed(*words)
    folder = tmp_path / "data" / "mine"
    files = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    training = {sentence for video in files.pop("train").values() for sentence in video["sentences"]}
    seen = {word.strip(".") for sentence in training for word in sentence.split()}
    assert files["novel_word"]["rare"]["news"] == [{"NOUN": ["fence"], "VERB": ["paint"]}] * 2
    assert files["novel_word"]["rare"]["timestamps"] == [[1.0, 2.0], [3.0, 4.0]]
    for vid, video in files["novel_composition"].items():
        verb, noun = vid.split("-")
        [[kind, [[_, second]]]] = video["novels"][0].items()
        assert (kind, second) == ("v-n", noun)
        assert {verb, noun} <= seen
        assert video["sentences"][0] not in training
    assert "composition" in run("check", "mine").output
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    printed(*words, "--force")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_a_data_set_has_parameters_and_deployments_of_its_own(tmp_path: Path) -> None:
    prefect = DEPLOYMENTS.read_bytes()
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0
    own = tmp_path / "data" / "mine" / "penumbra.yaml"
    flows = {one["tags"][0] for one in all_deployments() if one["name"] == "mine"}
    assert flows >= {"build-negatives", "full-pipeline"}
    own.write_text("build-negatives:\n  masking.ratios: [0.1, 0.2, 0.9]\n  candidates: 4\ntrain-grounding:\n")
    [deployed] = [one for one in all_deployments() if one["tags"] == ["build-negatives", "mine"]]
    assert deployed["name"] == "mine"
    assert deployed["entrypoint"] == "penumbra.flows.build_negatives.build_negatives"
    assert deployed["work_pool"] == {"name": "penumbra"}
    groups = {"masking": {"ratios": [0.1, 0.2, 0.9]}, "filling": {"candidates": 4}}
    assert deployed["parameters"] == {"dataset": {"name": "mine"}, **groups}
    taken = prepare("build-negatives", "mine")[2]
    assert (taken["masking"].ratios, taken["filling"].candidates) == ((0.1, 0.2, 0.9), 4)
    parameters = prepare("build-negatives", "mine", {"candidates": 8})[2]
    assert (parameters["masking"].ratios, parameters["filling"].candidates) == ((0.1, 0.2, 0.9), 8)
    assert run("init", "mine", "--from", table(tmp_path), "--force").exit_code == 0
    assert "candidates: 4" in own.read_text(), "what was edited stays"
    assert DEPLOYMENTS.read_bytes() == prefect


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("build-negative:\n  candidates: 4\n", "no flow 'build-negative'; did you mean build-negatives? there is: "),
        ("build-negatives:\n  candidate: 4\n", "did you mean filling.candidates?"),
        ("build-negatives: 4\n", "below 'build-negatives', has no NAME: VALUE lines"),
        ("build-negatives:\n  filling.openai.base_url: http://a.com/v1\n", "base_url decides who is paid or sent what"),
        ("full-pipeline: {filling: {gemini: {key_block: mine}}}\n", "key_block decides who is paid or sent what"),
        (
            "build-negatives: {filling.openai.price: {input: 0, output: 0}}\n",
            "price.input decides who is paid or sent what",
        ),
        ("build-negatives: {filling.providers: [corpus, openai]}\n", "providers decides who is paid or sent what"),
        ("build-negatives: {providers: gemini}\n", "providers decides who is paid or sent what"),
        ("train-grounding: {log: [wandb]}\n", "log decides who is paid or sent what"),
    ],
)
def test_a_mistake_in_a_data_set_s_own_file_is_reported(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0
    own = tmp_path / "data" / "mine" / "penumbra.yaml"
    own.write_text(text)
    refused = refusal("run", "build-negatives", "mine", "--dry-run")
    assert str(own) in refused
    assert message in refused
    assert "mine" not in {one["name"] for one in all_deployments()}
    assert message in capsys.readouterr().err, "and the others are served"


def test_a_dry_run_says_what_extraction_lacks_and_fails(tmp_path: Path) -> None:
    assert run("init", "mine", "--from", table(tmp_path)).exit_code == 0
    tiny = ["--param", "clip.encoder=tiny-clip"]
    for flow in "extract-features", "full-pipeline":
        assert run("run", flow, "mine", "--dry-run").exit_code == 1
        reasons = {key for stage, _, key in plan_flow(flow, "mine") if stage == "text_features"}
        assert any("first: encoder 'openai/clip-vit-base-patch32' can't be loaded" in reason for reason in reasons)
        assert run("run", flow, "mine", "--dry-run", *tiny).exit_code == 1
        reasons = {key for _, _, key in plan_flow(flow, "mine", {"clip.encoder": "tiny-clip"})}
        assert any("mine/videos of video files: name one with" in reason for reason in reasons)
        printed("run", flow, "mine", "--dry-run", *tiny, "--param", f"videos.folder={tmp_path}")
