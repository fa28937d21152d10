"""A policy's trim half in compiled steps: it is called as a C function, and the drafts are cut to what it keeps.

Whatever the function writes, drafts only get shorter: a token whose parent is not kept is dropped, and kept tokens move
forward in their order.  If the function fails, all drafts are dropped, so the budget holds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import call_at, struct_at, uint8_at
from specplug.match.cpu.records import record
from specplug.pipeline.cpu.kernels import empty
from specplug.pipeline.draft import DraftStage
from specplug.types.host_step import FAILED, OK, Int64Struct, TrimArguments, int64_fields
from specplug.types.paths import ROOT
from specplug.types.plan import MOST_PRICES, StepPlan

LEAVE, TRIM, DROP = range(3)
"""Actions: leave the drafts, trim them, or drop them because the trim half is switched off."""


@int64_fields
class CutControl(Int64Struct):
    """What is to be done with the drafts of one step."""

    action: int
    """`LEAVE`, `TRIM` or `DROP`."""
    function: int
    """Address of the trim half's C function."""
    status: int
    """Its status, which `trim` writes."""


_control_at, _arguments_at = struct_at(CutControl), struct_at(TrimArguments)


@compiled
def trim(memory: Any, cut: Any, batch_size: int, draft_length: int) -> None:
    """Cut the drafts in `memory`, B rows of at most K tokens, as the cut's control says.

    Args:
        memory: see `specplug.pipeline.cpu.kernels`.
        cut: a record of `control` and `arguments`, the addresses of `CutControl` and of the trim half's
            `TrimArguments`; `workspace`, [S, N] float32, for its own use; `kept`, [S, N] uint8, of which a step of B
            rows and K tokens uses the first B * K, 1 for tokens to keep; `places`, [N] int32, where a row's nodes have
            moved.
    """
    control = _control_at(cut.control)
    if control.action == LEAVE:
        return
    status = FAILED
    if control.action == TRIM:
        _set_arguments(memory, cut, batch_size, draft_length)
        status = call_at(control.function, cut.arguments)
    control.status = status
    kept = carray(uint8_at(cut.kept.ctypes.data), (batch_size, draft_length))
    for row in range(batch_size):
        count = _keep(memory, cut, row, kept) if status == OK else 0
        empty(memory, row, count, draft_length)
        memory.draft_lengths[row] = count
        for place in range(count, draft_length if memory.parents.size > 0 else 0):
            memory.parents[row, place] = ROOT


@compiled
def _set_arguments(memory: Any, cut: Any, batch_size: int, draft_length: int) -> None:
    a = _arguments_at(cut.arguments)
    a.batch_size, a.draft_length = batch_size, draft_length
    a.decoding, a.confidence = memory.sampled.ctypes.data, memory.confidence.ctypes.data
    a.parents = memory.parents.ctypes.data if memory.parents.size > 0 else 0
    a.draft_stride, a.draft_lengths = memory.ids.shape[1], memory.draft_lengths.ctypes.data
    a.workspace, a.kept = cut.workspace.ctypes.data, cut.kept.ctypes.data


@compiled
def _keep(memory: Any, cut: Any, row: int, kept: Any) -> int:
    """Move a row's kept tokens to its front and return their number, like `Draft.keep`."""
    count, parents = 0, memory.parents
    for place in range(memory.draft_lengths[row]):
        parent = parents[row, place] if parents.size > 0 else place - 1
        if kept[row, place] == 0 or parent >= place or (parent >= 0 and kept[row, parent] == 0):
            kept[row, place] = 0
            continue
        if parents.size > 0:
            parents[row, count] = cut.places[parent] if parent >= 0 else ROOT
        memory.ids[row, count], memory.confidence[row, count] = memory.ids[row, place], memory.confidence[row, place]
        memory.sources[row, count] = memory.sources[row, place]
        cut.places[place] = count
        count += 1
    return count


class StepCut:
    """The cut of one step's drafts by a stage's trim half as a C function, `DraftStage.host_trim`.

    Args:
        stage: the draft stage, on the CPU.
        shape: S and N, the most rows and tokens.

    Attributes:
        record: the memory, for `trim`.
    """

    def __init__(self, stage: DraftStage, shape: tuple[int, int]) -> None:
        self._stage, self._step = stage, stage.host_trim
        self._prices, self._prices_after = np.zeros(MOST_PRICES, np.float32), np.zeros(MOST_PRICES, np.int64)
        self._entry, self._control = np.zeros(()), CutControl()
        self._arguments = TrimArguments(
            entry=self._entry.ctypes.data,
            prices=self._prices.ctypes.data,
            prices_after=self._prices_after.ctypes.data,
        )
        self.record = record(
            control=self._control.address,
            arguments=self._arguments.address,
            workspace=np.zeros(shape, np.float32),
            kept=np.zeros(shape, np.uint8),
            places=np.zeros(shape[1], np.int32),
        )

    def prepare(self, plan: StepPlan, batch_size: int) -> bool:
        """Set what `trim` is to do in a step of B rows; return false if only the stage itself can cut its drafts."""
        control, arguments, step = self._control, self._arguments, self._step
        control.action = LEAVE
        if not self._stage.cuts(batch_size, plan.draft_length, plan):
            return True
        if step is None:
            return False
        control.action = TRIM if self._stage.trimmer_guard.admits_step() else DROP
        control.function, control.status = step.function, FAILED
        arguments.data, arguments.num_prices = step.data, len(plan.prices)
        arguments.token_budget = plan.budget_of(batch_size * plan.draft_length)
        self._entry[...] = plan.entry
        for place, (survival, after) in enumerate(plan.prices):
            self._prices[place], self._prices_after[place] = survival, after
        return True

    def report(self) -> None:
        """Report the status of a cut that has ended to the trim half's circuit breaker."""
        if self._control.action == TRIM:
            self._stage.trimmer_guard.step(partial(_raise_if_failed, self._control.status))


def _raise_if_failed(status: int) -> None:
    if status != OK:
        raise RuntimeError(f"its host trim returned {status}")
