"""The response memory of the n-gram proposer: what enters, when it is forgotten, and what stands beside it."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing.driver import Driver
from specplug.types.request import EngineEventKind, Lifecycle
from tests.proposers.ngram_tools import (
    BEGIN,
    MEMORY,
    PROMPT,
    REFERENCE,
    STATED,
    Make,
    ask,
    remembers,
    serve,
    source,
    spec,
)

# -- what enters -------------------------------------------------------------------------------------------------------


def test_a_finished_response_is_drafted_from(make: Make) -> None:
    driver = make()
    assert not remembers(driver)
    serve(driver)
    assert remembers(driver)


def test_trees_draft_from_it_too() -> None:
    with Driver(spec(trees=True), vocab_size=128) as driver:
        serve(driver)
        serve(driver, [*BEGIN, 50, 51, 52], prompt=[94])
        draft = ask(driver)
        assert draft.parents is not None
        roots = {token for token, parent in zip(draft.token_ids, draft.parents, strict=True) if parent < 0}
        assert roots == {STATED[3], 50}
        assert source(driver, draft) == MEMORY


def test_a_running_response_is_nobodys_yet(make: Make) -> None:
    driver = make()
    driver.start("running", [*PROMPT, *STATED], isolation_key="us")
    driver.step(4)
    assert not remembers(driver)


@pytest.mark.parametrize(
    "fields",
    [
        *[{"ends": ends} for ends in (Lifecycle.ABORTED, Lifecycle.PREEMPTED, None)],
        {"visible": None},
        {"stated": [50, 51, 52], "prompt": [*PROMPT, *STATED]},
    ],
)
def test_only_what_a_finished_response_is_known_to_have_shown_is_remembered(make: Make, fields: dict[str, Any]) -> None:
    """Neither what did not finish, nor what nobody knows to have been seen, nor prompts."""
    driver = make()
    serve(driver, **fields)
    assert not remembers(driver)


def test_what_stood_before_a_response_is_matched_and_not_drafted(make: Make) -> None:
    driver = make(min_n=2)
    serve(driver)
    driver.start("again", PROMPT, isolation_key="us")
    driver.step(8)
    driver.extend("again", [STATED[0]])
    assert driver.step(8).by_request()["again"].token_ids == tuple(STATED[1:])
    driver.leave("again", None)
    driver.start("within the prompt", PROMPT[:3], isolation_key="us")
    assert driver.step(8).by_request()["within the prompt"].token_ids == ()


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


# -- when it is forgotten ----------------------------------------------------------------------------------------------


def test_no_memory_keeps_nothing(make: Make) -> None:
    driver = make(memory_tokens=0)
    serve(driver)
    assert not remembers(driver)
    assert not remembers(driver, isolation_key="first")


def test_old_responses_go(make: Make) -> None:
    driver = make(memory_tokens=1024, max_n=16)
    capacity: int = driver.proposer.lookup.responses.capacity  # type: ignore[attr-defined]
    assert capacity == 1024
    serve(driver)
    for number in range(4):
        assert remembers(driver)
        serve(driver, [20 + (place * (number + 3)) % 50 for place in range(60)], name=f"other {number}")
    assert remembers(driver), "there was room"
    for number in range(capacity // 60 + 2):
        serve(driver, [20 + (place * (number + 3)) % 50 for place in range(60)], name=f"further {number}")
    assert not remembers(driver)
    assert ask(driver, [20, 20 + number + 3]).token_ids[0] == 20 + (2 * (number + 3)) % 50, "the newest is there"


def test_a_response_longer_than_the_memory_keeps_its_end(make: Make) -> None:
    driver = make(memory_tokens=256, max_n=16, max_length=600)
    stated = [10 + (place * place) % 97 for place in range(500)]
    driver.start("long", PROMPT, isolation_key="us")
    driver.step(4)
    driver.extend("long", stated)
    driver.step(4)
    driver.leave("long")
    assert ask(driver, stated[-6:-2], draft_length=2).token_ids == tuple(stated[-2:])


@pytest.mark.parametrize("event", ["cache flushed", "weights changed"])
def test_responses_are_forgotten_with_the_cache_and_with_the_weights(make: Make, event: EngineEventKind) -> None:
    driver = make()
    serve(driver)
    driver.announce("sleep")
    driver.announce("wake")
    assert remembers(driver)
    driver.announce(event)
    assert not remembers(driver)
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


def test_nothing_is_drafted_across_the_end_of_a_reference(make: Make) -> None:
    driver = make()
    driver.start("first", [*PROMPT, 30, 31], references=[[30, 31, 32], [40, 41]])
    assert driver.step(8).by_request()["first"].token_ids == (32,)


@pytest.mark.parametrize("size", [300, 1000])
def test_references_beyond_all_bounds_are_cut(make: Make, size: int) -> None:
    """They may take as much as the longest context; drafts from the text itself continue."""
    driver = make(max_length=256)
    long = [20 + (place * place) % 53 for place in range(size)]
    driver.start("first", [*PROMPT, *long[1:5]], references=[long, STATED])
    assert driver.step(4).by_request()["first"].token_ids == tuple(long[5:9])
    driver.extend("first", [*range(100, 110), *range(100, 105)])
    assert driver.step(4).by_request()["first"].token_ids == (105, 106, 107, 108)
    room = 256 - len(driver.text("first")) - 1
    driver.extend("first", [5] * room)
    assert set(driver.step(4).by_request()["first"].token_ids) <= {5}, "the context is full to its end"


def test_spans_that_are_no_text_are_neither_matched_nor_drafted(make: Make) -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    drafts = []
    for barriers in ([], [(0, 1)], [(3, 5)], [(1, 2)], [(7, 8)]):
        driver = make(min_n=2)
        driver.start("first", text, barriers=barriers)
        drafts.append(driver.step(3).by_request()["first"].token_ids)
    assert drafts[:2] == [(4, 5, 6)] * 2
    assert drafts[2] == (), "nothing stands behind the match"
    assert drafts[3:] == [(), ()], "one token is no match of two"


def test_spans_in_a_response_are_not_remembered(make: Make) -> None:
    driver = make()
    driver.start("first", PROMPT, isolation_key="us", barriers=[(len(PROMPT) + 4, len(PROMPT) + 6)])
    driver.step(4)
    driver.extend("first", STATED)
    driver.step(4)
    driver.leave("first")
    assert ask(driver).token_ids == (STATED[3],), "up to the span"
