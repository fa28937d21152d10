"""Drafts from corpora, by examples in the reference and in the form for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.lookup import compiled, corpora, plain
from specplug.lookup.corpora import Segment
from tests.lookup.static import segment_of as segment
from tests.lookup.static import some_segment
from tests.lookup.talk import Talk

LONG = [*range(10, 40)]


class Reader(Talk):
    """Requests that draft from corpora."""

    def __init__(self, form: ModuleType, tenants: dict[str, list[Segment]]) -> None:
        super().__init__(form)
        self.numbers = corpora.Numbers()
        self.load(tenants)

    def load(self, tenants: dict[str, list[Segment]]) -> None:
        """Replace all corpora."""
        self.state = corpora.use(self.state, corpora.load(tenants, self.numbers, len(self.state.slots)))

    def ask(self, text: Sequence[int], tenant: str | None = "one", named: Sequence[str] = ()) -> list[int]:
        """Return the draft of a new request."""
        self.begin(0, text)
        corpora.assign(self.state, torch.tensor([0]), [self.numbers.known_numbers(tenant, named)])
        return self.draft(0)


def test_a_tenant_s_segments_are_drafted_from_and_named_as_the_source(form: ModuleType) -> None:
    reader = Reader(form, {"one": [segment([("c", [1, 2, 3, 4])]), segment([("c", [5, 6, 7])])], "two": []})
    assert (reader.ask([9, 1, 2]), reader.sources) == ([3, 4], [3, 3])
    assert reader.ask([9, 5]) == [6, 7]
    for tenant in ("two", "three", None):
        assert reader.ask([9, 1, 2], tenant) == []


def test_a_slot_s_next_request_has_no_tenant_of_the_one_before(form: ModuleType) -> None:
    reader = Reader(form, {"one": [segment([("c", [1, 2, 3, 4])])]})
    assert reader.ask([9, 1, 2]) == [3, 4]
    reader.begin(0, [9, 1, 2])
    assert reader.draft(0) == []


def test_the_longest_match_wins_also_in_a_later_segment(form: ModuleType) -> None:
    reader = Reader(form, {"one": [segment([("c", [7, 2, 3, 5])]), segment([("c", [1, 2, 3, 4])])]})
    assert reader.ask([1, 2, 3]) == [4]
    assert reader.ask([7, 2, 3]) == [5]


def test_of_equal_matches_a_named_corpus_is_preferred(form: ModuleType) -> None:
    others = [("big", [1, 2, 3, 50 + k]) for k in range(40)]  # more than a row has candidates
    reader = Reader(form, {"one": [segment([*others, ("mine", [1, 2, 3, 99, 98])])]})
    assert reader.ask([1, 2, 3], named=["mine"]) == [99, 98]
    assert reader.ask([1, 2, 3], named=["yours"]) != [99, 98]


def test_a_text_that_diverges_is_followed_on_within_its_text(form: ModuleType) -> None:
    reader = Reader(form, {"one": [segment([("c", LONG), ("c", [101, 102])])]})
    for edit, expected in (([77], 16), ([77, 15], 16), ([78, 79], 17)):
        assert reader.ask([9, *LONG[:5]])[:2] == [15, 16]
        reader.extend(0, edit)
        assert reader.draft(0)[:1] == [expected], edit
    reader.ask([9, *LONG[:28]])
    reader.extend(0, [77, 100])  # the next place would be in the next document
    assert reader.draft(0) == []


def test_replaced_corpora_are_not_followed(form: ModuleType) -> None:
    reader = Reader(form, {"one": [segment([("c", LONG)])]})
    reader.ask([9, *LONG[:5]])
    reader.extend(0, [77])
    assert reader.draft(0)[:1] == [16]
    reader.load({"one": [segment([("c", LONG[::-1])])]})
    assert reader.draft(0) == []


@given(st.integers(0, 1 << 32))
@settings(max_examples=30)
def test_a_damaged_segment_costs_drafts_only(seed: int) -> None:
    noise = np.random.default_rng(seed)
    whole = segment([("c", range(100, 140)), ("d", range(200, 240))])

    def damaged(array: Any) -> Any:
        return noise.integers(-(1 << 31), (1 << 31) - 1, array.shape).astype(array.dtype)

    text = whole.text.copy()
    text[1:-1] = np.abs(damaged(text[1:-1]))
    arrays = damaged(whole.places), damaged(whole.starts), damaged(whole.corpus_of)
    reader = Reader(compiled, {"one": [Segment(text if seed % 2 else whole.text, *arrays, whole.corpora)]})
    for step in range(12):
        reader.ask(whole.text[5 : 6 + step].tolist(), named=["d"])


def test_segments_that_do_not_fit_are_refused() -> None:
    good = segment([("c", range(100, 140))])
    wrong = (
        ("negative tokens at both ends", {"text": good.text[1:]}),
        ("fitting lengths", {"starts": good.starts[1:]}),
        ("contiguous", {"places": good.places[::2]}),
    )
    for message, changed in wrong:
        with pytest.raises(ContractError, match=message):
            Reader(plain, {"one": [good._replace(**changed)]})


def test_arrays_are_kept_and_not_copied() -> None:
    segments = {"one": [some_segment(Random(0), 5) for _ in range(3)]}
    found = corpora.load(segments, corpora.Numbers(), 1)
    for it, facts in zip(segments["one"], found.segments.tolist(), strict=True):
        assert found.corpus.data_ptr() + 4 * facts[corpora.TEXT] == it.text.ctypes.data
        assert found.corpus.data_ptr() + 4 * facts[corpora.PLACES] == it.places.ctypes.data
