"""Prices, and the account that runs spend from: one at a time, several at once, and after a kill."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.budget import Budget, price_of, price_table
from penumbra.tasks.negatives.providers.settings import OpenAI, Price


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    answers = Answers(tmp_path)
    yield answers
    answers.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.floats(0.01, 10),
    st.lists(st.tuples(st.booleans(), st.floats(0.001, 3), st.floats(0, 1), st.integers(0, 3)), max_size=40),
)
def test_with_any_requests_of_two_runs_in_flight_the_limit_is_never_exceeded(
    answers: Answers, limit: float, requests: list[tuple[bool, float, float, int]]
) -> None:
    """Each request costs a share of what was set aside for it, and others are settled before or after it."""
    with Budget(limit, answers) as one, Budget(limit, answers) as other:
        under_way, paid = [], 0.0
        for second, most, share, settled in requests:
            budget = other if second else one
            if budget.try_reserve(most):
                under_way.append((budget, most, most * share))
            for _ in range(min(settled, len(under_way))):
                owner, set_aside, cost = under_way.pop(0)
                owner.charge(set_aside, cost)
                paid += cost
            assert paid + sum(most for _, most, _ in under_way) <= limit + 1e-9
        assert one.account["spent"] == pytest.approx(paid)


def test_runs_at_once_share_the_limit_and_the_next_one_begins_anew(answers: Answers) -> None:
    with Budget(1.0, answers) as first:
        first.try_reserve(0.7)
        first.charge(0.7, 0.7)
        with Budget(1.0, answers) as second:
            assert not second.try_reserve(0.4)
        assert not first.try_reserve(0.4), "the account continues with the other run"
    with Budget(1.0, answers) as third:
        assert third.try_reserve(1.0)


def test_a_run_waits_for_what_another_has_set_aside(answers: Answers) -> None:
    async def ask(one: Budget, other: Budget) -> bool:
        waiting = asyncio.create_task(other.reserve(0.5))
        await asyncio.sleep(0.15)
        assert not waiting.done()
        one.charge(0.9, 0.2)
        return await waiting

    with Budget(1.0, answers) as one, Budget(1.0, answers) as other:
        assert one.try_reserve(0.9)
        assert asyncio.run(ask(one, other))
        other.charge(0.5, 0.5)
        assert not asyncio.run(one.reserve(0.9)), "nothing is under way that could give it back"


RESERVE = """
import sys, time
from pathlib import Path
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.budget import Budget
with Budget(1.0, Answers(Path(sys.argv[1]))) as budget:
    for cost in (0.1, 0.2):
        assert budget.try_reserve(0.3)
        budget.charge(0.3, cost)
    assert budget.try_reserve(0.3)
    print("under way", flush=True)
    time.sleep(60)
"""


def started(answers: Answers) -> subprocess.Popen[bytes]:
    """Return a process that has spent 0.3 and has a request of at most 0.3 under way."""
    process = subprocess.Popen([sys.executable, "-c", RESERVE, answers.folder], cwd=PROJECT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"under way\n"
    return process


def test_what_was_under_way_at_a_kill_is_booked_at_its_most_and_the_account_goes_on(answers: Answers) -> None:
    process = started(answers)
    with Budget(1.0, answers) as other:
        assert other.account["spent"] == pytest.approx(0.3)
        assert not other.try_reserve(0.5), "another run's request is under way"
        process.kill()
        process.wait()
        assert not asyncio.run(other.reserve(0.5)), "and can have cost what was set aside for it"
        assert other.account["spent"] == pytest.approx(0.6)
        assert other.try_reserve(0.4)


def test_a_run_after_a_kill_goes_on_with_what_is_left_and_the_one_after_it_anew(answers: Answers) -> None:
    process = started(answers)
    process.kill()
    process.wait()
    with Budget(1.0, answers) as again:
        assert again.account["spent"] == pytest.approx(0.6)
        assert not again.try_reserve(0.5)
    with Budget(1.0, answers) as later:
        assert later.try_reserve(1.0)
    assert list((answers.folder / "locks").glob("run-*")) == [], "no lock is left behind"


def test_a_snapshot_costs_what_the_longest_name_that_begins_it_does_and_an_unknown_model_has_no_price() -> None:
    prices = price_table()[1]
    for model in ("gpt-4o", "gpt-4o-mini", "gpt-3.5-turbo"):
        assert price_of(OpenAI(model=f"{model}-2024-08-06")) == price_of(OpenAI(model=model)) == prices[model]
    for model in ("", "gpt", "gpt-4omni", "ft:gpt-4o-mini:me", "-gpt-4o"):
        assert price_of(OpenAI(model=model)) is None


def test_cost_is_tokens_times_price_and_cached_input_is_cheaper() -> None:
    price = Price(input=2.0, output=10.0, cached_input=0.5)
    assert price.cost(1_000_000, 100_000) == pytest.approx(3.0)
    assert price.cost(1_000_000, 0, cached_tokens=400_000) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5)
    assert Price(input=2.0, output=10.0).cost(1_000_000, 0, cached_tokens=1_000_000) == pytest.approx(2.0)
