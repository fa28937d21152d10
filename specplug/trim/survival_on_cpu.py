"""Admission of draft tokens on the host, compiled; `specplug.trim.survival` states the decision.

Nothing is sorted: tokens are counted by level of survival, and the counts are walked from the highest level down.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import c_function, call_kernel, compiled, kernel_address
from specplug.match.cpu.intrinsics import float32_at, int32_at, int64_at, struct_at, uint8_at
from specplug.types.host_step import SPARE, HostStep, TrimArguments
from specplug.types.plan import LEVELS

_arguments_at = struct_at(TrimArguments)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LEVELS = np.float32(LEVELS)


def host_trim() -> HostStep:
    """Return `SurvivalTrimmer.trim` as a C function."""
    return HostStep(int(_compiled_entry().address), kernel_address(admit, 0))


@compiled
def admit(arguments: int) -> None:
    """Mark the tokens to keep; `arguments` is the address of `TrimArguments`."""
    n = _arguments_at(arguments)
    counts = carray(int32_at(n.workspace + 4 * n.batch_size * n.draft_length), SPARE)  # after the 4 bytes of each token
    counts[:] = 0
    _count_levels(n, counts)
    costs = carray(int64_at(n.costs), n.num_costs)
    number = survival = best = ties = 0
    lowest = LEVELS
    for level in range(LEVELS, -1, -1):
        for tie in range(min(np.int64(counts[level]), n.token_budget - number)):
            number += 1
            survival += level
            gain = survival - (costs[min(number, n.num_costs - 1)] - costs[0])
            if gain > best:
                best = gain
                lowest = level
                ties = tie + 1
    _mark(n, lowest, ties)


@compiled
def _count_levels(n: Any, counts: Any) -> None:
    """Multiply confidences along paths, into the workspace, where absent tokens get -1, and count tokens by level."""
    lengths = carray(int32_at(n.draft_lengths), n.batch_size)
    confidence = carray(float32_at(n.confidence), (n.batch_size, n.draft_stride))
    parents = carray(int32_at(n.parents), (n.batch_size if n.parents != 0 else 0, n.draft_stride))
    survival = carray(float32_at(n.workspace), (n.batch_size, n.draft_length))
    for row in range(n.batch_size):
        for place in range(n.draft_length):
            if place >= lengths[row]:
                survival[row, place] = -_ONE
                continue
            parent = parents[row, place] if parents.size > 0 else place - 1
            reached = survival[row, parent] if 0 <= parent < place else _ONE
            product = confidence[row, place] * reached
            product = min(product, _ONE) if product > _ZERO else _ZERO  # counts must stay in bounds, whatever comes in
            survival[row, place] = product
            counts[np.int64(product * _LEVELS)] += 1


@compiled
def _mark(n: Any, lowest: int, ties: int) -> None:
    """Mark the tokens above the lowest admitted level, and of those at it the first `ties`, column by column."""
    survival = carray(float32_at(n.workspace), (n.batch_size, n.draft_length))
    kept = carray(uint8_at(n.kept), (n.batch_size, n.draft_length))
    for place in range(n.draft_length):
        for row in range(n.batch_size):
            level = np.int64(survival[row, place] * _LEVELS)
            is_tie = level == lowest and ties > 0
            ties -= is_tie
            kept[row, place] = level > lowest or is_tie


def _entry(arguments: int) -> int:
    """Run the kernel by address: numba must see that nothing here raises, or the C function could take the GIL."""
    return call_kernel(_arguments_at(arguments).data, arguments, ())  # type: ignore[no-any-return]


@cache
def _compiled_entry() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
