"""Drawing: chooses the ids that a draft model drafts, token by token for a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug_crosstok.acceptance import SHARES, bucket_of

GENERATION_BITS = 24
"""Bits of a generation, and of a length, in a draft's key."""

# of SplitMix64, as int64
_SHIFT = -0x61C8864680B583EB
_FIRST = -0x40A7B892E31B1A47
_SECOND = -0x6B2FB644ECCEEE15


class Common(NamedTuple):
    """The ids that both vocabularies have.

    Attributes:
        ids: [Vd] int64, the draft's ids, in the order of the draft vocabulary.
        is_used: [V] bool, true for those of them that are drawn.
        confidence: [levels + 1, buckets] float32 of drawn ids, by the level of the common ids' share, and of text.
    """

    ids: Tensor
    is_used: Tensor
    confidence: Tensor


class NextIds(NamedTuple):
    """The choice of R rows' next ids.

    Attributes:
        ids: [R] int64.
        is_common: [R] bool, true where a common id was chosen as such.
        levels: [R] int64, see `share_level`; 0 without random numbers.
        probabilities: [R] float32, of the most probable id that was allowed.
        logits: [R, Vd] float32, over the common ids; None without random numbers.
    """

    ids: Tensor
    is_common: Tensor
    levels: Tensor
    probabilities: Tensor
    logits: Tensor | None


def choose(
    common: Common, restricted: Tensor, temperature: Tensor, logits: Tensor, uniforms: Tensor | None = None
) -> NextIds:
    """Choose the next ids of R rows.

    A row without a temperature takes the most probable id, of the common ones only if it is restricted.  A row with a
    temperature draws a common id where these have been accepted at least as often as the most probable id would be, and
    takes that one elsewhere; if it is restricted, it always draws.

    Args:
        common: the common ids.
        restricted: [R] bool.
        temperature: [R] float32, 0 for rows that draw nothing.
        logits: [R, V], of the draft model.
        uniforms: [R] float64 in [0, 1), for rows with a temperature; None if there are none.
    """
    logits = logits.float()
    of_common = logits.masked_fill(~common.is_used, -torch.inf)
    allowed = torch.where(restricted[:, None], of_common, logits)
    probabilities, ids = torch.softmax(allowed, 1).max(1)
    if uniforms is None:
        return NextIds(ids, restricted, torch.zeros_like(ids), probabilities, None)
    mine = of_common[:, common.ids]
    divisor = torch.where(temperature > 0, temperature, 1.0)[:, None]
    levels = share_level((torch.softmax(logits / divisor, 1) * common.is_used).sum(1))
    bucket = bucket_of(probabilities)
    pays = common.confidence[levels, bucket] >= common.confidence[-1, bucket]
    draws = (temperature > 0) & (restricted | pays)
    ids = torch.where(draws, common.ids[_draw(mine, divisor, uniforms)], ids)
    return NextIds(ids, restricted | draws, levels, probabilities, mine)


class Drawing:
    """Chooses ids for the first R rows of a draft model's cache.

    Drafts of at most `num_drafted` = n ids state the distribution that common ids are drawn from where `states`;
    `common.confidence` may change in place; restricted rows draft common ids only.

    Attributes:
        temperature: [rows] float32, to be set before a draft; 0 for rows that draw nothing.
        is_greedy: to be set before a draft if no row has a temperature; True skips what only draws need.
        keys: [rows] int64, to be set before a draft, different for each.
        is_common, levels, probabilities: [rows, n] bool, int64 and float64, see `NextIds`.
        logits: [rows, n, Vd] float32; None if nothing is stated.
    """

    def __init__(
        self, common: Common, *, is_restricted: bool, max_rows: int, num_drafted: int, states: bool, seed: int
    ) -> None:
        device = common.ids.device

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(max_rows, *shape, dtype=dtype, device=device)

        self._common = common
        self._seed = seed
        self.is_greedy = False
        self._restricted = zeros(dtype=torch.bool).fill_(is_restricted)
        self.temperature = zeros(dtype=torch.float32)
        self.keys = zeros(dtype=torch.int64)
        self.is_common, self.levels = (zeros(num_drafted, dtype=kind) for kind in (torch.bool, torch.int64))
        self.probabilities = zeros(num_drafted, dtype=torch.float64)
        self.logits = zeros(num_drafted, len(common.ids), dtype=torch.float32) if states else None

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Choose the ids [R] int64 of a step, [1] int64, by logits [R, V]."""
        draws = self.logits is not None and not self.is_greedy
        numbers = None if not draws else uniforms(self._seed, self.keys[:num_rows], step)
        restricted = self._restricted[:num_rows]
        temperature = self.temperature[:num_rows]
        choice = choose(self._common, restricted, temperature, logits, numbers)
        for kept, new in (
            (self.is_common, choice.is_common),
            (self.levels, choice.levels),
            (self.probabilities, choice.probabilities.double()),
            (self.logits, choice.logits),
        ):
            if kept is not None and new is not None:
                kept[:num_rows].index_copy_(1, step, new[:, None])
        return choice.ids


def share_level(share: Tensor) -> Tensor:
    """Return int64 levels of the common ids' share of a distribution: up to 0.5, 0.8, 0.95, and more."""
    level: Tensor = sum((share > bound).long() for bound in SHARES)  # type: ignore[assignment]
    return level


def _draw(logits: Tensor, divisor: Tensor, uniforms: Tensor) -> Tensor:
    """Return [R], indexes drawn from softmax(logits [R, Vd] / divisor [R, 1]) by one uniform number each."""
    total = torch.softmax(logits.double() / divisor, 1).cumsum(1)
    place: Tensor = torch.searchsorted(total, uniforms[:, None] * total[:, -1:], right=True)
    return place[:, 0].clamp(max=logits.shape[1] - 1)


def uniforms(seed: int, keys: Tensor, steps: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), a random one for each key and step, int64 (SplitMix64; Steele et al., 2014).

    A draft is drawn once for a key, so no two drafts have the same numbers; and they depend on neither the order of the
    rows nor the verifier's.
    """
    bits = _mixed(_mixed(_mixed(keys) ^ seed) + steps * _SHIFT)
    return _shifted(bits, 11).double() * 2.0**-53


def _mixed(numbers: Tensor) -> Tensor:
    numbers = numbers + _SHIFT
    numbers = (numbers ^ _shifted(numbers, 30)) * _FIRST
    numbers = (numbers ^ _shifted(numbers, 27)) * _SECOND
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift to the right, as unsigned numbers."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
