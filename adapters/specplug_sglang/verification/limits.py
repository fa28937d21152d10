"""Limits of single rows on how much of a chain verification may accept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug_sglang.verification.table import on_device


def cut(next_token: Tensor, limits: Sequence[int]) -> Tensor:
    """Return the links of chains without those beyond each row's limit, so that verification ends there.

    The token after the last link left is then the target's own, as at the end of any draft.

    Args:
        next_token: [B, n] int64, the node after each node of a chain, the root first; -1 for none.
        limits: most draft tokens of each of the B rows.
    """
    nodes = torch.arange(next_token.shape[1], device=next_token.device)
    allowed = on_device(limits, torch.int64, next_token.device)
    return next_token.where(nodes < allowed[:, None], -1)
