"""GainTrimmer's `trim` for drafts in host memory, compiled: the terms of `specplug.trim.admission`, and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.entries import call_kernel
from specplug.match.cpu.pointers import float32_at, int64_at, uint8_at
from specplug.trim.admission import UNITS, Admission, Own
from specplug.types.host_step import HostStep, TrimArgument
from specplug_batch.options import CLASSES, BatchOptions

SUMS, REPORTED, IS_FREE, SATURATION, OVERHEAD, EXCESS, DECAY = range(int(Own.FURTHER), Own.FURTHER + 7)
"""Indices of further numbers: the address of the sums; the batch size to assume or 0; 1 if no token costs anything; and
as float32 the `saturation`, `overhead` and 1 + `margin` of the options, and the decay of the sums."""

# Numba takes plain integers for constants, but not the members of an enumeration.
_BATCH_SIZE, _DRAFT_LENGTH = int(TrimArgument.BATCH_SIZE), int(TrimArgument.DRAFT_LENGTH)
_DECODING, _ARGUMENTS = int(TrimArgument.DECODING), len(TrimArgument)
_ADMIT, _FREE, _TOKEN_PRICE, _COUNT, _SURVIVAL = map(int, list(Own)[1:6])
_NUMBERS = DECAY + 1
_UNIT = np.float32(2.0**UNITS)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class GainAdmission(Admission):
    """The numbers of one GainTrimmer.

    Args:
        options: the policy's.
        decay: of the sums, per step.
        sums: [CLASSES, 2] float32, which the function updates.
        is_free: whether no token costs anything.
    """

    def __init__(self, options: BatchOptions, decay: float, sums: npt.NDArray[np.float32], *, is_free: bool) -> None:
        super().__init__(further=_NUMBERS - Own.FURTHER)
        self._sums = sums
        self.numbers[[SUMS, REPORTED, IS_FREE]] = sums.ctypes.data, options.batch_size or 0, is_free
        self.floats[[SATURATION, OVERHEAD]] = options.saturation, options.overhead
        self.floats[[EXCESS, DECAY]] = 1.0 + options.margin, decay

    def host_step(self, kernel: Any = None) -> HostStep:
        """Return the C function."""
        return super().host_step(kernel or admit_gain)


@compiled
def admit_gain(arguments: int, own: int) -> None:
    """Mark the tokens to keep and learn from them; see `admit` for the arguments."""
    n, numbers = carray(int64_at(arguments), _ARGUMENTS), carray(int64_at(own), _NUMBERS)
    if n[_BATCH_SIZE] == 0 or n[_DRAFT_LENGTH] == 0:
        return
    values = carray(float32_at(own), 2 * _NUMBERS)  # the float32 numbers are every other one
    decoding, count = carray(uint8_at(n[_DECODING]), n[_BATCH_SIZE]), 0
    for row in range(n[_BATCH_SIZE]):
        count += decoding[row] != 0
    rows = np.float32(max(count, 1))
    batch = np.float32(numbers[REPORTED]) if numbers[REPORTED] > 0 else rows
    weight = batch / rows
    sums = carray(float32_at(numbers[SUMS] + 8 * _class_of(n[_BATCH_SIZE])), 2)
    saturation, plain_cost = values[2 * SATURATION], _cost(values, batch)
    if numbers[IS_FREE]:
        values[2 * _FREE], values[2 * _TOKEN_PRICE] = _ZERO, _ZERO
    else:
        rate = batch / plain_cost * max(sums[0] / sums[1], _ONE) * values[2 * EXCESS]
        values[2 * _FREE], values[2 * _TOKEN_PRICE] = (saturation - batch) / weight, rate / saturation
    call_kernel(numbers[_ADMIT], arguments, (own,))
    expected = np.float32(numbers[_SURVIVAL]) / _UNIT
    cost = _cost(values, (rows + np.float32(numbers[_COUNT])) * weight) / plain_cost
    sums[0] = sums[0] * values[2 * DECAY] + (_ONE + expected / rows)
    sums[1] = sums[1] * values[2 * DECAY] + cost


@compiled
def _cost(values: Any, num_tokens: Any) -> Any:
    return max(num_tokens / values[2 * SATURATION], _ONE) + values[2 * OVERHEAD]


@compiled
def _class_of(batch_size: int) -> int:
    """Return the index of a batch size's sums."""
    digits = 0
    while batch_size > 0 and digits < CLASSES:
        batch_size, digits = batch_size >> 1, digits + 1
    return digits - 1
