"""The reference verifier's own figures, draft vocabularies, and what it refuses.

The contract of all verifiers is held in tests/testing/test_verifier_contract.py, the output's distribution in
test_lossless.py.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.testing.batches import VerifyStep
from specplug.types.caps import Distribution
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.draft_distribution import was_drawn, write_probs
from specplug.verify.random import uniforms
from specplug.verify.reference import ReferenceVerifier
from tests.verify.full_probs import full_probs

VOCAB = 5
FEW = settings(max_examples=40)
VERIFIER = ReferenceVerifier()


@st.composite
def steps(draw):
    sizes = {"batch_size": draw(st.integers(1, 4)), "draft_length": draw(st.integers(0, 4))}
    distribution = draw(st.sampled_from(list(Distribution)))
    return VerifyStep.random(draw(st.integers(0, 10_000)), distribution, vocab_size=VOCAB, **sizes)


def one_row(drafted, logits, accept, draw, *, probs=None):
    """Verify one row with chosen numbers."""
    distribution = Distribution.ONE_HOT if probs is None else Distribution.PROBS
    draft = Draft.allocate(1, len(drafted), distribution=distribution, vocab_size=logits.shape[-1])
    draft.set_row(0, drafted, 1.0)
    if probs is not None:
        draft.draft_probs[0] = probs
    numbers = Uniforms(
        torch.tensor([accept], dtype=torch.float64).reshape(1, len(drafted)), torch.tensor([draw], dtype=torch.float64)
    )
    return VERIFIER.verify(draft, TargetLogits.dense(logits[None]), SamplingBatch(torch.ones(1)), numbers)


LAST = 1 - 2.0**-53


@FEW
@given(steps(), st.data())
def test_the_text_is_that_without_drafts_whatever_is_drafted(step, data):
    """One-hot drafts that are right, nearly right and wrong; the target's logits depend on the position alone."""
    step.draft.token_ids.clamp_(min=0)
    length = step.draft.draft_length
    plain = [
        VERIFIER.verify(
            Draft.allocate(step.draft.batch_size, 0),
            TargetLogits.dense(step.dense[:, place : place + 1]),
            step.sampling,
            Uniforms(step.uniforms.accept[:, :0], step.uniforms.draw[:, place : place + 1]),
        ).token_ids
        for place in range(length + 1)
    ]
    text = torch.cat(plain, 1)
    right = torch.tensor([[data.draw(st.booleans()) for _ in range(length)] for _ in text], dtype=torch.bool)
    right = right.view(len(text), length)
    step.draft.token_ids.copy_(torch.where(right, text[:, :length], step.draft.token_ids))
    found = replace(step, draft=step.draft.as_one_hot()).verify(VERIFIER)
    emitted = torch.arange(length + 1) < found.num_emitted[:, None]
    assert torch.equal(found.token_ids[emitted], text[emitted])
    inside = right & (torch.arange(length) < step.draft.lengths[:, None])
    assert (found.num_accepted >= inside.int().cumprod(1).sum(1)).all()


def test_an_empty_residual_still_gives_a_possible_token():
    """If the draft distribution exceeds the target everywhere, the residual is empty and p replaces it."""
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]]).expand(2, 3)
    wrong = torch.tensor([[1.0, 0.0, 0.0]])
    assert one_row([1], logits, [0.5], [LAST, 0.0], probs=wrong).token_ids.tolist() == [[0, -1]]


def test_ids_outside_the_vocabulary_are_never_emitted():
    for wild in (-7, 99):
        for number in (0.0, 0.5, LAST):
            result = one_row([wild], torch.zeros(2, 3), [0.0], [number, 0.0])
            emitted = result.token_ids[0, : result.num_emitted.item()]
            assert ((emitted >= 0) & (emitted < 3)).all()


