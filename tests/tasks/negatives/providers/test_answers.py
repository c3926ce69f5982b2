"""The cache of paid answers and the account that runs spend from: one at a time, several at once, and after a kill."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import diskcache
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.answers import Answers, Budget, open_budget
from penumbra.tasks.negatives.providers.questions import Answer, Attempt, attempt_history, store
from penumbra.tasks.negatives.providers.settings import OpenAI, Price, price_table
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
RESERVE = """
import sys, time
from pathlib import Path
from penumbra.tasks.negatives.providers.answers import Answers, open_budget
with open_budget(Answers(Path(sys.argv[1])), 1.0) as budget:
    for cost in (0.1, 0.2):
        assert budget.try_reserve(0.3)
        budget.charge(0.3, cost)
    assert budget.try_reserve(0.3)
    print("under way", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    answers = Answers(tmp_path)
    yield answers
    answers.close()


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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.floats(0.01, 10), st.lists(st.tuples(st.floats(0.001, 3), st.floats(0, 1), st.integers(0, 3)), max_size=40))
def test_the_limit_is_never_exceeded_in_flight(
    answers: Answers, limit: float, requests: list[tuple[float, float, int]]
) -> None:
    """Each request costs a share of what was reserved for it, and others end before or after it."""
    with open_budget(answers, limit) as budget:
        under_way, paid = [], 0.0
        for most, share, ended in requests:
            if budget.try_reserve(most):
                under_way.append((most, most * share))
            for _ in range(min(ended, len(under_way))):
                reserved, cost = under_way.pop(0)
                budget.charge(reserved, cost)
                paid += cost
            assert paid + sum(most for most, _ in under_way) <= limit + 1e-9
        assert budget.spent == pytest.approx(paid)


def test_a_request_waits_for_what_others_have_reserved(answers: Answers) -> None:
    async def ask(budget: Budget) -> None:
        assert budget.try_reserve(0.9)
        waiting = asyncio.create_task(budget.reserve(0.5))
        await asyncio.sleep(0.15)
        assert not waiting.done()
        budget.charge(0.9, 0.2)
        assert await waiting
        budget.charge(0.5, 0.5)
        assert not await budget.reserve(0.9), "nothing is under way that could give it back"

    with open_budget(answers, 1.0) as budget:
        asyncio.run(ask(budget))


def spending(answers: Answers, seconds: float) -> subprocess.Popen[str]:
    """Return a process that has spent 0.3 and has a request of at most 0.3 under way."""
    process = started(RESERVE, str(answers.folder), str(seconds))
    assert process.stdout.readline() == "under way\n"
    return process


def test_a_run_after_a_kill_goes_on_with_what_is_left_and_the_one_after_it_anew(answers: Answers) -> None:
    process = spending(answers, 60)
    process.kill()
    process.wait()
    with open_budget(answers, 1.0) as again:
        assert again.spent == pytest.approx(0.6), "the request under way can have cost what was reserved"
        assert not again.try_reserve(0.5)
    with open_budget(answers, 1.0) as later:
        assert later.spent == 0


def test_a_run_waits_for_another_and_shares_its_limit(answers: Answers) -> None:
    process = spending(answers, 0.5)
    with open_budget(answers, 1.0) as other:
        process.wait()
        assert other.spent == pytest.approx(0.6)


def test_a_snapshot_costs_what_the_longest_name_that_begins_it_does_and_an_unknown_model_has_no_price() -> None:
    prices = price_table()[1]
    for model in ("gpt-4o", "gpt-4o-mini", "gpt-3.5-turbo"):
        assert OpenAI(model=f"{model}-2024-08-06").known_price == OpenAI(model=model).known_price == prices[model]
    for model in ("", "gpt", "gpt-4omni", "ft:gpt-4o-mini:me", "-gpt-4o"):
        assert OpenAI(model=model).known_price is None


def test_cost_is_tokens_times_price_and_cached_input_is_cheaper() -> None:
    price = Price(input=2.0, output=10.0, cached_input=0.5)
    assert price.cost(1_000_000, 100_000) == pytest.approx(3.0)
    assert price.cost(1_000_000, 0, cached_tokens=400_000) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5)
    assert Price(input=2.0, output=10.0).cost(1_000_000, 0, cached_tokens=1_000_000) == pytest.approx(2.0)
