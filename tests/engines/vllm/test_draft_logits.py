"""Draft logits for V2's rejection sampler, and probabilities for V1's, equal a plain reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specplug.types.caps import Distribution
from specplug.types.step import Draft
from specplug_vllm.worker.extended_v1 import ExtendedProposer, extend_probs
from specplug_vllm.worker.extended_v2 import write_one_hot
from specplug_vllm.worker.stage_steps import UNLIKELY
from specplug_vllm.worker.stage_steps import write_logits as write

SLOTS = 7
LONGEST = 5
VOCAB = 300


def reference(draft: Draft, temperature: Tensor, token_ids: Tensor) -> Tensor:
    """Return [B, K, V], position by position."""
    rows = []
    for row, ids in enumerate(token_ids.tolist()):
        floor = UNLIKELY * max(1.0, float(temperature[row]))
        positions = []
        for place, token in enumerate(ids):
            if draft.draft_logits is not None and place < int(draft.lengths[row]) and draft.drawn[row, place]:
                distribution = torch.full((VOCAB,), floor)
                distribution[columns(draft)] = draft.draft_logits[row, place].clamp(min=floor)
            else:
                distribution = torch.full((VOCAB,), floor)
                distribution[token] = 0.0
            positions.append(distribution)
        rows.append(torch.stack(positions))
    return torch.stack(rows)


def columns(draft: Draft) -> Tensor:
    return torch.arange(VOCAB) if draft.draft_vocab is None else draft.draft_vocab


def made(draft_length: int, stated: bool, seed: int, size: int = VOCAB) -> tuple[Draft, Tensor, Tensor, Tensor]:
    """Return a draft of 4 rows, their slots, temperatures and padded ids."""
    torch.manual_seed(seed)
    distribution = Distribution.LOGITS if stated else Distribution.ONE_HOT
    draft_vocab = None if size == VOCAB else torch.randperm(VOCAB)[:size]
    draft = Draft.allocate(4, draft_length, distribution=distribution, vocab_size=VOCAB, draft_vocab=draft_vocab)
    draft.lengths.copy_(torch.randint(0, draft_length + 1, (4,)))
    ids = torch.randint(0, VOCAB, (4, LONGEST))
    draft.token_ids.copy_(ids[:, :draft_length])
    if draft.draft_logits is not None:
        draft.draft_logits.copy_(torch.randn_like(draft.draft_logits) * 4)
        draft.draft_logits[torch.rand_like(draft.draft_logits) < 0.1] = -torch.inf
        draft.drawn.copy_(torch.rand(4, draft_length) < 0.8)
    return draft, torch.randperm(SLOTS)[:4], torch.tensor([0.0, 0.5, 1.0, 7.0]), ids


@pytest.mark.parametrize(("stated", "size"), [(False, VOCAB), (True, VOCAB), (True, 40)])
@pytest.mark.parametrize("draft_length", [0, 1, 3, LONGEST])
def test_it_is_the_plain_distribution_and_other_slots_keep_theirs(draft_length, stated, size):
    for seed in range(20):
        draft, slots, temperature, ids = made(draft_length, stated, seed, size)
        expected = torch.full((SLOTS, LONGEST, VOCAB), torch.nan)
        buffer = expected.clone()
        expected[slots] = reference(draft, temperature, ids)
        write(buffer, slots, draft, temperature, ids)
        torch.testing.assert_close(buffer, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(10))
def test_after_vllms_drafter_its_own_tokens_keep_their_logits(seed):
    torch.manual_seed(seed)
    slots = torch.randperm(SLOTS)[:4]
    temperature = torch.rand(SLOTS) * 3
    ids = torch.randint(0, VOCAB, (4, LONGEST))
    logits = torch.randn(SLOTS, LONGEST, VOCAB)
    from_engine = torch.randint(0, LONGEST + 1, (4,), dtype=torch.int32)
    expected = logits.clone()
    for row, slot in enumerate(slots.tolist()):
        for place in range(int(from_engine[row]), LONGEST):
            expected[slot, place] = UNLIKELY * max(1.0, float(temperature[slot]))
            expected[slot, place, ids[row, place]] = 0.0
    write_one_hot(logits, slots, ids, from_engine, temperature)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(10))
def test_after_vllms_drafter_its_own_tokens_keep_their_probabilities(seed):
    torch.manual_seed(seed)
    own = int(torch.randint(1, LONGEST, ()))
    probs = torch.rand(4, own, VOCAB)
    lengths = torch.randint(0, LONGEST + 1, (4,)).tolist()
    lengths[seed % 4] = LONGEST
    drafts = [torch.randint(0, VOCAB, (count,)).tolist() for count in lengths]
    from_engine = [min(own, count) if torch.rand(()) < 0.7 else 0 for count in lengths]
    found = extend_probs(probs, drafts, from_engine)
    assert found.shape == (4, LONGEST, VOCAB)
    for row, ids in enumerate(drafts):
        for place, token in enumerate(ids):
            one_hot = torch.zeros(VOCAB)
            one_hot[token] = 1.0
            expected = probs[row, place] if place < from_engine[row] else one_hot
            torch.testing.assert_close(found[row, place], expected, rtol=0, atol=0)


def test_after_a_step_that_failed_no_token_is_vllms_drafters():
    failed = SimpleNamespace(_rows=SimpleNamespace(kept=[0, 2]), _from_engine=[])
    assert ExtendedProposer._engine_counts(failed, 3) == [0, 0, 0]
    failed._from_engine = [3, 1]
    assert ExtendedProposer._engine_counts(failed, 3) == [3, 0, 1]
