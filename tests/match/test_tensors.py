"""Tensors are read by address: whatever their layout, they mean what arrays of the same content mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from specplug.types.draft import Draft

TEXT = [5, 6, 7, 8, 9, 5, 6, 7]
OPTIONS = LookupSettings(memory_tokens=256)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda table: table,
    "columns of a wider table": lambda table: torch.cat([table, torch.full_like(table, 77)], 1)[:, : table.shape[1]],
    "transposed": lambda table: table.T.contiguous().T,
    "one text for all rows": lambda table: table[:1].expand(2, -1),
}


def lookup(*, trees: bool) -> Lookup:
    made = Lookup(2, 64, 4, OPTIONS, trees=trees)
    for slot in range(2):
        made.start(slot, owner="")
    return made


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_the_token_table(layout: str, trees: bool) -> None:
    table = LAYOUTS[layout](torch.tensor([TEXT, TEXT], dtype=torch.int32))
    for apart in (False, True):  # rows and numbers may lie apart, too
        rows, lengths = (
            torch.tensor([[1, 99], [0, 99]])[:, 0],
            torch.tensor([[8, 99], [7, 99]], dtype=torch.int32)[:, 0],
        )
        given = (rows, lengths) if apart else (rows.contiguous(), lengths.contiguous())
        plain = table.clone(memory_format=torch.contiguous_format), rows.contiguous(), lengths.contiguous()
        assert _drafts(table, *given, trees) == _drafts(*plain, trees)


def test_a_single_row_may_have_any_stride() -> None:
    table = torch.from_numpy(np.array(TEXT, np.int32)[None])
    assert table.stride(0) == 0
    fast = lookup(trees=False)
    one, length = torch.zeros(1, dtype=torch.int64), torch.tensor([8], dtype=torch.int32)
    fast.ingest(one, table, one, length, length, None)
    assert fast.texts.text[0, :8].tolist() == TEXT
    draft = Draft.allocate(1, 4)
    fast.propose(one, length, draft)
    assert draft.token_ids[0, : int(draft.lengths[0])].tolist() == [8, 9, 5, 6]


def test_a_draft_whose_tensors_lie_apart_is_refused() -> None:
    draft, one = Draft.allocate(1, 4), torch.zeros(1, dtype=torch.int64)
    narrow = draft.view(1, 2)
    wide = Draft.allocate(1, 2)
    object.__setattr__(narrow, "confidence", wide.confidence)
    with pytest.raises(ContractError, match="lie apart"):
        lookup(trees=False).propose(one, one.int(), narrow)
    draft, both = Draft.allocate(2, 4), torch.arange(2)
    draft = replace(draft, lengths=torch.zeros(2, 2, dtype=torch.int32)[:, 0])
    with pytest.raises(ContractError, match="lie apart"):
        lookup(trees=False).propose(both, both.int(), draft)


def _drafts(table: Tensor, rows: Tensor, lengths: Tensor, trees: bool) -> list[object]:
    fast, draft = lookup(trees=trees), Draft.allocate(2, 4, trees=trees)
    slots, limits = torch.arange(2), torch.full((2,), 4, dtype=torch.int32)
    fast.ingest(slots, table, rows, lengths, lengths, None)
    fast.propose(slots, limits, draft)
    parents = draft.parents.tolist() if draft.parents is not None and trees else None
    tensors = (draft.token_ids, draft.confidence, draft.lengths, draft.source)
    return [*(tensor.tolist() for tensor in tensors), parents]
