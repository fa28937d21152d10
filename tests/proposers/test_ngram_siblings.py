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


def test_the_output_of_a_request_on_the_same_prompt_is_drafted_from(make: Make) -> None:
    driver = running(make)
    draft = drafted(driver)
    assert list(draft.token_ids) == OUTPUT[2:]
    assert source(driver, draft) == MEMORY


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


@pytest.mark.parametrize(
    "second",
    [
        {"isolation_key": "them"},
        {"prompt": [*PROMPT, 90]},
        {"options": RequestOptions(store=False)},
        {"options": RequestOptions(group="another")},
    ],
    ids=["another isolation key", "another prompt", "store: false", "another group"],
)
def test_others_do_not_draft_from_it(make: Make, second: dict[str, Any]) -> None:
    assert drafted(running(make, **second)).token_ids == ()


def test_a_named_group_may_have_any_prompts(make: Make) -> None:
    driver = make(memory_tokens=0)
    for name, prompt in (("ahead", PROMPT), ("behind", [90, 91])):
        driver.start(name, prompt, isolation_key="us", options=RequestOptions(group="one"))
        driver.step(4)
    driver.extend("ahead", OUTPUT)
    driver.step(4)
    driver.extend("behind", OUTPUT[:4])
    assert list(drafted(driver).token_ids) == OUTPUT[4:]


@pytest.mark.parametrize("ends", [Lifecycle.FINISHED, Lifecycle.ABORTED, Lifecycle.PREEMPTED])
def test_a_request_that_has_left_is_no_sibling(make: Make, ends: Lifecycle) -> None:
    driver = running(make)
    driver.leave("ahead", ends)
    assert drafted(driver).token_ids == ()
