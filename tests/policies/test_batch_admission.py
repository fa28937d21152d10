"""The compiled trim half of the policy `batch` keeps the same tokens as the plain one, and learns the same figures."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.testing.c_functions import kept_by
from specplug.types.caps import EngineCaps, Ragged
from tests.policies.test_batch import PADDED, trimmer
from tests.trim.tools import bits, random_case


def options(random: Random) -> dict[str, object]:
    return {
        "saturation": random.choice([1, 3, 7, 20, 300]),
        "overhead": random.choice([0.0, 0.02, 0.5]),
        "margin": random.choice([0.0, 0.01, 0.3]),
        "horizon": random.choice([1, 3, 256]),
        "batch_size": random.choice([None, None, 1, 5, 64]),
    }


@pytest.mark.parametrize("caps", [EngineCaps(64, ragged=Ragged.NATIVE), PADDED], ids=["ragged", "padded"])
@settings(max_examples=200, deadline=None)
@given(random=st.randoms(use_true_random=False), trees=st.booleans())
def test_tokens_and_figures_are_those_of_the_plain_form(caps, random, trees):
    chosen = options(random)
    plain, fast = (trimmer(caps, **chosen) for _ in range(2))
    step = fast.host_trim()
    for _ in range(random.randint(1, 5)):
        case = random_case(random, trees=trees)
        expected = plain.trim(case.draft, case.limits)
        assert bits(case.draft.keep(kept_by(step, case.draft, case.limits))) == bits(expected)
        assert torch.equal(fast._sums, plain._sums)
