"""The cache of paid answers: nothing is lost, whatever fills it up, reads it or is killed in the middle."""

import json
import os
import sqlite3
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import diskcache
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.negatives.providers.answers import Answer, Answers, CacheEntry, QuestionSlot


def answer(text: str | None = "{}", questions: int = 3, **more: object) -> Answer:
    values = {
        "problem": "",
        "model": "m-1",
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "cost_usd": 0.001,
        "run": "r",
    }
    return Answer(text=text, questions=questions, **(values | more))  # type: ignore[arg-type]


def places(*keys: str) -> list[QuestionSlot]:
    """Questions of three slots in one request."""
    return [
        QuestionSlot(key, 3 * turn + 1, f"asker of {key}", f"offer {key}", [["a", "b"]])
        for turn, key in enumerate(keys)
    ]


def test_each_question_of_a_request_finds_the_answer_and_its_place_in_it(tmp_path: Path) -> None:
    given_answer = answer('{"1": "A\\ud800 🙂"}', cost_usd=2.0)
    first = Answers(tmp_path)
    first.keep(places("a", "b", "c"), given_answer)
    first.close()
    again = Answers(tmp_path)
    assert again.find("a") == CacheEntry(given_answer, 1, 1, "asker of a")
    assert again.find("c") == CacheEntry(given_answer, 3, 7, "asker of c")
    assert again.find("d") is None
    assert (again.offered("offer a"), again.offered("offer d")) == ([("a", "b")], None)


def test_nothing_is_evicted_however_full_it_is(tmp_path: Path) -> None:
    answers = Answers(tmp_path)
    assert answers.cache.size_limit > 1 << 50
    answers.cache.reset("size_limit", 1_000)
    for number in range(60):
        answers.keep(places(f"q{number}"), answer("x" * 10_000))
    answers.cache.cull()
    again = Answers(tmp_path)
    assert all(again.find(f"q{number}") for number in range(60))


class Bomb:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("size", [0, 100_000], ids=["row", "file"])
@pytest.mark.parametrize("name", ["question a", f"answer {sha256(b'a').hexdigest()}", "offer offer a", "alone a"])
def test_a_pickle_in_the_cache_is_an_error_and_runs_nothing(tmp_path: Path, name: str, size: int) -> None:
    answers, mark = Answers(tmp_path / "cache"), tmp_path / "ran"
    answers.keep(places("a"), answer())
    answers.close()
    with diskcache.Cache(str(tmp_path / "cache")) as theirs:
        theirs.set(name, (Bomb(mark), "x" * size))
        theirs.set((Bomb(mark), 1), "under a name that is a pickle, too")
    again = Answers(tmp_path / "cache")
    if name == "alone a":
        assert again.is_isolated("a")
    else:
        with pytest.raises(PenumbraError, match=r"cache: .* no JSON.*PENUMBRA_ANSWERS"):
            again.offered("offer a") if name.startswith("offer") else again.find("a")
    assert not mark.exists()


def test_a_row_names_no_file_outside_the_cache(tmp_path: Path) -> None:
    (tmp_path / "private").write_text(json.dumps([["secret"]]))
    Answers(tmp_path / "cache").keep(places("a"), answer())
    with sqlite3.connect(tmp_path / "cache" / "cache.db") as rows:
        rows.execute("UPDATE Cache SET mode = 3, filename = '../private', value = NULL WHERE key = 'offer offer a'")
    with pytest.raises(PenumbraError):
        Answers(tmp_path / "cache").offered("offer a")


def test_a_cache_of_version_0_1_is_read_as_it_is(tmp_path: Path) -> None:
    """It was written through diskcache's own disk, with values that are JSON already."""
    entry = {"answer": "name", "number": 1, "first": 1, "asker": "x"}
    row = json.loads(json.dumps(answer("{}" * 30_000).__dict__ | {"seconds": 0.2, "retries": 0}))
    with diskcache.Cache(str(tmp_path)) as old:
        old.set("answer name", json.dumps(row))
        old.set("question a", json.dumps(entry))
        old.set("offer a", json.dumps([["a", "b"]]))
        old.set("alone a", 1)
    answers = Answers(tmp_path)
    assert answers.find("a") == CacheEntry(answer("{}" * 30_000), 1, 1, "x")
    assert (answers.offered("a"), answers.is_isolated("a")) == ([("a", "b")], True)


def test_a_cache_that_is_no_database_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(PenumbraError, match=r"cannot be opened \(file is not a database\).*PENUMBRA_ANSWERS"):
        Answers(tmp_path)


# A program that loads this one module, because importing its package takes seconds.
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("answers", "tasks/negatives/providers/answers.py")
module = sys.modules["answers"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
answers = module.Answers(module.Path(sys.argv[1]))
def places(*keys):
    slot = module.QuestionSlot
    return [slot(key, 3 * i + 1, f"asker of {key}", f"offer {key}", [["a"]]) for i, key in enumerate(keys)]
def answer(text, questions):
    return module.Answer(text, "", "m-1", 100, 7, 0.001, "r", questions)
"""
WRITE_UNTIL_KILLED = """
for number in range(1_000_000):
    keys = [f"q{number}-{place}" for place in range(12)]
    answers.keep(places(*keys), answer("x" * 3_000, 12))
    print(number, flush=True)
"""


def test_what_was_kept_survives_kill_9_and_a_request_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        command = [sys.executable, "-c", LOAD + WRITE_UNTIL_KILLED, str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        kept = [int(process.stdout.readline()) for _ in range(10 + 7 * turn)]
        process.kill()
        kept += [int(line) for line in process.communicate()[0].splitlines()]
        assert kept == list(range(len(kept)))
        answers = Answers(folder)
        for number in kept:
            assert all(answers.find(f"q{number}-{place}") for place in range(12))
        cut = [answers.find(f"q{len(kept)}-{place}") is not None for place in range(12)]
        assert all(cut) or not any(cut)
        answers.keep(places("later"), answer())
        assert answers.find("later")
