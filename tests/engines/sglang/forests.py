"""Draft trees for tests of what walks them: one list per request, of each node the parent before it, or -1."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask


@st.composite
def forests(draw: st.DrawFn, most: int = 7) -> list[list[int]]:
    """Draft trees of one size: the parent of each node, which precedes it, or -1 for the root and for padding."""
    n = draw(st.integers(1, most))
    rows = draw(st.integers(1, 3))
    return [[-1, *(draw(st.integers(-1, node - 1)) for node in range(1, n))] for _ in range(rows)]


def ancestors(parents: list[int], node: int) -> list[int]:
    """Return a node and those above it."""
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found


def mask_of(forest: list[list[int]]) -> torch.Tensor:
    n = len(forest[0])
    mask = torch.zeros(len(forest), n, n, dtype=torch.bool)
    for row, parents in enumerate(forest):
        for node in range(n):
            mask[row, node, ancestors(parents, node)] = True
    return mask


def children(parents: list[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def linked(forest: list[list[int]], lengths: list[int] | None = None) -> dict[str, torch.Tensor]:
    """Return what the stand-in makes of trees; poisoned before."""
    rows, n = len(forest), len(forest[0])
    made = {
        "positions": torch.full((rows * n,), -77),
        "retrive_index": torch.full((rows, n), -77),
        "retrive_next_token": torch.full((rows, n), -77),
        "retrive_next_sibling": torch.full((rows, n), -77),
    }
    lens = torch.tensor(lengths or [0] * rows)
    reconstruct_indices_from_tree_mask(mask_of(forest).flatten(), lens, *made.values(), rows, n)
    return made


def outputs(rows: int, n: int, depth: int) -> dict[str, Any]:
    return {
        "predicts": torch.full((rows * n,), -77, dtype=torch.int32),
        "accept_index": torch.full((rows, depth), -1, dtype=torch.int32),
        "accept_token_num": torch.full((rows,), -77, dtype=torch.int32),
    }
