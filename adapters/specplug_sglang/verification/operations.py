"""Choice between the tensor operations of `plain` and the kernels of `kernels`."""

from __future__ import annotations

from types import ModuleType

import torch

from specplug.types.draft import Draft
from specplug_sglang.verification import plain
from specplug_sglang.verification.table import TokenTable


def operations_for(table: TokenTable) -> ModuleType:
    """Return the module whose `nodes` and `append` suit the token table's device; compile its kernels."""
    device = table.tokens.device
    operations: ModuleType = plain
    if device.type == "cuda":
        from specplug_sglang.verification import kernels

        operations = kernels
    rows = torch.empty(0, dtype=torch.int64, device=device)
    operations.nodes(Draft.allocate(0, 1, device=device), table, rows, rows)
    counts = rows.int()
    operations.append(table, rows, rows, counts, counts.view(0, 1), counts)
    return operations
