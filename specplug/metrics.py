"""Speculation metrics, counted per source on the device while serving and read back only on request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.counts import (
    NO_SOURCE,
    OFF_SOURCE,
    POSITION_COUNTS,
    ROW_COUNTS,
    LossyCounts,
    MetricsSnapshot,
    SourceCounts,
)
from specplug.errors import ContractError
from specplug.types.step import Verdict
from specplug.types.tensors import as_array, as_tensor, library

_STAGES = 6
"""Stages that a draft position may reach: not drafted, proposed, not cut by a grammar, verified, tested, accepted."""


class LossyCounter:
    """Counter of lossy verification; on no device until something is counted."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # accepted, departed

    def add(self, accepted: Tensor, departed: Tensor) -> None:
        """Count rows: draft tokens accepted [B] and departed [B], on the same device.  Reads nothing back."""
        if self._sums is None:
            self._sums = torch.zeros(2, dtype=torch.float64, device=accepted.device)
        self._sums += torch.stack([accepted.sum(dtype=torch.float64), departed.sum(dtype=torch.float64)])

    def read(self) -> LossyCounts:
        """Read the counts back, which on a GPU waits for the steps that are queued."""
        if self._sums is None:
            return LossyCounts()
        accepted, departed = self._sums.tolist()
        return LossyCounts(int(accepted), departed)


