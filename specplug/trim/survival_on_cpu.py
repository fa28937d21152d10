"""Admission of draft tokens on the host, compiled; `specplug.trim.survival` states the order of admission.

Nothing is sorted.  Survival probabilities are non-negative floats, whose bits are in the order of their values, so the
lowest admitted probability is found by bisection over the bits: 30 passes that count the tokens above.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import c_function, call_kernel, compiled, kernel_address
from specplug.match.cpu.intrinsics import float32_at, float64_at, int32_at, int64_at, struct_at, uint8_at
from specplug.types.host_step import HostStep, TrimArguments

_arguments_at = struct_at(TrimArguments)
_ABOVE_ONE = int(np.float32(1.0).view(np.int32)) + 1
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def host_trim() -> HostStep:
    """Return `SurvivalTrimmer.trim` as a C function."""
    return HostStep(int(_compiled_entry().address), kernel_address(admit, 0))


@compiled
def admit(arguments: int) -> None:
    """Mark the tokens to keep; `arguments` is the address of `TrimArguments`."""
    n = _arguments_at(arguments)
    size = n.batch_size * n.draft_length
    _compute_survival(n)
    bits = carray(int32_at(n.workspace), size)
    low, high = 0, _ABOVE_ONE
    while low < high:
        middle = (low + high) >> 1
        if _count_above(bits, middle) < _most_tokens(n, np.int32(middle).view(np.float32)):
            high = middle
        else:
            low = middle + 1
    _mark(n, low, _count_above(bits, low))
    entry = carray(float64_at(n.entry), 1)[0]
    if entry > 0.0 and _gain(n, size) < entry:
        carray(uint8_at(n.kept), size)[:] = 0


@compiled
def _compute_survival(n: Any) -> None:
    """Multiply confidences along paths, into the workspace; absent tokens get -1."""
    batch_size, draft_length, stride = n.batch_size, n.draft_length, n.draft_stride
    lengths = carray(int32_at(n.draft_lengths), batch_size)
    confidence = carray(float32_at(n.confidence), (batch_size, stride))
    parents = carray(int32_at(n.parents), (batch_size if n.parents != 0 else 0, stride))
    survival = carray(float32_at(n.workspace), (batch_size, draft_length))
    for row in range(batch_size):
        for place in range(draft_length):
            if place >= lengths[row]:
                survival[row, place] = -_ONE
                continue
            parent = parents[row, place] if parents.size > 0 else place - 1
            reached = survival[row, parent] if 0 <= parent < place else _ONE
            product = confidence[row, place] * reached
            survival[row, place] = product if product > _ZERO else _ZERO  # not -0.0, whose bits are out of order


@compiled
def _count_above(bits: Any, least: int) -> int:
    """Return the number of tokens whose survival has bits above a number."""
    count, bound = 0, np.int32(least)
    for place in range(bits.size):
        count += bits[place] > bound
    return count


@compiled
def _most_tokens(n: Any, survival: Any) -> int:
    """Return what `specplug.trim.survival.most_tokens` does."""
    most = n.token_budget
    prices = carray(float32_at(n.prices), n.num_prices)
    after = carray(int64_at(n.prices_after), n.num_prices)
    for place in range(n.num_prices):
        if survival < prices[place]:
            most = min(most, after[place])
    return most  # type: ignore[no-any-return]


@compiled
def _mark(n: Any, lowest: int, above: int) -> None:
    """Mark the `above` tokens above the lowest admitted survival (its bits), and equal ones that are next in order."""
    shape = n.batch_size, n.draft_length
    bits, kept = carray(int32_at(n.workspace), shape), carray(uint8_at(n.kept), shape)
    bound = np.int32(lowest)
    for row in range(shape[0]):
        for place in range(shape[1]):
            kept[row, place] = bits[row, place] > bound
    rank, end = above, _most_tokens(n, bound.view(np.float32))
    for place in range(shape[1]):
        for row in range(shape[0]):
            if bits[row, place] == bound and rank < end:
                kept[row, place] = 1
                rank += 1


@compiled
def _gain(n: Any, size: int) -> float:
    """Return by how much the survival probabilities of the marked tokens exceed their prices."""
    survival, kept = carray(float32_at(n.workspace), size), carray(uint8_at(n.kept), size)
    prices = carray(float32_at(n.prices), n.num_prices)
    after = carray(int64_at(n.prices_after), n.num_prices)
    count, gain = 0, 0.0
    for place in range(size):
        if kept[place]:
            count += 1
            gain += survival[place]
    for place in range(n.num_prices):
        before = prices[place - 1] if place else _ZERO
        gain -= (np.float64(prices[place]) - before) * max(0, count - after[place])
    return gain


def _entry(arguments: int) -> int:
    """Run the kernel by address: numba must see that nothing here raises, or the C function could take the GIL."""
    return call_kernel(_arguments_at(arguments).data, arguments, ())  # type: ignore[no-any-return]


@cache
def _compiled_entry() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
