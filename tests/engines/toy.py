"""A model whose sampled output has an exactly known distribution, for tests that compare an engine's counts with it.

It has 16 tokens, and the distribution of each depends only on the token before it, as its attention is off.  So every
two tokens of an answer are a sample of a known distribution, given the token before them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specplug.testing.equality import g_test

VOCAB = 16
PROMPT = [3, 9, 4, 11, 3, 9]
PAIRS = 16  # per answer


@functools.cache
def model() -> Any:
    """One layer without attention, and with a distribution that is far from uniform and far from certain."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.18,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)
    return model


@functools.cache
def distribution() -> torch.Tensor:
    """Return [V, V] float64: the distribution of the token after each token."""
    with torch.inference_mode():
        after = [model()(input_ids=torch.tensor([[*PROMPT, token]])).logits[0, -1] for token in range(VOCAB)]
    return torch.stack(after).double().softmax(-1)


def cut(kept: Callable[[list[float]], int]) -> torch.Tensor:
    """Return `distribution` with each row's largest entries alone, as many as `kept` returns for the sorted row."""
    rows = []
    for row in distribution().tolist():
        ranked = sorted(row, reverse=True)
        least = ranked[kept(ranked) - 1]
        rows.append([prob if prob >= least else 0.0 for prob in row])
    found = torch.tensor(rows, dtype=torch.float64)
    return found / found.sum(-1, keepdim=True)


def filtered() -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Return sampling parameters that filter tokens, each with the distribution [V, V] that is left."""
    by_p = cut(lambda ranked: next(n for n in range(17) if sum(ranked[:n]) >= 0.8))
    return [({"top_k": 5}, cut(lambda ranked: 5)), ({"top_p": 0.8}, by_p)]


def by_frequency() -> list[int]:
    """Return the tokens, the most frequent first."""
    return [int(token) for token in distribution().matrix_power(64)[0].argsort(descending=True)]


def p_value(answers: Sequence[Sequence[int]], expected_distribution: torch.Tensor | None = None) -> float:
    """Return the p-value of the pairs' counts, by a G-test.

    Args:
        answers: token ids after `PROMPT`, `2 * PAIRS` of them each, sampled at temperature 1.
        expected_distribution: [V, V] float64, another distribution than the model's.
    """
    expected_distribution = distribution() if expected_distribution is None else expected_distribution
    texts = torch.tensor([[PROMPT[-1], *answer] for answer in answers])
    first, second, third = (texts[:, start:][:, : 2 * PAIRS : 2].flatten() for start in range(3))
    counts = torch.bincount((first * VOCAB + second) * VOCAB + third, minlength=VOCAB**3)
    begins = torch.bincount(first, minlength=VOCAB) / len(first)  # given these, the pairs are independent
    expected = begins[:, None, None] * expected_distribution[:, :, None] * expected_distribution[None]
    return g_test(counts.numpy(), expected.flatten().numpy())
