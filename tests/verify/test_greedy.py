"""The shortcut for greedy batches equals the reference, which computes distributions."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.types.draft import NO_TOKEN, Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.reference import ReferenceVerifier, verify_greedy

VOCAB = 4


@st.composite
def steps(draw: st.DrawFn) -> tuple[Draft, torch.Tensor]:
    """Ragged drafts over few tokens, so that many are right; logits with ties and forbidden tokens."""
    batch, draft_length = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    lengths = [draw(st.integers(0, draft_length)) for _ in range(batch)]
    ids = [
        [draw(st.integers(0, VOCAB - 1)) if place < n else NO_TOKEN for place in range(draft_length)] for n in lengths
    ]
    levels = st.sampled_from([-torch.inf, -1.0, 0.0, 2.0])
    count = batch * (draft_length + 1)
    logits = [[draw(levels) for _ in range(VOCAB - 1)] + [0.0] for _ in range(count)]
    draft = replace(
        Draft.allocate(batch, draft_length),
        token_ids=torch.tensor(ids, dtype=torch.int32).reshape(batch, draft_length),
        lengths=torch.tensor(lengths, dtype=torch.int32),
    )
    return draft, torch.tensor(logits).reshape(batch, draft_length + 1, VOCAB)


def sampling(draft: Draft, *, all_greedy: bool) -> SamplingBatch:
    rows = draft.batch_size
    return SamplingBatch(torch.zeros(rows), torch.full((rows,), 2), torch.full((rows,), 0.5), all_greedy=all_greedy)


def numbers(draft: Draft) -> Uniforms:
    shape = (draft.batch_size, draft.draft_length + 1)
    return Uniforms(torch.rand(shape, dtype=torch.float64)[:, 1:], torch.rand(shape, dtype=torch.float64))


@given(steps(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_equals_the_general_path(step, flat):
    draft, dense = step
    rows = [dense[row, : length + 1] for row, length in enumerate(draft.lengths.tolist())]
    target = TargetLogits.flat(torch.cat(rows), draft.lengths) if flat else TargetLogits.dense(dense)
    expected = ReferenceVerifier().verify(draft, target, sampling(draft, all_greedy=False), numbers(draft))
    for found in (
        verify_greedy(draft, target),
        ReferenceVerifier().verify(draft, target, sampling(draft, all_greedy=True), numbers(draft)),
    ):
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.num_accepted.tolist() == expected.num_accepted.tolist()
        assert found.token_ids.dtype is found.num_accepted.dtype is torch.int32
