"""V1's thinking budgets on planted tokens, by vLLM's own functions: drafts that are cut at markers change nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from specplug_vllm.scheduler.planned import PlanningMixin, _reasoning_markers

END, START, NATURAL = 0, 1, 2
CHAIN = [58, 59, START, *range(10, 18), NATURAL, *range(30, 36), END]
"""What follows what: a prompt's end, reasoning, an answer."""

MARKERS = ([NATURAL], [3, NATURAL], [3, 4, NATURAL])
"""What is forced at the end of a budget."""

PROMPTS = ([57], [58], [59], [58, 59, START], [59, START, 10, 11])


def logits(tokens: list[int]) -> torch.Tensor:
    """Return logits [N, V] of a model whose tokens are decided by the one before them."""
    following = dict(itertools.pairwise(CHAIN)) | {57: 58, 3: 4}
    made = torch.zeros(len(tokens), 64)
    made[range(len(tokens)), [following.get(token, 30) for token in tokens]] = 10.0
    return made


def served(prompt: list[int], budget: int, marker: list[int], longest: int = 0, truth: Any = (), **how: Any) -> Any:
    """Return the output of one request, with drafts of up to `longest` tokens of `truth`, some of them wrong.

    Args:
        how: "cut" drafts as specplug's scheduler does; "wrong" [N] bools, by position.
    """
    reasoning = SimpleNamespace(reasoning_start_token_ids=[START], reasoning_end_token_ids=marker)
    holder = ThinkingBudgetStateHolder(reasoning, 1, longest, torch.device("cpu"), False)
    params, output = SimpleNamespace(thinking_token_budget=budget), list[int]()
    holder.sync_batch(BatchUpdate(batch_size=1, removed=[], added=[(0, params, prompt, output)], moved=[]))
    while len(output) < 40 and END not in output:
        place = len(output)
        draft = list(truth[place : place + longest]) if place else []
        draft = [50 if how["wrong"][place + n] else token for n, token in enumerate(draft)]
        if how.get("cut"):
            draft = cut(draft, params, reasoning)
        before = [(prompt + output)[-1], *draft]
        holder.update_state([output], [draft])
        if draft:
            bonus = holder.apply_to_logits(logits(before[-1:]), True, [draft])
            tested = holder.apply_to_logits(logits(before[:-1]), False, [draft])
            chosen = [*tested.argmax(-1).tolist(), int(bonus.argmax())]
        else:
            chosen = [int(holder.apply_to_logits(logits(before), False, [[]]).argmax())]
        accepted = next((n for n, token in enumerate(draft) if token != chosen[n]), len(draft))
        output += chosen[: accepted + 1]
    return output[: output.index(END) + 1]


def cut(draft: list[int], params: Any, reasoning: Any) -> list[int]:
    """Return what the scheduler leaves of a draft."""
    config = SimpleNamespace(reasoning_config=reasoning, use_v2_model_runner=False)
    request = SimpleNamespace(spec_token_ids=draft, sampling_params=params)
    PlanningMixin._cut_at_markers(SimpleNamespace(running=[request], _markers=_reasoning_markers(config)))
    return list(request.spec_token_ids)


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.sampled_from(PROMPTS),
    budget=st.integers(0, 12),
    marker=st.sampled_from(MARKERS),
    longest=st.integers(1, 8),
    knows=st.booleans(),
    wrong=st.lists(st.sampled_from([False, False, False, True]), min_size=60, max_size=60),
)
def test_drafts_change_nothing(prompt, budget, marker, longest, knows, wrong):
    """They know of the budget or go on beyond it, and tokens in them are wrong."""
    expected = served(prompt, budget, marker)
    truth = expected if knows else served(prompt, 100, marker)
    assert served(prompt, budget, marker, longest, truth, cut=True, wrong=wrong) == expected


def test_uncut_drafts_exceed_budgets():
    """When this fails, vLLM counts within drafts, and nothing need be cut."""
    expected, beyond = served([57], 0, [NATURAL]), served([57], 100, [NATURAL])
    assert served([57], 0, [NATURAL], 4, beyond, wrong=[False] * 60) != expected
