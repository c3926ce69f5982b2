"""Limits with a clock that only moves when someone waits."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penumbra.tasks.negatives.providers import limits
from penumbra.tasks.negatives.providers.limits import BURST, Bucket, RateLimiter
from penumbra.tasks.negatives.providers.service import Quota

pytestmark = pytest.mark.slow


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds + 1e-9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Asyncio:
        Lock = asyncio.Lock
        sleep = staticmethod(clock.sleep)

    monkeypatch.setattr(limits, "asyncio", Asyncio)
    return clock


def admitted(limiter: RateLimiter, clock: Clock, tokens: list[float]) -> list[float]:
    """When requests of so many tokens go, all of which want to go at once."""

    async def run() -> list[float]:
        times = []
        for amount in tokens:
            await limiter.admit(amount)
            times.append(clock.now)
        return times

    return asyncio.run(run())


def test_without_a_limit_nothing_waits(clock: Clock) -> None:
    admitted(RateLimiter(None, None, clock), clock, [10_000.0] * 1_000)
    assert clock.slept == []


def test_a_bucket_lets_a_burst_go_and_then_flows_steadily() -> None:
    clock = Clock()
    bucket = Bucket(600, clock)
    burst = int(600 * BURST)
    for _ in range(burst):
        assert bucket.wait(1) == 0
        bucket.take(1)
    wait = bucket.wait(1)
    assert 0.1 <= wait <= 0.12
    clock.now += wait / 2
    assert bucket.wait(1) == pytest.approx(wait / 2)
    clock.now += 1_000
    assert bucket.wait(burst) == 0
    assert bucket.wait(burst + 1) == 0, "more than it holds counts as what it holds"


def test_what_is_more_than_a_bucket_holds_is_owed() -> None:
    clock = Clock()
    bucket = Bucket(600, clock)
    assert bucket.wait(100) == 0
    bucket.take(100)
    assert 8.9 <= bucket.wait(1) <= 10.1


def test_even_less_than_one_a_minute_lets_one_go() -> None:
    clock = Clock()
    bucket = Bucket(0.5, clock)
    assert bucket.wait(1) == 0
    bucket.take(1)
    assert bucket.wait(1) == pytest.approx(120)


@pytest.mark.parametrize("a_minute", [1, 7, 60, 500])
def test_in_the_long_run_the_limit_is_used_and_not_exceeded(clock: Clock, a_minute: int) -> None:
    start = clock.now
    times = admitted(RateLimiter(a_minute, None, clock), clock, [1.0] * (3 * a_minute))
    minutes = (times[-1] - start) / 60
    assert 3 - BURST - 1 / a_minute - 0.01 <= minutes <= 3 * (1 + 2 * BURST)


@pytest.mark.parametrize("a_minute", [1, 7, 49, 50, 51, 60, 500])
def test_no_minute_has_more_requests_than_the_setting(clock: Clock, a_minute: int) -> None:
    times = admitted(RateLimiter(a_minute, None, clock), clock, [1.0] * (3 * a_minute))
    most = max(sum(start <= time < start + 60 for time in times) for start in times)
    assert most <= a_minute


def test_tokens_are_limited_as_requests_are(clock: Clock) -> None:
    start = clock.now
    times = admitted(RateLimiter(None, 6_000, clock), clock, [500.0] * 24)
    assert times[0] == start
    assert 24 * 500 / 100 * (1 - 2 * BURST) - 500 / 100 <= times[-1] - start <= 24 * 500 / 100 * (1 + 2 * BURST)


@given(st.lists(st.floats(1, 5_000), min_size=1, max_size=40), st.integers(1, 1_000), st.integers(100, 100_000))
def test_of_two_limits_the_stricter_holds(amounts: list[float], requests: int, tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(limits, "asyncio", type("A", (), {"Lock": asyncio.Lock, "sleep": staticmethod(clock.sleep)}))
        start = clock.now
        times = admitted(RateLimiter(requests, tokens, clock), clock, amounts)
        assert times == sorted(times)
        for end, time in enumerate(times):
            passed = time - start + 1e-3
            assert end + 1 <= max(1.0, requests * BURST) + requests * passed / 60
            before = sum(amounts[:end]) + min(amounts[end], tokens * BURST)
            assert before <= max(1.0, tokens * BURST) + tokens * passed / 60


def test_a_pause_holds_everyone_and_the_longest_counts(clock: Clock) -> None:
    limiter = RateLimiter(None, None, clock)
    limiter.pause(40)
    limiter.pause(3)
    assert admitted(limiter, clock, [1.0, 1.0]) == [pytest.approx(140), pytest.approx(140)]
    assert max(clock.slept) <= limits.LOOK_EVERY, "new headers are to be seen meanwhile"


def test_requests_go_in_the_order_in_which_they_ask(clock: Clock) -> None:
    order: list[int] = []

    async def one(limiter: RateLimiter, number: int) -> None:
        await limiter.admit(1)
        order.append(number)

    async def run() -> None:
        limiter = RateLimiter(30, None, clock)
        await asyncio.gather(*(one(limiter, number) for number in range(20)))

    asyncio.run(run())
    assert order == list(range(20))


def test_headers_are_adopted_where_no_setting_gives_the_limit() -> None:
    clock = Clock()
    bucket = Bucket(None, clock)
    bucket.adopt(Quota(limit=100, remaining=2, reset=49))  # 98 used come back in 49 s
    bucket.take(2)
    assert bucket.wait(1) == pytest.approx(0.5)
    clock.now += 10
    assert bucket.wait(20) == 0
    assert bucket.wait(21) == pytest.approx(0.5)


def test_later_headers_can_only_take_away_what_others_have_used() -> None:
    clock = Clock()
    bucket = Bucket(None, clock)
    bucket.adopt(Quota(100, 50, 30))
    bucket.take(50)
    bucket.adopt(Quota(100, 60, 30))  # an answer from before the others were sent
    assert bucket.wait(1) > 0
    clock.now += 20
    assert bucket.wait(1) == 0
    bucket.adopt(Quota(100, 0, 60))  # someone else with the same key
    assert bucket.wait(1) == pytest.approx(0.6)


def test_a_setting_is_stronger_than_headers() -> None:
    clock = Clock()
    bucket, other = Bucket(60, clock), Bucket(60, clock)
    bucket.adopt(Quota(1_000_000, 0, 60))
    assert bucket.wait(1) == 0
    bucket.take(10)
    other.take(10)
    assert bucket.wait(1) == other.wait(1) > 5


@pytest.mark.parametrize("quota", [Quota(0, 0, 0), Quota(-1, 0, 1), Quota(0, -5, 3)])
def test_headers_without_sense_change_nothing(quota: Quota) -> None:
    bucket = Bucket(None, Clock())
    bucket.adopt(quota)
    assert bucket.wait(1e9) == 0


AMOUNTS = st.integers(-10, 10**6) | st.floats(0.001, 1e6)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), max_size=8))
def test_whatever_headers_say_the_wait_is_a_finite_time(quotas: list[tuple[float, float, float]]) -> None:
    clock = Clock()
    bucket = Bucket(None, clock)
    for limit, remaining, reset in quotas:
        bucket.adopt(Quota(limit, remaining, reset))
        wait = bucket.wait(1)
        assert 0 <= wait < float("inf")
        clock.now += 1
        bucket.take(1)


def test_a_full_quota_without_a_reset_is_a_limit_a_minute() -> None:
    clock = Clock()
    bucket = Bucket(None, clock)
    bucket.adopt(Quota(120, 120, 0))
    bucket.take(120)
    assert bucket.wait(1) == pytest.approx(0.5)


def test_what_only_one_header_says_limits_only_that() -> None:
    clock = Clock()
    limiter = RateLimiter(None, None, clock)
    limiter.learn(None, Quota(60, 0, 60))
    assert limiter.requests.wait(10**6) == 0
    assert limiter.tokens.wait(1) == pytest.approx(1.0)
