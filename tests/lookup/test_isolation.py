"""No step reads the tokens of another owner's requests, and no owner evicts all entries of others from a bucket."""

from __future__ import annotations

from itertools import count
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.lookup import arithmetic, compiled, plain, storage
from specplug.lookup import layout as at
from tests.lookup.runs import Run
from tests.lookup.talk import Talk

FORMS = pytest.mark.parametrize("form", [plain, compiled], ids=["plain", "compiled"])


class Trapped(Run):
    """A run in which each row's step is made twice: once more with other tokens in the ring.

    Attributes:
        changed: rows with other drafts.
    """

    def __init__(self, *args: Any, own: bool) -> None:
        super().__init__(*args)
        self.own, self.changed = own, 0

    def step(self) -> dict[str, Any]:
        """Draft for each row, with the ring as it is, and with others' tokens changed, or those it may draft from."""
        for slot in range(self.slots):
            slots = [slot]
            may_read = (self.state.owners == self.owners[slot]) | (
                self.state.owners == self.state.slots[slot, at.GROUP]
            )
            granules = may_read if self.own else ~may_read
            noise = torch.randint(0, self.tokens, self.state.ring.shape, dtype=torch.int32)
            ring = torch.where(granules.repeat_interleave(at.GRANULE), noise, self.state.ring)
            other = at.State(*(tensor.clone() for tensor in self.state))._replace(ring=ring)
            source = self.source(slots)
            texts = self.texts.clone()
            found = []
            for state, text in ((self.state, self.texts), (other, texts)):
                facts = self.generations[slot], self.lengths[slot], 99
                rows = at.Rows(torch.tensor(slots), *(torch.tensor([it], dtype=torch.int32) for it in facts))
                drafts = storage.drafts_of(1, self.draft_length, trees=self.trees)
                for name, more in (("ingest", (source, True)), ("scan", ()), ("draft", (drafts, 100))):
                    self.call(name, state, text, rows, *more)
                found.append([*drafts, state.slots, state.chain, state.voted, state.counts])
            self.changed += not all(map(torch.equal, *found))
            self.known[slot] = self.lengths[slot]
            self.extend(slot, self.path(at.Drafts(*found[0][:5]), 0))
        return {}


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_other_owners_tokens_change_no_draft(seed: int) -> None:
    run = Trapped(Random(seed), compiled, own=False)
    run.steps(15)
    assert run.changed == 0


def test_the_trap_springs_for_an_owner_s_own_tokens() -> None:
    changed = 0
    for seed in range(10):
        run = Trapped(Random(seed), compiled, own=True)
        run.steps(15)
        changed += run.changed
    assert changed > 20


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


@FORMS
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


@FORMS
def test_a_request_without_an_owner_drafts_from_no_response(form: ModuleType) -> None:
    talk = Talk(form)
    talk.remember(1, [1, 2, 3, 4], 0)
    talk.begin(0, [9, 1, 2], 1)
    assert talk.draft(0) == [3, 4]
    for owner in (0, 2):
        talk.begin(0, [9, 1, 2], owner)
        assert talk.draft(0) == []
