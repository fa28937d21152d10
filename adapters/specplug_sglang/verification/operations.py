"""Choice of the operations around a verification: in kernels on a GPU, in tensors elsewhere."""

from __future__ import annotations

from types import ModuleType

import torch

from specplug.types.step import Draft
from specplug_sglang.verification import trees


def choose_operations(table: trees.TokenTable) -> ModuleType:
    """Return the module whose `verification` and `append` suit the token table's device; compile its kernels."""
    device = table.tokens.device
    operations: ModuleType = trees
    if device.type == "cuda":
        from specplug_sglang.verification import kernels

        operations = kernels
    rows = torch.empty(0, dtype=torch.int64, device=device)
    for has_parents in (False, True):
        draft = Draft.allocate(0, 1, device=device, trees=has_parents)
        operations.verification(draft, table, rows, rows, table.tokens)
    counts = rows.int()
    operations.append(table, rows, rows, counts, counts.view(0, 1), counts)
    return operations
