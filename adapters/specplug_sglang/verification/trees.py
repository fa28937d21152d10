"""Drafts as SGLang verifies them: a root, which is the last token of the text, and behind it the draft's nodes.

All rows of a batch have as many nodes as the step is wide.  Those behind a row's own draft are filler: no node points
to them, so the verifier's walk never comes there.  Nor does it come to a node with the token of a sibling before it,
whose probability SGLang's kernels would count twice.  Everything is computed on the device, and nothing is read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specplug.types.draft import Draft


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """What is verified of B rows, n nodes each; node 0 is the root.

    Attributes:
        tokens: [B, n] int64; of filler the root's.
        depth: [B, n] int64, nodes between the root and the node, itself included; 0 for the root and for what hangs
            nowhere.
        child: [B, n] int64, the first node below each, -1 for none.
        sibling: [B, n] int64, the next node below the same parent, -1 for none.
        sees: [B, n, n] bool, which nodes are above each node, itself included; None for chains, where it is those
            before it.
    """

    tokens: Tensor
    depth: Tensor
    child: Tensor
    sibling: Tensor
    sees: Tensor | None


def nodes_of(draft: Draft, last: Tensor) -> Nodes:
    """Put the root before each row's draft.

    Args:
        draft: B rows of at most N = n - 1 tokens, chains or trees.
        last: [B] int64, the last token of each text.
    """
    inside = draft.mask()
    tokens = torch.cat([last[:, None], torch.where(inside, draft.token_ids.long(), last[:, None])], 1)
    place = torch.arange(draft.draft_length + 1, device=last.device)
    if draft.parents is None:
        below = place < draft.lengths[:, None]  # a node follows, as long as the draft goes on
        depth = torch.where(place <= draft.lengths[:, None], place, 0)
        return Nodes(tokens, depth, torch.where(below, place + 1, -1), torch.full_like(tokens, -1), None)
    hung = place[1:] if draft.draft_length else place[:0]
    parents = torch.where(inside, draft.parents.long() + 1, -1)  # [B, N], of the nodes 1 to N; of filler none
    return _tree(tokens, torch.where(_repeats(tokens[:, 1:], parents), -1, parents), hung, place)


def _repeats(tokens: Tensor, parents: Tensor) -> Tensor:
    """Return [B, N] bool: which nodes have the token [B, N] of a node before them that hangs on the same parent."""
    alike = (tokens[:, :, None] == tokens[:, None, :]) & (parents[:, :, None] == parents[:, None, :])
    return alike.tril(-1).any(2)


def _tree(tokens: Tensor, parents: Tensor, hung: Tensor, place: Tensor) -> Nodes:
    """Find links, depths and ancestors from the parents [B, N] of nodes `hung` [N] among all `place` [n]."""
    none = place.shape[0]
    is_child = parents[:, None, :] == place[:, None]  # [B, n, N]: node `hung[j]` hangs on node i
    child = torch.where(is_child, hung, none).amin(2) if hung.numel() else torch.full_like(tokens, none)
    of_same = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    later = of_same & (hung > hung[:, None])  # [B, N, N]: j hangs beside i and comes after it
    sibling = torch.full_like(tokens, none)
    if hung.numel():
        sibling[:, 1:] = torch.where(later, hung, none).amin(2)
    sees = _reached(is_child)
    depth = sees.sum(2) - 1
    return Nodes(tokens, depth, _or_none(child, none), _or_none(sibling, none), sees)


def _reached(is_child: Tensor) -> Tensor:
    """Return [B, n, n] bool: the nodes above each, itself included, from the links [B, n, N] of parents to nodes.

    Each round doubles the length of the paths that are followed; counts of at most n are exact in float.
    """
    n = is_child.shape[1]
    up = torch.nn.functional.pad(is_child.transpose(1, 2), (0, 0, 1, 0))  # nobody is above the root
    reached = (up | torch.eye(n, dtype=torch.bool, device=up.device)).float()
    for _ in range((n - 1).bit_length()):
        reached = (reached @ reached).clamp_(max=1.0)
    return reached.bool()


def _or_none(links: Tensor, none: int) -> Tensor:
    return torch.where(links < none, links, -1)


def chain_sees(rows: int, n: int, device: torch.device) -> Tensor:
    """Return [B, n, n] bool: in chains, filler included, each node sees itself and those before it."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(rows, n, n)


def whole_mask(sees: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Return the mask that attention on a GPU takes: per row [n, its text and its nodes], flat, one row after another.

    Every node sees all of the text, so cells are allocated as seen, a byte each, and those of nodes are written.

    Args:
        sees: [B, n, n] bool.
        lengths: [B] int64, cached tokens before the nodes.
        total: their sum, or more, which the host knows.

    Returns:
        [n * total + B * n * n] bool; cells at the end are unused where `total` is more than the sum.
    """
    rows, n, _ = sees.shape
    sizes = n * (lengths + n)  # of each row
    node = torch.arange(n, device=sees.device)
    lines = (sizes.cumsum(0) - sizes)[:, None] + node * (lengths + n)[:, None]  # [B, n], where each node's begins
    cells = (lines + lengths[:, None])[:, :, None] + node
    mask = torch.ones(n * total + rows * n * n, dtype=torch.bool, device=sees.device)
    return mask.scatter_(0, cells.flatten(), sees.flatten())
