"""Unreported: the newest step that verified drafts, until a step that drafts for the same rows reports it.

The report needs the same requests in the same slots, so it is made on its own before a request leaves, and before a
batch of other requests drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.pipeline.stream.buffers import EngineRows
from specplug_sglang.scheduler.drafts import Decoding, module_of
from specplug_sglang.verification.table import TokenTable


class Verified(NamedTuple):
    """A step that verified drafts.

    Attributes:
        batch: as it was before the step.
        emitted: [B], tokens that it emitted.
        cut: by row, what grammars had removed from its drafts.
        stream: the stream that it ran in; None on a CPU.
    """

    batch: Decoding
    emitted: Tensor
    cut: Sequence[int]
    stream: Any


class Unreported:
    """The newest step that verified drafts and is not reported yet, if there is one.

    Args:
        table: the token table.
        draft_length: N, the longest draft.
        report: reports a step on its own, with rows as they are after it.

    Attributes:
        like: rows of the types that `rows` returns, S of them.
    """

    def __init__(self, table: TokenTable, draft_length: int, report: Callable[[Verified, EngineRows], None]) -> None:
        self._table, self._report, self._module = table, report, module_of(table.tokens.device)
        self._ones = torch.ones(len(table.tokens), dtype=torch.int32, device=table.tokens.device)
        self._most = torch.full_like(self._ones, draft_length)
        self._verified: Verified | None = None
        wide = self._ones.long()
        self.like = self.rows(wide, wide, self._ones)

    def rows(self, slots: Tensor, cached: Tensor, emitted: Tensor) -> EngineRows:
        """Wrap the tensors of B rows with `cached` [B] tokens, which lack the newest.

        SGLang verifies whole drafts, so that nothing is lost by calling all other tokens rejected.
        """
        return EngineRows(slots, cached, self._table.tokens, emitted, self._most, lengths_by_row=True, lacking=1)

    def store(self, batch: Decoding, emitted: Tensor, cut: Sequence[int] = ()) -> None:
        """Keep a step; fields as in `Verified`."""
        stream = None if self._module is None else self._module.current_stream()
        self._verified = Verified(batch, emitted, cut, stream)

    def take(self, batch: Decoding) -> tuple[EngineRows, Verified | None]:
        """Return the rows of a step that drafts, and the step that it reports, if that had the same rows."""
        if self._verified is not None and self._verified.batch.rows is not batch.rows:
            self.flush()
        verified, self._verified = self._verified, None
        return self.rows(batch.slots, batch.before, self._ones if verified is None else verified.emitted), verified

    @torch.inference_mode()
    def flush(self) -> None:
        """Report the step now, in the stream that it ran in."""
        verified, self._verified = self._verified, None
        if verified is None:
            return
        with nullcontext() if self._module is None else self._module.stream(verified.stream):
            after = verified.batch.before + verified.emitted
            self._report(verified, self.rows(verified.batch.slots, after, verified.emitted))

    def drop(self) -> None:
        """Forget the step."""
        self._verified = None
