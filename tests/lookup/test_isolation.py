"""No step reads the tokens of another owner or tenant, and no owner evicts all entries of others from a bucket."""

from __future__ import annotations

from itertools import count
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.lookup import arithmetic, compiled
from specplug.lookup import layout as at
from specplug.testing.driver import Driver
from tests.lookup.runs import Trapped
from tests.lookup.static import TrappedTenants
from tests.lookup.talk import Talk
from tests.proposers.ngram_tools import spec

KINDS = pytest.mark.parametrize("kind", [Trapped, TrappedTenants], ids=["the ring", "corpora"])


@KINDS
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32))
def test_tokens_of_others_change_no_draft(kind: type[Trapped], seed: int) -> None:
    run = kind(Random(seed), compiled, own=False)
    run.steps(15)
    assert run.changed == 0


@KINDS
def test_the_trap_springs_for_what_may_be_read(kind: type[Trapped]) -> None:
    changed = 0
    for seed in range(10):
        run = kind(Random(seed), compiled, own=True)
        run.steps(15)
        changed += run.changed
    assert changed > 20


@pytest.mark.parametrize("prompt", [60, 300])
def test_a_group_that_reads_its_texts_again_writes_to_no_others_place(prompt: int) -> None:
    """Its places in the ring have no room for most of the prompt, which is shared by two requests of Bob."""
    of_alice = [*range(100, 220)]
    of_bob = [*range(500, 500 + prompt)]
    with Driver(spec(), {"memory_tokens": 4096}, vocab_size=1000, max_length=512, max_slots=8) as driver:
        driver.start("alice", [90, 91, 92, 93], isolation_key="alice")
        driver.step(4, order=["alice"])
        driver.extend("alice", of_alice)
        driver.step(4, order=["alice"])
        driver.leave("alice")
        both = ["first", "second"]
        for name in both:
            driver.start(name, of_bob, isolation_key="bob", max_tokens=64)
        for _ in range(2):
            driver.step(4, order=both)
            for name in both:
                driver.extend(name, [7])
        for name in both:
            driver.resend(name)  # as after a fault
        driver.step(4, order=both)
        drafted = set()
        for end in range(8, len(of_alice)):
            driver.start("asks", [90, *of_alice[end - 6 : end]], isolation_key="alice")
            drafted |= {*driver.step(8, order=["asks"]).by_request()["asks"].token_ids}
            driver.leave("asks", None)
    assert drafted >= {*of_alice[9:]}
    assert not drafted & {*of_bob}


def shared_bucket(owner: int, other: int, texts: int) -> tuple[list[int], list[int]]:
    """Return a text of two tokens for each owner, which have one bucket in the table of two tokens."""
    seen: dict[int, int] = {}
    for number in count(100):
        bucket = arithmetic.bucket_of([number, number], 2, 2, owner, texts)
        seen.setdefault(bucket, number)
        found = seen.get(arithmetic.bucket_of([number, number + 1], 2, 2, other, texts))
        if found is not None:
            return [found, found], [number, number + 1]
    raise AssertionError


@pytest.mark.parametrize(("owner", "other"), [(1, 2), (2, 1), (3, 9), (7, 4)])
def test_a_chatty_owner_leaves_another_s_entries_of_a_bucket(form: ModuleType, owner: int, other: int) -> None:
    talk = Talk(form, slots=1, ring=1 << 14)
    key, noise = shared_bucket(owner, other, talk.state.buckets.shape[1])
    for number in range(at.ENTRIES - at.SPARED):  # one of the owner's places is what the other spares
        talk.remember(owner, [*key, 7], number)
    for number in range(100):
        talk.remember(other, [*noise, 8], number)
    talk.begin(0, [5, *key], owner)
    assert talk.draft(0)[:1] == [7]
    talk.begin(0, [5, *noise], other)
    assert talk.draft(0)[:1] == [8]


def test_a_request_without_an_owner_drafts_from_no_response(form: ModuleType) -> None:
    talk = Talk(form)
    talk.remember(1, [1, 2, 3, 4], 0)
    talk.begin(0, [9, 1, 2], 1)
    assert talk.draft(0) == [3, 4]
    for owner in (0, 2):
        talk.begin(0, [9, 1, 2], owner)
        assert talk.draft(0) == []
