"""Builder of batches from plain lists, with every undefined entry poisoned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.types.batch import Barrier, EngineBatch
from specplug.types.request import Request

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table: an int32 that is an id of no vocabulary."""

PLENTY = 1 << 20
"""A remaining length that never limits a draft."""


def make_batch(
    texts: Sequence[Sequence[int]],
    *,
    num_new: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    generations: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    table_shape: tuple[int, int] | None = None,
    sampled: Sequence[bool] | None = None,
    room: Sequence[int] | None = None,
    temperature: Sequence[float] | None = None,
    grammar: Sequence[bool] | None = None,
    vocab_size: int = 64,
    reset_slots: Sequence[int] = (),
    barriers: Sequence[Barrier] = (),
    requests: Sequence[Request] | None = None,
    poison: int = POISON,
    index_dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> EngineBatch:
    """Return the batch of B rows whose row i holds `texts[i]`.

    By default all tokens are new, row i is slot i in its first generation, and every row is decoded greedily and has
    room.

    Args:
        rows: the row of the token table that holds each text; by default the slot.
        table_shape: [S, L] of the token table; by default the smallest that fits, plus one poisoned column.
        poison: fill value of the token table outside the texts.
        index_dtype: int32 or int64, the dtype of `slots` and `rows`, which differs between engines.
    """
    count = len(texts)
    slots = range(count) if slots is None else slots
    rows = slots if rows is None else rows
    lengths = [len(text) for text in texts]
    if table_shape is None:
        table_shape = (max(rows, default=0) + 1, max(lengths, default=0) + 1)
    table = torch.full(table_shape, poison, dtype=torch.int32)
    for row, text in zip(rows, texts, strict=True):
        table[row, : len(text)] = torch.tensor(text, dtype=torch.int32)

    def column(given: Sequence[float] | None, default: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(default if given is None else given), dtype=dtype, device=device)

    batch = EngineBatch(
        slots=column(slots, (), index_dtype),
        generations=column(generations, [0] * count, torch.int64),
        rows=column(rows, (), index_dtype),
        tokens=table.to(device),
        lengths=column(lengths, (), torch.int32),
        num_new=column(num_new, lengths, torch.int32),
        sampled=column(sampled, [True] * count, torch.bool),
        room=column(room, [PLENTY] * count, torch.int32),
        temperature=column(temperature, [0.0] * count, torch.float32),
        grammar=column(grammar, [False] * count, torch.bool),
        vocab_size=vocab_size,
        reset_slots=tuple(reset_slots),
        barriers=tuple(barriers),
        request_ids=None if requests is None else tuple(request.request_id for request in requests),
        requests=None if requests is None else tuple(requests),
    )
    batch.validate()
    return batch
