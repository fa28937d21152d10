"""Rows of a batch in host memory: one array per column, and tensors that share their memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.types.batch import EngineBatch

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Columns(NamedTuple):
    """Facts of at most S rows, [S] each; a batch of B rows uses the first B entries.

    Attributes:
        slots, table_rows: int64, set by the engine: each row's slot, and its row of the token table.
        lengths, emitted, verified: int32, set by the engine: tokens so far, tokens that the step emitted, and draft
            tokens that it verified.
        cut_by_grammar: int32, set by the engine: tokens that a grammar removed from the verified draft.
        caps: int32, set by the engine: most draft tokens of each row.
        temperature: float32, set by the engine.
        generations, room, sampled, grammar: see `EngineBatch`; set by the step, like all that follow.
        num_new: int32, tokens that are new to the proposer.
        limits: int32, most draft tokens in this step.
    """

    slots: Int64s
    table_rows: Int64s
    lengths: Int32s
    emitted: Int32s
    verified: Int32s
    cut_by_grammar: Int32s
    caps: Int32s
    temperature: npt.NDArray[np.float32]
    generations: Int64s
    room: Int32s
    sampled: npt.NDArray[np.bool_]
    grammar: npt.NDArray[np.bool_]
    num_new: Int32s
    limits: Int32s

    @classmethod
    def allocate(cls, max_slots: int) -> Columns:
        """Return columns of zeros for batches of at most S rows."""
        dtypes = {"temperature": np.float32, "sampled": np.bool_, "grammar": np.bool_}
        dtypes |= dict.fromkeys(("slots", "table_rows", "generations"), np.int64)
        return cls(**{name: np.zeros(max_slots, dtypes.get(name, np.int32)) for name in cls._fields})

    def tensor(self, name: str, batch_size: int) -> Tensor:
        """Return the first B entries of a column as a tensor that shares its memory."""
        return torch.from_numpy(getattr(self, name)[:batch_size])

    def batch(self, batch_size: int, tokens: Tensor, vocab_size: int) -> EngineBatch:
        """Return a batch of B rows whose tensors share the columns' memory; `tokens` is the token table."""

        def column(name: str) -> Tensor:
            return self.tensor(name, batch_size)

        return EngineBatch(
            slots=column("slots"),
            generations=column("generations"),
            rows=column("table_rows"),
            tokens=tokens,
            lengths=column("lengths"),
            sampled=column("sampled"),
            room=column("room"),
            temperature=column("temperature"),
            grammar=column("grammar"),
            vocab_size=vocab_size,
        )
