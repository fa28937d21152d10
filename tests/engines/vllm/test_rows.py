"""Rows whose state V1 keeps by step: the token behind a whole draft, and chunks of a prompt."""

from __future__ import annotations

import pytest

from tests.engines.plain import ids
from tests.engines.vllm.referee import reported

CAT = ids("<|edit|>the cat sat on the mat and the cat sat on the mat and the cat sat on the")
MINIMUM = [{"min_tokens": least, "stop_token_ids": [546], "max_tokens": 16} for least in (1, 2, 3, 5, 8, 9, 12)]


def test_a_stop_id_behind_a_draft_counts_from_the_minimum_on(kind, baseline, zoo):
    """The drafts are the answer up to the stop id, which V1 draws from the row behind them."""
    expected = baseline.call("inside.generate", prompts=[CAT] * len(MINIMUM), params=MINIMUM)
    lengths = [len(answer["token_ids"]) for answer in expected]
    assert lengths[0] == 9
    assert max(lengths) > 9
    for cut in range(1, 10):
        drafted = [
            {**own, **reported(answer["token_ids"][:cut])} for own, answer in zip(MINIMUM, expected, strict=True)
        ]
        assert zoo.call("inside.generate", prompts=[CAT] * len(MINIMUM), params=drafted) == expected
