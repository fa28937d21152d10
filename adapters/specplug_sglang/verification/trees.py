"""Node layout in which SGLang verifies drafts: a root, the last token of the text, followed by the draft's nodes.

All rows of a batch have the same number of nodes.  Nodes after a row's own draft are padding: no node links to them, so
the verifier's walk never reaches them.  Nor does it reach a node that repeats the token of an earlier sibling, whose
probability SGLang's kernels would count twice.  Everything is computed on the device, and nothing is read back.

SGLang keeps no texts on the device, so a table of the worker's holds those of all running requests.  A prompt is
written once, when its request gets a slot; each step appends its emitted tokens from the verifier's output.  So the
next step sees the newest tokens however far ahead the host is.

`verification` and `append` work on any device, in tensor operations; on a GPU `kernels` has both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.launching import power_of_two
from specplug.types.step import Draft


class TokenTable:
    """Token ids by slot.

    Args:
        slots, length: S rows, and L, the longest text.
        max_emitted: most tokens that a step emits per request.
        device: the table's device.

    Attributes:
        tokens: [S, L + max_emitted + 1] int32; undefined at and beyond a row's length.
        places: [max_emitted] int64, the numbers from 0 on.
        nodes: [4, S * max_emitted] int64, where kernels write the nodes of chains.
        block: the least power of two that holds the nodes of any step, so that no step compiles a kernel again.
    """

    def __init__(self, slots: int, length: int, max_emitted: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots, length + max_emitted + 1, dtype=torch.int32, device=device)
        self.max_emitted = max_emitted
        self.block = power_of_two(max_emitted)
        self.places = torch.arange(max_emitted, device=device)
        self.nodes = torch.empty(4, slots * max_emitted, dtype=torch.int64, device=device)
        self.chains = lru_cache(maxsize=256)(self._chains)

    def _chains(self, rows: int, n: int) -> Nodes:
        """Return the nodes of chains that kernels write, views of `nodes`."""
        tokens, positions, child, sibling = self.nodes[:, : rows * n].view(4, rows, n).unbind()
        return Nodes(tokens, positions, child, sibling, None)

    def write(self, slot: int, text: npt.NDArray[np.int64]) -> None:
        """Write a request's text [n] in one asynchronous copy."""
        staged = torch.from_numpy(text.astype(np.int32))
        if self.tokens.device.type == "cuda":
            staged = staged.pin_memory()
        self.tokens[slot, : len(text)].copy_(staged, non_blocking=True)

    def append_one(self, slots: Tensor, lengths: Tensor, emitted: Tensor) -> None:
        """Append one token per row, [B] int32, to texts of `lengths` [B] tokens in `slots` [B].

        A row that goes on beyond the longest text does so for a single step, for which the table has a column.
        """
        self.tokens[slots, lengths] = emitted


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes to verify of B rows, n nodes each; node 0 is the root.

    Attributes:
        tokens: [B, n] int64; padding holds the root's token.
        positions: [B, n] int64, positions in the text; the root's for nodes without a parent.
        child: [B, n] int64, first child of each node, -1 for none.
        sibling: [B, n] int64, next node with the same parent, -1 for none.
        sees: [B, n, n] bool, the ancestors of each node, itself included; None for chains, where they are all earlier
            nodes.
    """

    tokens: Tensor
    positions: Tensor
    child: Tensor
    sibling: Tensor
    sees: Tensor | None


class Verification(NamedTuple):
    """What a step verifies; the next one overwrites the `nodes`.

    Attributes:
        nodes: B rows of n nodes.
        cached: [B * n] int64, the places of their keys and values in SGLang's cache.
        counts: [B] int32, of each row the draft's nodes and the root.
    """

    nodes: Nodes
    cached: Tensor
    counts: Tensor


def verification(draft: Draft, table: TokenTable, slots: Tensor, before: Tensor, places: Tensor) -> Verification:
    """Return what verifies a draft, after the newest token of each text.

    Args:
        draft: B rows of at most N = n - 1 tokens, chains or trees.
        table: the token table.
        slots, before: [B] int64, the rows' slots, and cached tokens of each text, which lack the newest.
        places: [S, L] int32, where SGLang's cache has, or has reserved room for, each token of each slot's text.
    """
    columns = before[:, None] + torch.arange(draft.draft_length + 1, device=slots.device)
    cached = places[slots[:, None], columns].flatten().long()
    return Verification(nodes(draft, table, slots, before), cached, draft.lengths + 1)


def nodes(draft: Draft, table: TokenTable, slots: Tensor, before: Tensor) -> Nodes:
    """Return the nodes of a draft; arguments as in `verification`."""
    last = table.tokens[slots, before].long()[:, None]
    lengths = draft.lengths[:, None]
    place = torch.arange(draft.draft_length + 1, device=slots.device)
    inside = place[:-1] < lengths
    tokens = torch.cat([last, torch.where(inside, draft.token_ids.long(), last)], 1)
    if draft.parents is None:
        child = torch.where(place < lengths, place + 1, -1)  # the draft continues after the nodes before its end
        depth = torch.where(place <= lengths, place, 0)
        return Nodes(tokens, before[:, None] + depth, child, torch.full_like(tokens, -1), None)
    parents = torch.where(inside, draft.parents.long() + 1, -1)  # [B, N], parents of nodes 1 to N; -1 for padding
    return _tree(tokens, torch.where(_repeats(tokens[:, 1:], parents), -1, parents), place[1:], place, before)


def _repeats(tokens: Tensor, parents: Tensor) -> Tensor:
    """Return [B, N] bool: which nodes repeat the token of an earlier node with the same parent."""
    alike = (tokens[:, :, None] == tokens[:, None, :]) & (parents[:, :, None] == parents[:, None, :])
    return alike.tril(-1).any(2)


def _tree(tokens: Tensor, parents: Tensor, hung: Tensor, place: Tensor, before: Tensor) -> Nodes:
    """Compute links, positions and ancestors from the parents [B, N] of nodes `hung` [N]; `place` [n] are all nodes."""
    none = place.shape[0]
    is_child = parents[:, None, :] == place[:, None]  # [B, n, N]: node `hung[j]` is a child of node i
    child = torch.where(is_child, hung, none).amin(2) if hung.numel() else torch.full_like(tokens, none)
    of_same = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    later = of_same & (hung > hung[:, None])  # [B, N, N]: j is a later sibling of i
    sibling = torch.full_like(tokens, none)
    if hung.numel():
        sibling[:, 1:] = torch.where(later, hung, none).amin(2)
    sees = _reached(is_child)
    positions = before[:, None] + sees.sum(2) - 1
    return Nodes(tokens, positions, _or_none(child, none), _or_none(sibling, none), sees)


def _reached(is_child: Tensor) -> Tensor:
    """Return [B, n, n] bool: the ancestors of each node, itself included, from the links [B, n, N] of parents to nodes.

    Each round doubles the length of the followed paths; counts of at most n are exact in float.
    """
    n = is_child.shape[1]
    up = torch.nn.functional.pad(is_child.transpose(1, 2), (0, 0, 1, 0))  # the root has no parent
    reached = (up | torch.eye(n, dtype=torch.bool, device=up.device)).float()
    for _ in range((n - 1).bit_length()):
        reached = (reached @ reached).clamp_(max=1.0)
    return reached.bool()


def _or_none(links: Tensor, none: int) -> Tensor:
    return torch.where(links < none, links, -1)


def chain_sees(rows: int, n: int, device: torch.device) -> Tensor:
    """Return [B, n, n] bool for chains: each node, padding included, sees itself and all earlier nodes."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(rows, n, n)


