"""The response memory of the n-gram proposer: what enters, who reads it, and when it is forgotten."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specplug.types.request import EngineEventKind, Lifecycle, RequestOptions
from tests.proposers.ngram_tools import (
    BEGIN,
    PROMPT,
    REFERENCE,
    STATED,
    Make,
    ask,
    remembers,
    serve,
    source,
)

ANSWER = list(range(10, 40))

# -- what enters, and who reads it; `tests.lookup.test_isolation` lets random requests try -----------------------------

PRIVATE = {"options": RequestOptions(store=False)}
KEYS = ("us", "", "them", "u", "us/", "US")


@pytest.mark.parametrize(
    ("options", "first", "second", "expected"),
    [
        ({}, {}, {}, True),
        # neither what did not finish, nor what nobody knows to have been seen, nor prompts
        *[({}, {"ends": ends}, {}, False) for ends in (Lifecycle.ABORTED, Lifecycle.PREEMPTED, None)],
        ({}, {"visible": None}, {}, False),
        ({}, {"stated": [50, 51, 52], "prompt": [*PROMPT, *STATED]}, {}, False),
        # requests that are not stored, and others' keys unless the server says so
        ({}, PRIVATE, {}, False),
        ({}, {}, PRIVATE, False),
        *[({}, {"isolation_key": key}, {"isolation_key": it}, it == key) for key in KEYS[:2] for it in KEYS],
        *[({"memory_scope": "server"}, {}, {"isolation_key": it}, True) for it in KEYS],
        # a server without a memory
        ({"memory_tokens": 0}, {}, {}, False),
        ({"memory_tokens": 0}, {}, {"isolation_key": "first"}, False),
    ],
)
def test_which_response_is_drafted_from_by_whom(
    make: Make, options: dict[str, Any], first: dict[str, Any], second: dict[str, Any], expected: bool
) -> None:
    driver = make(**options)
    assert not remembers(driver, **second)
    serve(driver, **first)
    assert remembers(driver, **second) is expected


def test_a_running_response_is_nobodys_yet(make: Make) -> None:
    driver = make()
    driver.start("running", [*PROMPT, *STATED], isolation_key="us")
    driver.step(4)
    assert not remembers(driver)


@pytest.mark.parametrize("seen", [0, 2, 5, 8, 11])
def test_no_more_is_remembered_than_was_seen_and_is_known(make: Make, seen: int) -> None:
    driver = make()
    serve(driver, visible=len(PROMPT) + seen)
    assert list(ask(driver, STATED[:1], draft_length=12).token_ids) == STATED[1:seen]


@pytest.mark.parametrize("kind", [Lifecycle.UPDATED, Lifecycle.RESUMED])
def test_a_request_that_begins_anew_is_what_it_says_then(make: Make, kind: Lifecycle) -> None:
    """Its slot's earlier contents are not part of its response."""
    driver = make()
    driver.start("first", [*PROMPT, *STATED], isolation_key="us")
    driver.step(4)
    driver.leave("first", Lifecycle.PREEMPTED)
    driver.start("first", PROMPT, isolation_key="us", kind=kind)
    driver.step(4)
    driver.extend("first", [60, 61, 62])
    driver.step(4)
    driver.leave("first")
    assert not remembers(driver)
    assert ask(driver, [60]).token_ids == (61, 62)


def test_a_repeated_request_is_drafted_for_as_well_each_time(make: Make) -> None:
    driver = make()
    steps = []
    for _ in range(10):
        driver.start("again", PROMPT, isolation_key="us")
        steps.append(0)
        while (known := len(driver.text("again")) - len(PROMPT)) < len(ANSWER):
            driver.settle(driver.step(8), {"again": ANSWER[known:]})
            steps[-1] += 1
        driver.step(0)
        driver.leave("again")
    assert steps[0] == len(ANSWER)
    assert set(steps[1:]) == {math.ceil(len(ANSWER) / 9)}


# -- when it is forgotten ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "event", "forgotten"),
    [
        ({}, "cache flushed", True),
        ({}, "weights changed", True),
        ({"memory_forget": "weights"}, "weights changed", True),
        ({"memory_forget": "flush"}, "cache flushed", True),
        ({"memory_forget": "flush"}, "weights changed", False),
        ({"memory_forget": "never"}, "cache flushed", False),
        ({"memory_forget": "never"}, "weights changed", False),
    ],
)
def test_responses_are_forgotten_with_the_events_that_the_settings_say(
    make: Make, options: dict[str, Any], event: EngineEventKind, forgotten: bool
) -> None:
    driver = make(**options)
    serve(driver)
    driver.announce("sleep")
    driver.announce("wake")
    assert remembers(driver)
    driver.announce(event)
    assert remembers(driver) is not forgotten
    serve(driver)
    assert remembers(driver), "and fills again"


def test_a_late_end_of_a_slots_last_request_is_nothing_to_the_next(make: Make) -> None:
    driver = make()
    driver.start("old", [*PROMPT, 50, 51], isolation_key="us", prompt_length=len(PROMPT))
    driver.step(4)
    occupant = driver._occupants["old"]
    driver.leave("old", None)
    driver.start("new", PROMPT, isolation_key="us")
    driver.step(4)
    driver._notify(Lifecycle.FINISHED, occupant, len(PROMPT) + 2)
    driver.extend("new", STATED)
    driver.step(4)
    driver.leave("new")
    assert remembers(driver)
    assert ask(driver, [50]).token_ids == ()


# -- references and barriers -------------------------------------------------------------------------------------------


def test_references_are_drafted_from_and_not_remembered(make: Make) -> None:
    driver = make()
    driver.start("first", PROMPT, isolation_key="us", references=[[7, 8, *STATED], [9, 10]])
    driver.step(4)
    driver.extend("first", BEGIN)
    draft = driver.step(8).by_request()["first"]
    assert draft.token_ids == tuple(STATED[3:])
    assert source(driver, draft) == REFERENCE
    driver.leave("first")
    assert not remembers(driver, isolation_key="them")
    assert ask(driver, STATED[3:5]).token_ids == (), "they are in nobody's response"


def test_spans_in_a_response_are_not_remembered(make: Make) -> None:
    driver = make()
    driver.start("first", PROMPT, isolation_key="us", barriers=[(len(PROMPT) + 4, len(PROMPT) + 6)])
    driver.step(4)
    driver.extend("first", STATED)
    driver.step(4)
    driver.leave("first")
    assert ask(driver).token_ids == (STATED[3],), "up to the span"
