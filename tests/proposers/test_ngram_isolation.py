"""Isolation of the n-gram proposer's response memory."""

from __future__ import annotations

import pytest

from specplug.types.request import RequestOptions
from tests.proposers.ngram_tools import BEGIN, PROMPT, STATED, Make, ask, remembers, serve

# -- who reads it ------------------------------------------------------------------------------------------------------

PRIVATE = {"options": RequestOptions(store=False)}


def test_a_request_that_is_not_stored_neither_feeds_nor_reads_it(make: Make) -> None:
    driver = make()
    serve(driver, **PRIVATE)
    assert not remembers(driver)
    serve(driver)
    assert not remembers(driver, **PRIVATE)
    assert remembers(driver), "others do"


@pytest.mark.parametrize(("scope", "shared"), [("isolated", False), ("server", True)])
def test_isolation_keys_are_never_crossed_unless_the_server_says_so(make: Make, scope: str, shared: bool) -> None:
    for key in ("us", ""):
        driver = make(memory_scope=scope)
        serve(driver, isolation_key=key)
        for other in {"them", "us", "", "u", "us/", "US"} - {key}:
            assert remembers(driver, isolation_key=other) is shared
        assert remembers(driver, isolation_key=key)


def test_many_owners_with_the_same_texts_do_not_meet(make: Make) -> None:
    """All begin alike and continue differently, in turns."""
    driver, owners = make(), range(20)
    for turn in range(3):
        for owner in owners:
            serve(driver, [*BEGIN, 40 + owner, 70 + turn, 40 + owner], isolation_key=f"tenant {owner}")
    for owner in owners:
        draft = ask(driver, isolation_key=f"tenant {owner}")
        assert draft.token_ids[0] == 40 + owner
        assert not set(draft.token_ids) & {40 + other for other in owners if other != owner}


SECRET = list(range(100, 120))


@pytest.mark.parametrize("min_n", [0, 1])
@pytest.mark.parametrize("length", range(4, 13))
def test_a_copy_that_diverges_does_not_stray_into_somebody_elses_response(make: Make, min_n: int, length: int) -> None:
    """Where a response was followed last is tried again after a divergence, but not beyond that response's end."""
    driver = make(min_n=min_n)
    serve(driver, list(range(11, 11 + length)))
    for number in range(3):
        serve(driver, SECRET, isolation_key="them", name=f"other {number}")
    driver.start("mine", [*PROMPT, *range(11, 11 + length - 1)], isolation_key="us")
    for token in [70, 71, 72, *SECRET[2:5], 70, 71, 73, *range(74, 90)]:
        drafted = driver.step(4).by_request()["mine"].token_ids
        assert not set(drafted) & (set(SECRET) - set(driver.text("mine")))
        driver.extend("mine", [token])


@pytest.mark.parametrize("min_n", [0, 1])
def test_a_copy_of_what_was_flushed_does_not_go_on_in_somebody_elses_response(make: Make, min_n: int) -> None:
    driver = make(min_n=min_n)
    serve(driver, [*STATED, *range(20, 60)])
    driver.start("mine", [*PROMPT, *STATED], isolation_key="us")
    driver.step(4)
    driver.announce("cache flushed")
    for number in range(4):
        serve(driver, SECRET, isolation_key="them", name=f"other {number}")
    for token in [70, 71, *SECRET[2:5], 72]:
        driver.extend("mine", [token])
        drafted = driver.step(4, order=["mine"]).by_request()["mine"].token_ids
        assert not set(drafted) & (set(SECRET) - set(driver.text("mine")))
