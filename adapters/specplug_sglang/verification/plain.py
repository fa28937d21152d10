"""The nodes of a step and its emitted tokens, in tensor operations: the reference of `kernels`, for any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug.types.draft import Draft
from specplug_sglang.verification.table import TokenTable
from specplug_sglang.verification.trees import Nodes, nodes_of


class Accepted(NamedTuple):
    """What verification accepted, B rows of n nodes.

    Attributes:
        emitted: [B, n] int32, emitted tokens; undefined beyond a row's count.
        new_seq_lens: [B] int64, cached tokens after the step.
        last: [B] int32, the newest token.
    """

    emitted: Tensor
    new_seq_lens: Tensor
    last: Tensor


def nodes(draft: Draft, table: TokenTable, slots: Tensor, before: Tensor) -> Nodes:
    """Return the nodes of a draft, after the newest token of each text.

    Args:
        draft: B rows.
        table: the token table.
        slots: [B] int64.
        before: [B] int64, cached tokens of each text, which lack the newest.
    """
    return nodes_of(draft, table.tokens[slots, before].long(), before)


def append(
    table: TokenTable, slots: Tensor, before: Tensor, predict: Tensor, accept_index: Tensor, accept_lens: Tensor
) -> Accepted:
    """Append the emitted tokens of a step to the token table.

    Args:
        table: the token table.
        slots, before: as in `nodes`.
        predict: [B * n] int32, the token after each node.
        accept_index: [B, n] int32, indices in `predict` of the emitted tokens; -1 beyond a row's count.
        accept_lens: [B] int32 or int64, emitted tokens.
    """
    emitted = predict[accept_index.long()]
    table.append(slots, before + 1, emitted)
    last = emitted.gather(1, (accept_lens - 1)[:, None].long())
    return Accepted(emitted, before + accept_lens, last.flatten().to(torch.int32))
