"""Isolation of the n-gram proposer's response memory; drafts depend neither on the order of rows nor on the rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specplug.testing.driver import Driver, RowDraft
from specplug.testing.pipeline_driver import PipelineDriver
from specplug.types.request import RequestOptions, Sampling
from tests.proposers.ngram_tools import BEGIN, PROMPT, SEEDED, STATED, Make, ask, remembers, serve, spec


@pytest.fixture
def make() -> Iterator[Make]:
    """Make drivers, with the proposer's own settings as keyword arguments, and close them in the end."""
    drivers: list[Driver] = []

    def made(kind: type[Driver] = Driver, *, max_length: int = 256, rank: int = 0, **options: object) -> Driver:
        drivers.append(kind(spec(), options, vocab_size=128, max_length=max_length, rank=rank))
        return drivers[-1]

    yield made
    for driver in drivers:
        driver.close()


# -- who reads it ------------------------------------------------------------------------------------------------------

PRIVATE = {
    "store: false": {"options": RequestOptions(store=False)},
    "a seed and a temperature": {"sampling": SEEDED},
}


@pytest.mark.parametrize("name", PRIVATE)
def test_some_requests_do_not_feed_it(make: Make, name: str) -> None:
    driver = make()
    serve(driver, **PRIVATE[name])
    assert not remembers(driver)


@pytest.mark.parametrize("name", PRIVATE)
def test_some_requests_do_not_read_it(make: Make, name: str) -> None:
    driver = make()
    serve(driver)
    assert not remembers(driver, **PRIVATE[name])
    assert remembers(driver), "others do"


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(seed=5), Sampling(temperature=0.0, seed=5)], ids=repr
)
def test_a_seed_alone_or_a_temperature_alone_does_no_harm(make: Make, sampling: Sampling) -> None:
    driver = make()
    serve(driver, sampling=sampling)
    assert remembers(driver, sampling=sampling)


def test_seeded_requests_draft_as_if_nothing_had_been_served_and_teach_nothing(make: Make) -> None:
    """Otherwise their drafts, and with them their texts, would depend on earlier requests."""

    def drafts(driver: Driver, **fields: Any) -> list[RowDraft]:
        driver.start("mine", [1, 2, 3, 4, 1, 2], isolation_key="us", **fields)
        found = []
        for token in (3, 4, 1, 2, 9, 1, 2, 3):
            found.append(driver.step(4, order=["mine"]).by_request()["mine"])
            driver.extend("mine", [token])
        driver.step(0, order=["mine"])
        driver.leave("mine")
        return found

    fresh, used, taught = make(), make(), make()
    for driver in (used, taught):
        for number in range(5):
            serve(driver, [*STATED, *STATED, *BEGIN, 70 + number], name=f"other {number}")
    first = drafts(fresh, sampling=SEEDED)
    assert any(draft.token_ids for draft in first)
    for _ in range(3):
        assert drafts(used, sampling=SEEDED) == first
    assert drafts(used) == drafts(taught), "seeded requests have taught nothing"
    assert drafts(used) != first, "others have"


def test_rows_of_both_kinds_in_one_batch_draft_as_alone(make: Make) -> None:
    together, plain, seeded = make(), make(), make()
    text = [1, 2, 3, 4, 1, 2]
    for driver in (together, plain, seeded):
        serve(driver)
    for driver in (together, plain):
        driver.start("plain", text, isolation_key="us")
    for driver in (together, seeded):
        driver.start("seeded", [*text, 3], isolation_key="us", sampling=SEEDED)
    for token in (3, 4, 9, 1, 2):
        expected = {**plain.step(4).by_request(), **seeded.step(4).by_request()}
        assert together.step(4).by_request() == expected
        for driver, names in ((together, expected), (plain, ["plain"]), (seeded, ["seeded"])):
            for name in names:
                driver.extend(name, [token])


