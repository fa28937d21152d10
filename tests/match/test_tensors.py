"""Tensors are read by address, whatever their layout."""

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


def lookup() -> Lookup:
    made = Lookup(2, 64, 4, OPTIONS, trees=False)
    for slot in range(2):
        made.start(slot, owner="")
    return made


@pytest.mark.parametrize("layout", [lambda it: it, lambda it: it.T.contiguous().T, lambda it: it[:1].expand(2, -1)])
def test_tokens_rows_and_lengths_may_lie_apart(layout: Callable[[Tensor], Tensor]) -> None:
    table, rows = layout(torch.tensor([TEXT, TEXT], dtype=torch.int32)), torch.tensor([[1, 99], [0, 99]])[:, 0]
    lengths = torch.tensor([[8, 99], [7, 99]], dtype=torch.int32)[:, 0]
    fast, draft, slots = lookup(), Draft.allocate(2, 4), torch.arange(2)
    fast.ingest(slots, table, rows, lengths, lengths, None)
    fast.propose(slots, torch.full((2,), 4, dtype=torch.int32), draft)
    assert [draft.token_ids[row, :count].tolist() for row, count in enumerate(draft.lengths)] == [TEXT[3:7], TEXT[2:6]]


def test_a_single_row_may_have_any_stride() -> None:
    table = torch.from_numpy(np.array(TEXT, np.int32)[None])
    assert table.stride(0) == 0
    fast, one, length = lookup(), torch.zeros(1, dtype=torch.int64), torch.tensor([8], dtype=torch.int32)
    fast.ingest(one, table, one, length, length, None)
    assert fast.texts.text[0, :8].tolist() == TEXT


def test_a_draft_whose_tensors_lie_apart_is_refused() -> None:
    draft, one = Draft.allocate(1, 4), torch.zeros(1, dtype=torch.int64)
    narrow = draft.view(1, 2)
    wide = Draft.allocate(1, 2)
    object.__setattr__(narrow, "confidence", wide.confidence)
    with pytest.raises(ContractError, match="lie apart"):
        lookup().propose(one, one.int(), narrow)
    draft, both = Draft.allocate(2, 4), torch.arange(2)
    draft = replace(draft, lengths=torch.zeros(2, 2, dtype=torch.int32)[:, 0])
    with pytest.raises(ContractError, match="lie apart"):
        lookup().propose(both, both.int(), draft)
