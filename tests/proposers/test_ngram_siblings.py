"""Requests on one prompt, or of one group, draft from each other's outputs while they run, and nobody else does."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing.driver import Driver
from specplug.types.request import Lifecycle, RequestOptions
from tests.proposers.ngram_tools import MEMORY, PROMPT, Make, source

OUTPUT = [31, 32, 33, 34, 35, 36]


def running(make: Make, **second: Any) -> Driver:
    """Return a driver with a request that has emitted `OUTPUT`, and another one that has emitted its first tokens."""
    driver = make(memory_tokens=0)
    driver.start("ahead", PROMPT, isolation_key="us")
    driver.step(4)
    driver.extend("ahead", OUTPUT)
    driver.step(4)
    driver.start("behind", second.pop("prompt", PROMPT), **{"isolation_key": "us", **second})
    driver.step(4)
    driver.extend("behind", OUTPUT[:2])
    return driver


def drafted(driver: Driver) -> Any:
    return driver.step(4).by_request()["behind"]


@pytest.mark.parametrize(
    ("second", "ends", "expected"),
    [
        ({}, None, OUTPUT[2:]),
        ({"isolation_key": "them"}, None, []),
        ({"prompt": [*PROMPT, 90]}, None, []),
        ({"options": RequestOptions(store=False)}, None, []),
        ({"options": RequestOptions(group="another")}, None, []),
        *[({}, ends, []) for ends in (Lifecycle.FINISHED, Lifecycle.ABORTED, Lifecycle.PREEMPTED)],
    ],
)
def test_what_a_request_on_the_same_prompt_has_emitted_is_drafted_from_while_it_runs(
    make: Make, second: dict[str, Any], ends: Lifecycle | None, expected: list[int]
) -> None:
    """Not by another isolation key's, or those that share nothing or are of another group."""
    driver = running(make, **second)
    if ends is not None:
        driver.leave("ahead", ends)
    draft = drafted(driver)
    assert list(draft.token_ids) == expected
    assert source(driver, draft) == (MEMORY if expected else None)


@pytest.mark.parametrize("ends", [False, True])
def test_a_place_without_a_continuation_gets_one_when_another_request_has_emitted_it(make: Make, ends: bool) -> None:
    """Whether the other one still runs, or has ended and its response is in the memory."""
    driver = make()
    driver.start("behind", PROMPT, isolation_key="us")
    driver.step(4)
    driver.extend("behind", OUTPUT[:2])
    assert drafted(driver).token_ids == ()
    driver.start("later", PROMPT, isolation_key="us")
    driver.step(4, order=["later"])
    driver.extend("later", OUTPUT)
    driver.step(4, order=["later"])
    if ends:
        driver.leave("later")
    assert list(drafted(driver).token_ids) == OUTPUT[2:]


def test_a_named_group_may_have_any_prompts(make: Make) -> None:
    driver = make(memory_tokens=0)
    for name, prompt in (("ahead", PROMPT), ("behind", [90, 91])):
        driver.start(name, prompt, isolation_key="us", options=RequestOptions(group="one"))
        driver.step(4)
    driver.extend("ahead", OUTPUT)
    driver.step(4)
    driver.extend("behind", OUTPUT[:4])
    assert list(drafted(driver).token_ids) == OUTPUT[4:]
