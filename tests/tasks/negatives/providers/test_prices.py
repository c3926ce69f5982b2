"""Prices and the budget."""

from datetime import date

import pytest

from penumbra.tasks.negatives.providers.budget import price_of, price_table
from penumbra.tasks.negatives.providers.settings import OpenAI, Price


def test_the_table_is_dated_and_sane() -> None:
    day, prices = price_table()
    assert date.fromisoformat(day) >= date(2026, 1, 1)
    for price in prices.values():
        assert 0 < price.input < price.output
        assert price.cached_input is None or 0 < price.cached_input < price.input


def test_a_snapshot_costs_what_the_longest_name_that_begins_it_does() -> None:
    prices = price_table()[1]
    assert price_of(OpenAI(model="gpt-4o-2024-08-06")) == prices["gpt-4o"]
    assert price_of(OpenAI(model="gpt-4o-mini-2024-07-18")) == prices["gpt-4o-mini"]
    assert price_of(OpenAI(model="gpt-4o")) == prices["gpt-4o"]
    assert price_of(OpenAI(model="gpt-3.5-turbo-0125")) == prices["gpt-3.5-turbo"]


@pytest.mark.parametrize("name", ["", "gpt", "gpt-4omni", "ft:gpt-4o-mini:me", "llama-3-8b", "-gpt-4o"])
def test_an_unknown_model_has_no_price(name: str) -> None:
    assert price_of(OpenAI(model=name)) is None


def test_cost_is_tokens_times_price_and_cached_input_is_cheaper() -> None:
    price = Price(input=2.0, output=10.0, cached_input=0.5)
    assert price.cost(1_000_000, 100_000) == pytest.approx(3.0)
    assert price.cost(1_000_000, 0, cached_tokens=400_000) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5)
    assert Price(input=2.0, output=10.0).cost(1_000_000, 0, cached_tokens=1_000_000) == pytest.approx(2.0)
    assert Price(input=2.0, output=10.0, cached_input=0.0).cost(1_000_000, 0, 1_000_000) == 0.0
