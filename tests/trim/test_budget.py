"""The budget that prices amount to."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.trim import admitted, priced_budget
from specplug.types.trim import TrimLimits
from tests.trim.tools import random_case


@given(random=st.randoms(use_true_random=False), trees=st.booleans())
@settings(max_examples=300, deadline=None)
def test_it_is_the_number_of_tokens_that_the_trim_half_keeps_without_one(random, trees):
    case = random_case(random, trees=trees)
    draft = case.draft
    expected = admitted(draft, TrimLimits.build(draft.token_ids.numel(), case.decoding, case.prices, case.entry))
    found = priced_budget(draft.survival()[draft.mask()].numpy(), case.prices, case.entry)
    assert found == int(expected.sum())


def test_without_prices_all_are_worth_it():
    assert priced_budget(torch.rand(3, 4).numpy(), ()) == 12