@settings(max_examples=100)
@given(steps(), st.booleans())
def test_the_shortcut_for_greedy_batches_equals_the_general_path(step, flat):
    """With ties, and with tokens that are forbidden; many draft tokens are right."""
    dense = step.dense.round().masked_fill(step.dense < -2, -torch.inf)
    dense[..., -1] = 0.0
    is_right = step.draft.token_ids.long() % 2 == 0
    step.draft.token_ids.copy_(
        torch.where(is_right & step.draft.mask(), dense[:, :-1].argmax(-1), step.draft.token_ids)
    )
    both = [replace(step, dense=dense).as_greedy(all_greedy=it).verify(VERIFIER, flat=flat) for it in (True, False)]
    (found, expected) = ((it.token_ids.tolist(), it.num_accepted.tolist(), it.token_ids.dtype) for it in both)
    assert found == expected


@pytest.mark.parametrize(
    ("buffer", "count", "message"),
    [
        ({"trees": True}, 2, "as_chain"),
        ({}, 3, r"accept \(1, 3\).*expected accept \(1, 2\)"),
        ({"distribution": Distribution.PROBS, "vocab_size": 9}, 2, rf"draft_probs.*found 9.*expected {VOCAB}"),
    ],
    ids=["a tree", "numbers of another draft length", "another vocabulary"],
)
def test_what_does_not_fit_is_refused(buffer, count, message):
    zero, target = torch.zeros(1, dtype=torch.int64), TargetLogits.dense(torch.zeros(1, 3, VOCAB))
    with pytest.raises(ContractError, match=message):
        VERIFIER.verify(
            Draft.allocate(1, 2, **buffer), target, SamplingBatch(torch.ones(1)), uniforms(zero, zero, count)
        )


@FEW
@given(steps(), st.permutations(range(VOCAB)), st.integers(1, VOCAB), st.data())
def test_a_draft_vocabulary_is_the_full_distribution_with_zeros(step, ids, size, data):
    """Columns of a part of the vocabulary, in any order, and tokens outside of it; some of them one-hot drafts."""
    draft = step.draft
    assume(draft.distribution is not Distribution.ONE_HOT)
    draft_vocab = torch.tensor(ids[:size])
    flags = data.draw(st.lists(st.booleans(), min_size=draft.token_ids.numel(), max_size=draft.token_ids.numel()))
    part = replace(
        draft,
        draft_logits=None if draft.draft_logits is None else draft.draft_logits[:, :, :size],
        draft_probs=None if draft.draft_probs is None else draft.draft_probs[:, :, :size] + 1e-3,
        draft_vocab=draft_vocab,
        drawn=torch.tensor(flags, dtype=torch.bool).view_as(draft.token_ids),
    )
    part.validate()
    probs = full_probs(part, step.sampling.temperature, VOCAB)
    one_hot = ~was_drawn(part, step.sampling.temperature)
    outside = [token for token in range(VOCAB) if token not in draft_vocab.tolist()]
    assert not probs[~one_hot][:, outside].any()
    assert torch.equal(probs[one_hot].argmax(-1), part.token_ids[one_hot].clamp(min=0).long())
    full = replace(
        draft, distribution=Distribution.PROBS, draft_logits=None, draft_probs=probs, draft_vocab=None, drawn=~one_hot
    )
    found, expected = replace(step, draft=part).verify(VERIFIER), replace(step, draft=full).verify(VERIFIER)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.num_accepted, expected.num_accepted)


@FEW
@given(steps(), st.permutations(range(VOCAB)), st.integers(1, VOCAB), st.booleans())
def test_written_out_for_an_engine_it_is_the_full_distribution(step, ids, size, is_part):
    draft = step.draft
    assume(draft.distribution is Distribution.PROBS)
    if is_part:
        probs = draft.draft_probs[:, :, :size].softmax(-1)
        draft = replace(draft, draft_probs=probs, draft_vocab=torch.tensor(ids[:size]))
    draft = draft.as_one_hot(step.sampling.temperature == 0)
    expected = full_probs(draft, step.sampling.temperature, VOCAB).float()
    buffer = torch.full((*draft.token_ids.shape, VOCAB), torch.nan)
    write_probs(buffer, draft)
    torch.testing.assert_close(buffer, expected)
    if not is_part:
        write_probs(draft.draft_probs, draft)
        torch.testing.assert_close(draft.draft_probs, expected)
