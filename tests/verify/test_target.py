"""The sampling distribution equals that of the Hugging Face warpers, row by row, ties included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specplug.verify.target import target_probs

FEW = settings(max_examples=100)


def warped(logits, temperature, top_k, top_p, min_p):
    """Return one row's distribution as `model.generate` computes it."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).float()
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    scores = logits[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0]


def parameters(rows):
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return (
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int64),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )


knobs = st.tuples(
    st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 3, 5, 100]),
    st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 0.6, 0.7, 0.75, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)


@FEW
@given(
    st.lists(knobs, min_size=1, max_size=4), st.integers(2, 12), st.integers(0, 10_000), st.sampled_from([0, 2, 1e3])
)
def test_rows_equal_the_warpers(rows, vocab, seed, scale):
    """With ties, some or everywhere; and with masked tokens, which have no probability."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(rows), vocab, generator=generator) * scale).round() / max(scale, 2) * 2
    is_masked = torch.rand(len(rows), vocab, generator=generator) < (0.3 if seed % 2 else 0.0)
    is_masked[:, seed % vocab] = False
    logits.masked_fill_(is_masked, -torch.inf)
    probs = target_probs(logits, *parameters(rows))
    assert not probs[is_masked].any()
    for row, knob in enumerate(rows):
        expected = warped(logits[row], *knob)
        assert torch.equal(probs[row] > 0, expected > 0), "another set of tokens is kept"
        torch.testing.assert_close(probs[row], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [1e-20, 1e-37, 1e-38, 1e-40, 1e-44])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tiny_temperatures_leave_the_largest_logits(temperature, dtype):
    logits = torch.tensor([[-7.0, 2.0, -torch.inf, 3.0, 300.0, 300.0], [-9.0, -8.0, -torch.inf, -90.0, -7.0, -8.0]])
    expected = torch.tensor([[0, 0, 0, 0, 0.5, 0.5], [0, 0, 0, 0, 1, 0]])
    filters = torch.tensor([3, 0]), torch.tensor([1.0, 0.9]), torch.tensor([0.0, 0.1])
    for chosen in ((), filters):
        probs = target_probs(logits.to(dtype), torch.full((2,), temperature), *chosen)
        torch.testing.assert_close(probs, expected.to(probs.dtype))
