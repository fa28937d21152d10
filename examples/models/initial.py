"""Initialisation with a weak copy mechanism, which would otherwise take most of the training to appear.

A small transformer learns to copy by forming *induction heads* (Olsson et al., "In-context
Learning and Induction Heads", 2022): heads of one layer note at every token which tokens came just
before it; heads of the next look for the place where the same tokens came before, and copy what
followed there.  With few tokens to train on, waiting for them costs most of the budget.  This module
only starts the first two layers near that solution, with ordinary Llama weights; training then
moves all of them.  (The idea of starting attention near a useful structure:
Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers", 2023.)
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from transformers import LlamaForCausalLM

POSITION_PAIRS = 8
"""Number of fastest rotary pairs of a head, which distinguish neighbouring positions."""

POSITION_GAIN = 6.0
NOTE_GAIN = 0.05
MATCH_GAIN = 2.0
COPY_GAIN = 0.3


def start_with_induction(model: LlamaForCausalLM, seed: int = 0) -> None:
    """Overwrite the attention of the first two layers, and give all embeddings a common part.

    Head h of the first layer attends h + 1 tokens back and passes that token on.  Each head of
    the second layer compares the current token, and the one before, with what the first layer
    noted about the candidates' predecessors, and copies the candidate.
    """
    config = model.config
    generator = Generator().manual_seed(seed)
    width, heads = config.hidden_size, config.num_attention_heads
    head_dim = config.head_dim
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    base = config.rope_parameters["rope_theta"]
    frequencies = base ** (-torch.arange(0, head_dim, 2) / head_dim)
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(config.initializer_range)
        common = torch.full((width,), width**-0.5)
        seen = _orthogonal(head_dim, width, generator)
        seen -= torch.outer(seen @ common, common)
        embeddings = _orthogonal(width, width, generator)
        for head in range(heads):
            rows = slice(head * head_dim, (head + 1) * head_dim)
            key, query = _position_vectors(frequencies, back=head + 1)
            scale = POSITION_GAIN / (width / 2) ** 0.5
            first.k_proj.weight[rows] = scale * torch.outer(key, common)
            first.q_proj.weight[rows] = scale * torch.outer(query, common)
            first.v_proj.weight[rows] = seen
            first.o_proj.weight[:, rows] = NOTE_GAIN * embeddings[:, rows]
            key, query = _match_rows(seen, embeddings, head)
            second.k_proj.weight[rows] = MATCH_GAIN * key
            second.q_proj.weight[rows] = MATCH_GAIN * query
        copied = _orthogonal(width, width, generator)
        second.v_proj.weight.copy_(copied - torch.outer(copied @ common, common))
        second.o_proj.weight.copy_(COPY_GAIN * copied.T)


def _match_rows(seen: Tensor, embeddings: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Return key and query rows [head_dim, width] that match the two preceding tokens.

    Only the slow rotary pairs are used, because they barely depend on the distance: the first
    half of a pair compares the current token with a candidate's predecessor, the second half
    the current token's predecessor with the one before a candidate's.
    """
    head_dim, width = seen.shape
    size = head_dim // 4
    part = (torch.arange(size) + head * size) % head_dim
    key, query = torch.zeros(head_dim, width), torch.zeros(head_dim, width)
    one_back, two_back = embeddings[:, :head_dim].T, embeddings[:, head_dim : 2 * head_dim].T
    key[size : 2 * size], query[size : 2 * size] = one_back[part], seen[part]
    key[3 * size :], query[3 * size :] = two_back[part], one_back[part]
    return key, query


def _orthogonal(rows: int, columns: int, generator: Generator) -> Tensor:
    """Return a random matrix with orthonormal rows; `rows` is at most `columns`."""
    return torch.linalg.qr(torch.randn(columns, rows, generator=generator)).Q.T.contiguous()


def _position_vectors(frequencies: Tensor, back: int) -> tuple[Tensor, Tensor]:
    """Return key and query [head_dim] whose product is greatest `back` positions apart.

    Rotary dimension i is paired with i + head_dim / 2; the query is the key turned back.
    """
    half = len(frequencies)
    key, query = torch.zeros(2 * half), torch.zeros(2 * half)
    angles = -back * frequencies[:POSITION_PAIRS]
    key[:POSITION_PAIRS] = 1.0
    query[:POSITION_PAIRS] = torch.cos(angles)
    query[half : half + POSITION_PAIRS] = torch.sin(angles)
    return key, query
