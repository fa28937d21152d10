"""Counter-based random numbers for verifiers: each number depends only on seed, position and use.

A counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) has no state to keep,
roll back or reorder: a request's numbers do not depend on its index in the batch, on the length of its drafts, or on
preemption, and are the same on every device.  The mixing function is that of SplitMix64 (Steele, Lea and Flood,
"Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).

Numbering by position is safe although steps overlap.  A step that starts at position b and accepts a tokens uses the
accept numbers of positions b .. b + a (the last one only if a rejection happened there) and the draw number of position
b + a.  It emits a + 1 tokens, so the next step starts at b + a + 1.  The numbers of later positions were computed but
decided nothing, so the next step may use them as if they were new.  Every number thus decides at most one thing in a
request's life, which is sufficient for independence, provided that drafts do not depend on these numbers either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.verification import Uniforms

_ACCEPT = 0
_DRAW = 1


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as the unsigned `value`."""
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)  # odd, 2^64 divided by the golden ratio
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def uniforms(seeds: Tensor, positions: Tensor, draft_length: int) -> Uniforms:
    """Return the numbers for one step of B requests with drafts of at most `draft_length` tokens.

    Requests with equal seeds share their numbers: give each request without an explicit seed its own.

    Args:
        seeds: [B] int64, any values.
        positions: [B] int64, the position in the request of the first draft token, i.e. the context length before the
            step.
        draft_length: N.

    Returns:
        `accept` [B, N] and `draw` [B, N + 1], float64 in [0, 1), multiples of 2^-53, on the device of `seeds`.
    """
    places = positions[:, None] + torch.arange(draft_length + 1, device=positions.device)
    keys = _mix(seeds.to(torch.int64) + _GAMMA)[:, None]
    # One bijection of 64 bits per seed: within a request, no two positions or uses share a counter.
    return Uniforms(
        accept=_to_unit(_mix(keys + (2 * places[:, :draft_length] + _ACCEPT) * _GAMMA)),
        draw=_to_unit(_mix(keys + (2 * places + _DRAW) * _GAMMA)),
    )


def _mix(bits: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to int64; products wrap around like unsigned ones."""
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift in zeros; `>>` on int64 shifts in copies of the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _to_unit(bits: Tensor) -> Tensor:
    """Map 64 random bits to [0, 1) by their upper 53, which a float64 represents exactly."""
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53