@pytest.mark.parametrize(("scope", "shared"), [("isolated", False), ("server", True)])
def test_isolation_keys_are_never_crossed_unless_the_server_says_so(make: Make, scope: str, shared: bool) -> None:
    driver = make(memory_scope=scope)
    serve(driver, isolation_key="us")
    for other in ("them", "", "u", "us/", "US"):
        assert remembers(driver, isolation_key=other) is shared
    assert remembers(driver, isolation_key="us")


def test_requests_without_a_key_share_with_each_other_only(make: Make) -> None:
    driver = make()
    serve(driver, isolation_key="")
    assert remembers(driver, isolation_key="")
    assert not remembers(driver, isolation_key="us")


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


@pytest.mark.parametrize(
    "more", [{}, {"memory_tokens": 0}, PRIVATE["store: false"]], ids=["stored", "no memory", "not"]
)
def test_clients_learn_by_token_in_rows_of_their_own(make: Make, more: dict[str, Any]) -> None:
    """Rates by token tell which tokens a text repeats, and draft lengths depend on them."""
    driver = make(**({} if "options" in more else more))
    lookup = driver.proposer.lookup
    fields = more if "options" in more else {}

    def learnt(key: str) -> set[tuple[str, int]]:
        tables = {"contexts": lookup.tables.contexts, "tokens": lookup.tables.tokens}
        before = {name: table[:, 1].copy() for name, table in tables.items()}
        serve(driver, [*STATED, *STATED, *STATED], isolation_key=key, **fields)
        return {(name, row) for name, table in tables.items() for row in (table[:, 1] - before[name]).nonzero()[0]}

    rows = [learnt(key) for key in ("us", "them", "")]
    assert all(rows)
    assert not rows[0] & rows[1] | rows[0] & rows[2] | rows[1] & rows[2]
    assert learnt("us") & rows[0]


# -- everywhere alike --------------------------------------------------------------------------------------------------


def conversation(driver: Driver, *, turned: bool = False) -> list[dict[str, RowDraft]]:
    """Serve three generations of requests that repeat each other with changes; return all drafts."""
    drafts: list[dict[str, RowDraft]] = []
    for generation in range(3):
        names = [f"{generation}.{number}" for number in range(5)]
        rest = {}
        for number, name in enumerate(names):
            key = "us" if number % 2 else "them"
            sampling = SEEDED if number == 4 else Sampling()
            driver.start(name, [*PROMPT, number], isolation_key=key, references=[STATED[number:]], sampling=sampling)
            rest[name] = [*STATED[:5], 30 + number % 2, *STATED, 40 + generation, *STATED[2:]][: 12 + 3 * number]
        while rest:
            order = list(rest)[::-1] if turned and len(drafts) % 2 else list(rest)
            drafts.append(driver.step(6, order=order).by_request())
            for name in list(rest):
                count = 1 + (len(drafts) + int(name[-1])) % 3
                driver.extend(name, rest[name][:count])
                rest[name] = rest[name][count:]
            driver.step(0)
            for name in [name for name in rest if not rest[name]]:
                del rest[name]
                driver.leave(name)
    assert sum(draft.token_ids != () for step in drafts for draft in step.values()) > 40
    return drafts


@pytest.fixture
def expected(make: Make) -> list[dict[str, RowDraft]]:
    return conversation(make())


@pytest.mark.parametrize("kind", [Driver, PipelineDriver])
def test_the_order_of_rows_does_not_matter(make: Make, expected: list[dict[str, RowDraft]], kind: type[Driver]) -> None:
    assert conversation(make(kind), turned=True) == expected


@pytest.mark.parametrize("kind", [Driver, PipelineDriver])
def test_the_rank_does_not_matter(make: Make, expected: list[dict[str, RowDraft]], kind: type[Driver]) -> None:
    assert conversation(make(kind, rank=1)) == expected


def test_memory_is_part_of_what_is_the_same(make: Make, expected: list[dict[str, RowDraft]]) -> None:
    assert conversation(make(memory_tokens=0)) != expected
