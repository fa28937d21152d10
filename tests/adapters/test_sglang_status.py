"""An operator's orders as the numbers that SGLang carries, and the engines whose status is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import EngineError, SettingsError
from specplug.operator.control import parse_order
from specplug_sglang import status

ORDERS = st.fixed_dictionaries(
    {},
    optional={"mode": st.sampled_from(["on", "off"]), "num_speculative_tokens": st.none() | st.integers(0, 256)},
)


@given(ORDERS)
def test_orders_survive_as_numbers(order):
    numbers = status.numbers_of(order)
    assert all(type(number) is int for number in numbers.values())
    assert status.order_of(numbers) == parse_order(order, "test").model_dump(exclude_unset=True) == order
    assert status.numbers_of({"mode": None, **order}) == numbers


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ({status.MODE: 2}, "found 2"),
        ({status.LIMIT: -2}, "found -2; expected greater than or equal to 0"),
        ({status.LIMIT: 257}, "found 257"),
        ({status.LIMIT: 3.5}, "found 3.5; expected a valid integer"),
    ],
)
def test_numbers_that_are_no_order_are_refused(numbers, what):
    with pytest.raises(SettingsError, match=what):
        status.order_of(numbers)


class Manager:
    """Stands in for a `TokenizerManager` whose schedulers answer in any order."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = states

    async def get_internal_state(self) -> list[dict[str, Any]]:
        return list(self.states)


def test_engines_are_reported_by_rank_whoever_answers_first():
    manager = Manager({"specplug": {"engine": 10}}, {"specplug": {"engine": 2}})
    assert asyncio.run(status.ask(manager)) == [{"engine": 2}, {"engine": 10}]


@pytest.mark.parametrize(
    ("state", "what"),
    [({}, "specplug does not draft"), ({"specplug": {"error": "ValueError: broken"}}, "ValueError: broken")],
)
def test_an_engine_without_a_status_is_an_error(state, what):
    with pytest.raises(EngineError, match=what):
        asyncio.run(status.ask(Manager({"specplug": {"engine": 0}}, state)))
