"""Greedy output equals `model.generate` token for token, whatever is drafted."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

from tests.transformers.conftest import assert_greedy_equal, assert_plain, cached_model, greedy, requests_of
from tests.transformers.toys import Oracle, prompts

PROMPTS = prompts(5)
MAX_TOKENS = 32


@functools.cache
def answers(name: str) -> tuple[object, list[list[int]]]:
    """A model, and its own answers to `PROMPTS`."""
    model = cached_model(name)
    return model, [greedy(model, prompt, MAX_TOKENS, eos_token_id=None) for prompt in PROMPTS]


def assert_same(engine, name):
    """Serve `PROMPTS`, compare, and return the outputs."""
    model, expected = answers(name)
    outputs = engine.generate(requests_of(PROMPTS, max_tokens=MAX_TOKENS, ignore_eos=True))
    assert_greedy_equal(model, PROMPTS, expected, [output.token_ids for output in outputs])
    return outputs


def test_in_double_precision(make_engine):
    model = copy.deepcopy(cached_model("sliding mistral")).to(torch.float64)
    engine = make_engine(model, proposer="ngram", options={"ngram": {"min_n": 1}})
    outputs = engine.generate(requests_of(PROMPTS[:3], max_tokens=MAX_TOKENS, ignore_eos=True))
    assert_plain(model, PROMPTS[:3], outputs, MAX_TOKENS)


@pytest.mark.parametrize(
    ("gamma", "proposer", "settings"),
    [
        (0, "ngram", {}),
        (1, "garbage", {}),
        (3, "row writer", {}),
        (9, "garbage", {}),
        (4, "garbage", {"policy": "none"}),
    ],
)
def test_at_every_draft_length(gamma, proposer, settings, make_engine):
    engine = make_engine(proposer=proposer, num_speculative_tokens=gamma, max_num_seqs=3, **settings)
    assert_same(engine, "llama")
    assert (engine.metrics.snapshot().total.proposed > 0) == (gamma > 0 and not settings)
    assert not engine.metrics.snapshot().faults


@pytest.mark.parametrize("name", ["llama", "sliding mistral"])
def test_right_drafts_are_all_accepted(name, make_engine):
    model, expected = answers(name)
    engine = make_engine(model, proposer="oracle")
    Oracle.answers = {f"request-{index}": answer for index, answer in enumerate(expected)}
    outputs = assert_same(engine, name)
    total = engine.metrics.snapshot().total
    assert total.accepted > 0 == total.rejected
    for output in outputs:
        assert output.steps == -(-len(output.token_ids) // 5), "four draft tokens and one more in every step"


def test_a_token_budget_trims_the_batch(make_engine):
    engine = make_engine(policy="fixed", options={"fixed": {"token_budget": 3}}, max_num_seqs=4)
    assert_same(engine, "llama")
    assert 0 < engine.metrics.snapshot().total.proposed <= 3 * engine.steps


def test_up_to_the_last_position(make_engine):
    """Drafts and padding reach beyond the context limit; the text stops at it."""
    model = cached_model("gpt2")  # learned positions: one too many is an index error
    expected = [greedy(model, prompt, 24 - len(prompt), eos_token_id=None) for prompt in ([5, 6] * 10, [9])]
    engine = make_engine(model, max_length=24, num_speculative_tokens=8)
    outputs = engine.generate(requests_of([[5, 6] * 10, [9]], max_tokens=500, ignore_eos=True))
    assert_greedy_equal(model, [[5, 6] * 10, [9]], expected, [output.token_ids for output in outputs])
    assert [output.finish_reason for output in outputs] == ["length", "length"]


def test_bfloat16_runs_the_same_arithmetic_at_draft_length_zero(make_engine):
    """Half precision rounds differently by shape; plain decoding of one request has `generate`'s shapes."""
    model = cached_model("llama").__class__(cached_model("llama").config)
    model.load_state_dict(cached_model("llama").state_dict())
    model = model.to(torch.bfloat16).eval()
    engine = make_engine(model, mode="off")
    [output] = engine.generate(requests_of([torch.tensor([5])], max_tokens=12, ignore_eos=True))  # a tensor will do
    assert list(output.token_ids) == greedy(model, [5], 12, eos_token_id=None)
