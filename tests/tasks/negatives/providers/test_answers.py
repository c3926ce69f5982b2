"""The cache of paid answers: nothing is lost, whoever reads it and whenever a process is killed."""

import json
from dataclasses import asdict
from pathlib import Path

import diskcache
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.questions import Answer, Attempt, attempt_history, store
from tests.hosted import questions
from tests.terminal import started

WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from penumbra.tasks.negatives.providers.answers import Answers
answers = Answers(Path(sys.argv[1]))
for number in range(1_000_000):
    answers.put({f"q{number}-{place}": "x" * 3_000 for place in range(12)})
    print(number, flush=True)
"""


def test_each_question_of_a_request_finds_the_answer_and_its_place_in_it(tmp_path: Path) -> None:
    first, asked, key = Answers(tmp_path), questions(4), {"model": "m"}
    answer = Answer('{"1": "A", "7": "B\\ud800 🙂", "8": "A", "9": "C"}', "", "m-1", 100, 7, 2.0, "run", 3)
    store(first, asked[:3], key, answer)
    first.close()
    again = Answers(tmp_path)
    (one,), more = attempt_history(asked[0], key, again)
    assert one == Attempt(asked[0], {0: asked[0].options[0][0]}, "answer lacks a slot", answer, 1)
    assert more is not None
    (three,), _ = attempt_history(asked[2], key, again)
    assert (three.number, three.words) == (3, {1: asked[2].options[1][2], 2: asked[2].options[2][0]})
    assert attempt_history(asked[3], key, again) == ([], asked[3])
    assert again.get(f"offer {asked[1].offer}") == [list(words) for words in asked[1].options]


def test_a_cache_that_is_no_database_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(PenumbraError, match=r"cannot be opened \(file is not a database\).*PENUMBRA_ANSWERS"):
        Answers(tmp_path)


@pytest.mark.parametrize("kind", ["pickle", "no JSON", "a file outside"])
def test_a_row_that_penumbra_did_not_write_is_refused_and_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret.json").write_text('"secret"')
    with diskcache.Cache(str(tmp_path / "answers")) as cache:
        cache["question q"] = {"a": Path("pickled")} if kind == "pickle" else "rubbish"
        if kind == "a file outside":
            cache._sql("UPDATE Cache SET mode = 3, filename = '../secret.json', value = NULL")
    with pytest.raises(PenumbraError, match="a row that Penumbra did not write"):
        Answers(tmp_path / "answers").get("question q")


def test_a_cache_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It wrote more about an answer, and long values into files; an answer that is gone is asked again."""
    key, (first, second) = {"model": "m"}, questions(2)
    answer = asdict(Answer('{"1": "A"}', "", "m-1", 10, 1, 0.5, "run", 1)) | {"finish": "stop", "padding": "x" * 50_000}
    with diskcache.Cache(str(tmp_path)) as cache:
        for question, name in ((first, "n"), (second, "gone")):
            row = {"answer": name, "number": 1, "first": 1, "asker": question.asker}
            cache[f"question {question.key(key)}"] = json.dumps(row)
        cache["answer n"] = json.dumps(answer)
        assert list((tmp_path).rglob("*.val"))
    answers = Answers(tmp_path)
    assert attempt_history(first, key, answers)[0][0].answer == Answer('{"1": "A"}', "", "m-1", 10, 1, 0.5, "run", 1)
    assert attempt_history(second, key, answers) == ([], second)


def test_what_was_stored_survives_kill_9_and_an_answer_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    process = started(WRITE_UNTIL_KILLED, str(tmp_path))
    kept = [int(process.stdout.readline()) for _ in range(17)]
    process.kill()
    kept += [int(line) for line in process.communicate()[0].splitlines()]
    answers = Answers(tmp_path)
    assert all(answers.get(f"q{number}-{place}") for number in kept for place in range(12))
    cut = [answers.get(f"q{len(kept)}-{place}") is not None for place in range(12)]
    assert all(cut) or not any(cut)
