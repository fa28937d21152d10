"""Admission of draft tokens on the host, compiled; `specplug.trim.ranking` states the order of admission.

Nothing is sorted.  Survival probabilities are non-negative floats, whose bits are in the order of their values, so the
lowest admitted probability is found by bisection over the bits: 30 passes that count the tokens above.

A trim half is a C function around `admit`: it may set the terms of admission before, and learn from the figures after.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import c_function, compiled
from specplug.match.cpu.entries import call_kernel, kernel_address
from specplug.match.cpu.pointers import float32_at, int32_at, int64_at, uint8_at
from specplug.types.host_step import HostStep, TrimArgument

ARGUMENTS = len(TrimArgument)
UNITS = 40
"""Survival probabilities are summed in units of 2 ** -40, as integers, so that no order of the tokens matters."""


class Own(enum.IntEnum):
    """Indices of a trim half's own numbers, of 8 bytes each; the float32 ones use the first 4 bytes."""

    KERNEL = 0
    """Address of the kernel that the C function runs, called with the addresses of the arguments and of these."""
    ADMIT = 1
    """Address of `admit`."""
    FREE = 2
    """float32: the token of rank r must survive with a probability above `TOKEN_PRICE * clamp(r + 1 - FREE, 0, 1)`."""
    TOKEN_PRICE = 3
    """float32, see `FREE`."""
    COUNT = 4
    """Tokens that were admitted."""
    SURVIVAL = 5
    """The sum of their survival probabilities, in `UNITS`."""
    FURTHER = 6
    """Numbers from here on are the kernel's."""


class Admission:
    """The numbers of one trim half.

    Attributes:
        numbers: [FURTHER + n] int64, see `Own`.
        floats: the same memory, as [FURTHER + n] float32.
    """

    def __init__(self, further: int = 0) -> None:
        self.numbers = np.zeros(Own.FURTHER + further, np.int64)
        self.floats = self.numbers.view(np.float32)[::2]
        self.numbers[Own.ADMIT] = kernel_address(admit, 0, 0)
        self.floats[[Own.FREE, Own.TOKEN_PRICE]] = -np.inf, -1.0  # all tokens pay

    def host_step(self, kernel: Any = None) -> HostStep:
        """Return the C function that runs a kernel, by default `admit` alone; it uses this object's memory."""
        self.numbers[Own.KERNEL] = kernel_address(kernel or admit, 0, 0)
        return HostStep(int(_compiled_entry().address), self.numbers.ctypes.data)


# Numba takes plain integers for constants, but not the members of an enumeration.
_DATA, _BATCH_SIZE, _DRAFT_LENGTH, _TOKEN_BUDGET, _PRICE = map(int, list(TrimArgument)[:5])
_CONFIDENCE, _PARENTS, _STRIDE, _LENGTHS, _WORKSPACE, _KEPT = map(int, list(TrimArgument)[6:])
_KERNEL, _ADMIT, _FREE, _TOKEN_PRICE, _COUNT, _SURVIVAL = map(int, list(Own)[:6])
_ABOVE_ONE = int(np.float32(1.0).view(np.int32)) + 1
_UNIT = np.float32(2.0**UNITS)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@compiled
def float_of(numbers: int, index: int) -> Any:
    """Return the float32 in the first 4 bytes of one of the numbers at an address."""
    return carray(float32_at(numbers + 8 * index), 1)[0]


@compiled
def admit(arguments: int, own: int) -> None:
    """Mark the tokens to keep, and write their number and the sum of their survival probabilities.

    Args:
        arguments: address of the numbers that `TrimArgument` lists.
        own: address of the numbers that `Own` lists.
    """
    n = carray(int64_at(arguments), ARGUMENTS)
    size, budget, least = n[_BATCH_SIZE] * n[_DRAFT_LENGTH], n[_TOKEN_BUDGET], float_of(arguments, _PRICE)
    _compute_survival(n)
    bits = carray(int32_at(n[_WORKSPACE]), size)
    low, high = 0, _ABOVE_ONE
    while low < high:
        middle = (low + high) >> 1
        rank = _count_above(bits, middle)
        if rank < budget and _pays(own, np.int32(middle).view(np.float32), rank, least):
            high = middle
        else:
            low = middle + 1
    _mark(n, own, low, _count_above(bits, low), least)


@compiled
def _compute_survival(n: Any) -> None:
    """Multiply confidences along paths, into the workspace; absent tokens get -1."""
    batch_size, draft_length, stride = n[_BATCH_SIZE], n[_DRAFT_LENGTH], n[_STRIDE]
    lengths = carray(int32_at(n[_LENGTHS]), batch_size)
    confidence = carray(float32_at(n[_CONFIDENCE]), (batch_size, stride))
    parents = carray(int32_at(n[_PARENTS]), (batch_size if n[_PARENTS] != 0 else 0, stride))
    survival = carray(float32_at(n[_WORKSPACE]), (batch_size, draft_length))
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
def _pays(own: int, survival: Any, rank: int, least: Any) -> bool:
    """Return whether a token of this survival and rank is worth verifying; true of all that precede it if of it."""
    beyond = min(max(np.float32(rank + 1) - float_of(own, _FREE), _ZERO), _ONE)
    return survival >= least and survival > float_of(own, _TOKEN_PRICE) * beyond  # type: ignore[no-any-return]


@compiled
def _mark(n: Any, own: int, lowest: int, above: int, least: Any) -> None:
    """Mark the tokens above the lowest admitted survival, and those equal to it that are next in order.

    Args:
        n: the arguments.
        own: address of the trim half's own numbers.
        lowest: bits of the lowest admitted survival.
        above: number of tokens above it.
        least: the price.
    """
    shape = n[_BATCH_SIZE], n[_DRAFT_LENGTH]
    bits, survival = carray(int32_at(n[_WORKSPACE]), shape), carray(float32_at(n[_WORKSPACE]), shape)
    kept = carray(uint8_at(n[_KEPT]), shape)
    bound, ties, total = np.int32(lowest), 0, 0
    for row in range(shape[0]):
        for place in range(shape[1]):
            is_above = bits[row, place] > bound
            kept[row, place] = is_above
            ties += bits[row, place] == bound
            if is_above:
                total += int(survival[row, place] * _UNIT)
    end = above + ties
    rank, value = above, bound.view(np.float32)
    for place in range(shape[1] if ties > 0 else 0):
        for row in range(shape[0]):
            if bits[row, place] == bound and rank < end:
                if not (rank < n[_TOKEN_BUDGET] and _pays(own, value, rank, least)):
                    end = rank
                    break
                kept[row, place] = 1
                total += int(value * _UNIT)
                rank += 1
        if rank >= end:
            break
    results = carray(int64_at(own), _SURVIVAL + 1)
    results[_COUNT], results[_SURVIVAL] = rank, total


def _entry(arguments: int) -> int:
    """Run the kernel by address: numba must see that nothing here raises, or the C function could take the GIL."""
    own = int64_at(arguments)[_DATA]
    return call_kernel(int64_at(own)[_KERNEL], arguments, (own,))  # type: ignore[no-any-return]


@cache
def _compiled_entry() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