def whole_mask(sees: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Return the mask for attention on a GPU: per row [n, length + n], flattened, rows concatenated.

    Every node sees the whole text, so the mask is allocated as True, one byte per cell, and node cells are overwritten.

    Args:
        sees: [B, n, n] bool.
        lengths: [B] int64, cached tokens before the nodes.
        total: the sum of `lengths`, or an upper bound on it, known on the host: it leaves unused cells at the end of
            the [n * total + B * n * n] bool.
    """
    rows, n, _ = sees.shape
    sizes = n * (lengths + n)  # of each row
    node = torch.arange(n, device=sees.device)
    lines = (sizes.cumsum(0) - sizes)[:, None] + node * (lengths + n)[:, None]  # [B, n], start of each node's line
    cells = (lines + lengths[:, None])[:, :, None] + node
    mask = torch.ones(n * total + rows * n * n, dtype=torch.bool, device=sees.device)
    return mask.scatter_(0, cells.flatten(), sees.flatten())


def cut(next_token: Tensor, limits: Tensor) -> Tensor:
    """Return the links of chains without those beyond each row's limit, so that verification ends there.

    The token after the last link left is then the target's own, as at the end of any draft.  `next_token` [B, n] int64
    are the nodes after each node of a chain, the root first, -1 for none; `limits` [B] are the most draft tokens.
    """
    nodes = torch.arange(next_token.shape[1], device=next_token.device)
    return next_token.where(nodes < limits[:, None], -1)


class Accepted(NamedTuple):
    """What verification accepted, B rows of n nodes.

    Attributes:
        emitted: [B * n] int32, emitted tokens, n places for each row; undefined beyond its count.
        new_seq_lens: [B] int64, cached tokens after the step.
        last: [B] int32, the newest token.
    """

    emitted: Tensor
    new_seq_lens: Tensor
    last: Tensor


def append(
    table: TokenTable, slots: Tensor, before: Tensor, predict: Tensor, accept_index: Tensor, accept_lens: Tensor
) -> Accepted:
    """Append the emitted tokens of a step to the token table.

    Args:
        table, slots, before: as in `verification`.
        predict: [B * n] int32, the token after each node.
        accept_index: [B, n] int32, indices in `predict` of the emitted tokens; -1 beyond a row's count.
        accept_lens: [B] int32 or int64, emitted tokens.
    """
    emitted = predict[accept_index.long()]
    positions = (before + 1)[:, None] + table.places[: emitted.shape[1]]
    # Ids beyond a row's count are written too, where the table is undefined anyway.
    table.tokens[slots[:, None], positions.clamp_(max=table.tokens.shape[1] - 1)] = emitted.to(table.tokens.dtype)
    last = emitted.gather(1, (accept_lens - 1)[:, None].long())
    return Accepted(emitted.flatten(), before + accept_lens, last.flatten().to(torch.int32))
