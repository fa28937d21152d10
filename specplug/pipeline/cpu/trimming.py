"""A policy's trim half in compiled steps: it is called as a C function, and the drafts are cut to what it keeps.

Whatever the function writes, drafts only get shorter: a token whose parent is not kept is dropped, and kept tokens move
forward in their order.  If the function fails, all drafts are dropped, so the budget holds.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import call_at, struct_at, uint8_at
from specplug.pipeline.cpu.kernels import empty
from specplug.types.host_step import FAILED, OK, Int64Struct, TrimArguments, int64_fields
from specplug.types.paths import ROOT

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
            `TrimArguments`; `workspace`, [S * N + `SPARE`] float32, for its own use; `kept`, [S, N] uint8, of which a
            step of B rows and K tokens uses the first B * K, 1 for tokens to keep; `places`, [N] int32, where a row's
            nodes have moved.
    """
    control = _control_at(cut.control)
    if control.action == LEAVE:
        return
    control.status = FAILED
    if control.action == TRIM:
        a = _arguments_at(cut.arguments)
        a.batch_size = batch_size
        a.draft_length = draft_length
        a.draft_stride = memory.ids.shape[1]
        a.draft_lengths = memory.draft_lengths.ctypes.data
        a.decoding = memory.sampled.ctypes.data
        a.confidence = memory.confidence.ctypes.data
        a.parents = memory.parents.ctypes.data if memory.parents.size > 0 else 0
        a.workspace = cut.workspace.ctypes.data
        a.kept = cut.kept.ctypes.data
        control.status = call_at(control.function, cut.arguments)
    kept = carray(uint8_at(cut.kept.ctypes.data), (batch_size, draft_length))
    for row in range(batch_size):
        count = _keep(memory, cut, row, kept) if control.status == OK else 0
        empty(memory, row, count, draft_length)
        memory.draft_lengths[row] = count
        for place in range(count, draft_length if memory.parents.size > 0 else 0):
            memory.parents[row, place] = ROOT


@compiled
def _keep(memory: Any, cut: Any, row: int, kept: Any) -> int:
    """Move a row's kept tokens to its front and return their number, like `Draft.keep`."""
    parents = memory.parents
    count = 0
    for place in range(memory.draft_lengths[row]):
        parent = parents[row, place] if parents.size > 0 else place - 1
        if kept[row, place] == 0 or parent >= place or (parent >= 0 and kept[row, parent] == 0):
            kept[row, place] = 0
            continue
        if parents.size > 0:
            parents[row, count] = cut.places[parent] if parent >= 0 else ROOT
        memory.ids[row, count] = memory.ids[row, place]
        memory.confidence[row, count] = memory.confidence[row, place]
        memory.sources[row, count] = memory.sources[row, place]
        cut.places[place] = count
        count += 1
    return count
