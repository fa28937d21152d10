"""Where requests end is judged token by token, so that every end is that of the server without speculation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.sglang import inside
from tests.engines.sglang.planted_runs import PIECES, served
from tests.engines.sglang.test_exact import LOOP, NEWLINE, pair

__all__ = ["pair"]

STRINGS = ["x", "y", "= 2", "1\ny", " 3\n", "\n", "z = 3", "é", "日", "\ufffd", "<|end|>", "never"]
EXPRESSIONS = ["[yz] =", "= [13]$", "(é|日)"]
STOPS: list[dict[str, Any]] = [
    {"stop": ["x = 1", "= 2"]},
    {"stop": ["= 2", "x = 1"]},
    {"stop": ["x = 1", "= 2"], "no_stop_trim": True},
    {"stop": ["x = 1", " = 2\nx"], "stop_token_ids": [NEWLINE]},
    {"stop": ["1\ny", "2\nx ="], "ignore_eos": True, "max_new_tokens": 6},
]
"""Stops of which several lie in the first draft of the answer to `LOOP`."""


def test_planted_runs(pair):
    """Random stops of every sort, in every order, streamed or not: steps of many tokens give what steps of one do."""
    pair[1].inside(planted_runs)


@pytest.mark.parametrize("streamed", [False, True])
def test_several_stops_in_one_draft(pair, streamed):
    """The first that the text completes ends it, in whatever order they are listed."""
    expected, found = (engine.call(answers, streamed=streamed) for engine in pair)
    assert found == expected
    assert expected[0]["text"] == "y "
    assert expected[0]["stop_reason"] == "= 2"
    assert {type(one["stop_reason"]) for one in expected} == {str, int}


def answers(engine: Any, streamed: bool) -> list[dict[str, Any]]:
    """Return what `STOPS` give, each with its logprobs rounded."""
    found = []
    for own in STOPS:
        params = {"temperature": 0.0, "max_new_tokens": 40, **own}
        given = engine.generate(input_ids=LOOP, sampling_params=params, return_logprob=True, stream=streamed)
        last = [*given][-1] if streamed else given
        described = inside.described(last)
        meta = described.pop("meta")
        logprobs = [round(value, 3) for value, *_ in meta["output_token_logprobs"]]
        found.append({**described, "text": last["text"], "logprobs": logprobs, "tokens": meta["completion_tokens"]})
    return found


def planted_runs(scheduler: Any) -> None:
    """Compare in the scheduler's process, where the hooks are installed."""
    ends = set()
    orders = st.lists(st.sampled_from(STRINGS), unique=True, max_size=4)

    @settings(max_examples=400, database=None, deadline=None, derandomize=True)
    @given(
        tokens=st.lists(st.sampled_from(PIECES), min_size=1, max_size=30),
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
        params=st.fixed_dictionaries(
            {
                "stop": orders,
                "stop_regex": st.lists(st.sampled_from(EXPRESSIONS), unique=True, max_size=1),
                "stop_token_ids": st.lists(st.sampled_from(PIECES), max_size=2),
                "max_new_tokens": st.integers(1, 45),
                "ignore_eos": st.booleans(),
                "no_stop_trim": st.booleans(),
                "skip_special_tokens": st.booleans(),
            }
        ),
        stream=st.booleans(),
        require_reasoning=st.booleans(),
    )
    def compare(tokens: Any, sizes: Any, params: Any, **options: Any) -> None:
        tokens = (tokens * params["max_new_tokens"])[: params["max_new_tokens"]]  # the room that is left cuts drafts
        expected = served(scheduler.tokenizer, tokens, [1], params, **options)
        assert served(scheduler.tokenizer, tokens, sizes, params, **options) == expected
        ends.add(type(expected["reason"].get("matched")))

    compare()
    assert ends == {type(None), str, int}, "some sort of end was not tried"