class SpecMetrics:
    """Counters of the results of drafts.

    Args:
        sources: the distinct names that `Draft.source` indexes.
        max_draft_length: number of positions that are counted separately.
        device: the device of drafts and verdicts, and of the int64 counters.

    Raises:
        ContractError: a source has the name of another, or a reserved name, "none" or "off".
    """

    def __init__(self, sources: Sequence[str], max_draft_length: int, device: torch.device | str = "cpu") -> None:
        self._names = (*sources, NO_SOURCE)
        if len({*self._names, OFF_SOURCE}) <= len(self._names):
            raise ContractError.build(
                "sources cannot be told apart",
                who="SpecMetrics",
                found=list(sources),
                expected=f"distinct names other than {NO_SOURCE!r} and {OFF_SOURCE!r}",
            )
        self._place = torch.arange(max_draft_length, device=device)
        # One row more than there are names, for `OFF_SOURCE`.
        self._rows = torch.zeros(len(self._names) + 1, len(ROW_COUNTS), dtype=torch.int64, device=device)
        self._tokens = torch.zeros(len(self._names), max_draft_length, _STAGES, dtype=torch.int64, device=device)
        self._host_counts = {NO_SOURCE: (0, 0, 0), OFF_SOURCE: (0, 0, 0)}  # `ROW_COUNTS` by `record_on_host`
        self._faults: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.lossy = LossyCounter()

    def record(self, source: Tensor, verdict: Verdict, off: Tensor | None = None) -> None:
        """Count one step of B rows.  Runs on the device, reads nothing back.

        Args:
            source: [B, N] as in `Draft.source`.
            verdict: the verdict on the rows' drafts.
            off: [B] bool, true for rows whose requests take no drafts; None for none.
        """
        if not source.shape[1]:
            self.record_plain(verdict, off)
            return
        xp = library(source)
        bucket = as_array(source)
        last = len(self._names) - 1  # of `NO_SOURCE`
        bucket = xp.where((bucket >= 0) & (bucket < last), bucket, last)
        first = bucket[:, 0]
        if off is not None:
            first = xp.where(as_array(off), len(self._names), first)
        _add(self._rows, first, _row_counts(verdict, 1))
        self._record_tokens(bucket, verdict)

    def record_added(self, source: str, verdict: Verdict, reached: Tensor) -> None:
        """Count tokens added after the drafts that `record` counts.  Rows and emitted tokens are counted by `record`.

        An unknown `source` counts as `NO_SOURCE`; `reached` [B] bool is true where the first added token was decided.
        """
        which = self._names.index(source) if source in self._names else len(self._names) - 1
        bucket = torch.full((reached.shape[0], self._place.shape[0]), which, device=reached.device)
        self._record_tokens(as_array(bucket), verdict, reached)

    def record_plain(self, verdict: Verdict, off: Tensor | None = None) -> None:
        """Count a step of B rows without drafts, like `record` but in fewer operations."""
        counts = as_tensor(_row_counts(verdict, 0))
        if off is not None:
            self._rows[-1].add_((counts * off).sum(1))
            counts = counts * ~off
        self._rows[-2].add_(counts.sum(1))

    def record_on_host(self, num_rows: int, after_stop: int = 0, *, planned: bool = True) -> None:
        """Count rows that emitted one token each in a step without drafts, without using the device (host).

        Engines that know these numbers on the host call this in place of `record`; `after_stop` of the rows had ended
        before the step.  Where no drafts were `planned`, the rows count for `OFF_SOURCE`.
        """
        source = NO_SOURCE if planned else OFF_SOURCE
        rows, emitted, after = self._host_counts[source]
        live = num_rows - after_stop
        self._host_counts[source] = rows + live, emitted + live, after + after_stop

    def _record_tokens(self, bucket: Any, verdict: Verdict, reached: Tensor | None = None) -> None:
        """Count every draft position once: by `bucket` [B, N], position, and the stage that it came to.

        No token counts as decided in rows that are not `reached`, [B] bool.
        """
        proposed, cut, verified, accepted = map(
            as_array, (verdict.proposed, verdict.cut_by_grammar, verdict.verified, verdict.accepted)
        )
        xp = library(verdict.proposed)
        tested = xp.minimum(accepted + 1, verified)
        if reached is not None:
            tested = tested * as_array(reached)
        ends = xp.stack((proposed, proposed - cut, verified, tested, accepted), 1)
        place = as_array(self._place)[: bucket.shape[1]]
        came = (place < ends[:, :, None]).sum(1)
        index = (bucket * len(self._place) + place) * _STAGES + came
        _add(self._tokens.view(-1), index.reshape(-1), 1)

    def count_fault(self, name: str, kind: str) -> None:
        """Count a plug-in's fault (host): see `MetricsSnapshot.faults`."""
        self._faults[name][kind] += 1

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the counters themselves, on their device; `snapshot` accepts a copy of them."""
        return self._rows, self._tokens

    def snapshot(self, copied: tuple[Tensor, ...] | None = None) -> MetricsSnapshot:
        """Return the counts so far, or those of a copy of `tensors`.

        Without a copy the counters are read back, which on a GPU waits for the steps that are queued.
        """
        rows, tokens = (counts.to("cpu", copy=True) for counts in copied or self.tensors())
        rows[-2:] += torch.tensor([self._host_counts[NO_SOURCE], self._host_counts[OFF_SOURCE]])
        came = tokens.flip(2).cumsum(2).flip(2)  # reached at least this stage
        by_source = {}
        for name, of_rows, at in zip(self._names, rows.tolist(), came.transpose(1, 2).tolist(), strict=False):
            named: dict[str, Any] = dict(zip(ROW_COUNTS, of_rows, strict=True))
            _, proposed, left, *reached = at
            named |= dict(zip(POSITION_COUNTS, map(tuple, reached), strict=True))
            cut_by_grammar = sum(proposed) - sum(left)
            by_source[name] = SourceCounts(proposed=sum(proposed), cut_by_grammar=cut_by_grammar, **named)
        if any(off := rows[-1].tolist()):
            none = by_source[NO_SOURCE]
            counted = dict[str, Any](zip(ROW_COUNTS, off, strict=True))
            by_source[OFF_SOURCE] = replace(none - none, **counted)
        faults = {name: dict(kinds) for name, kinds in self._faults.items()}
        return MetricsSnapshot(by_source, faults, self.lossy.read())


def _row_counts(verdict: Verdict, dim: int) -> Any:
    """Stack the figures of `ROW_COUNTS`."""
    emitted = as_array(verdict.emitted)
    after = as_array(verdict.after_stop)
    seen = emitted - after
    return library(verdict.emitted).stack((seen > 0, seen, after), dim)


def _add(counts: Tensor, index: Any, values: Any) -> None:
    """Add one value, or those of [n, ...], to the entries of `counts` at `index` [n], of which some may be equal."""
    if isinstance(index, np.ndarray):
        np.add.at(counts.numpy(), index, values)
        return
    each = torch.ones_like(index) if isinstance(values, int) else values
    counts.index_add_(0, index.long(), each.long())
