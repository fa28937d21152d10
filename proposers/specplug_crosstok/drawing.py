"""Drawing: chooses the ids that a draft model drafts, token by token for a batch."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug_crosstok.acceptance import Floats, bucket_of

SHARES = (0.5, 0.8, 0.95)
"""The bounds of the levels of `share_level`."""

NUM_LEVELS = len(SHARES) + 1

GENERATION_BITS = 24
"""Bits of a generation, and of a length, in a draft's key."""

Integers = TypeVar("Integers", Tensor, int)

_SHIFT, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # of SplitMix64, as int64


class Drawn(NamedTuple):
    """What was drawn, by row of the model.

    Attributes:
        is_common: [R, n] bool on the host, true where a common id was drafted.
        levels: [R, n] int64 on the host, the level of the common ids' share, see `share_level`.
        probabilities: [R, n] float64 on the host, of the most probable id.
        logits: [R, n, Vd] on the model's device, over the common ids; None if no row had a temperature.
    """

    is_common: npt.NDArray[np.bool_]
    levels: npt.NDArray[np.int64]
    probabilities: Floats
    logits: Tensor | None


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


class Choice(NamedTuple):
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
) -> Choice:
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
        return Choice(ids, restricted, torch.zeros_like(ids), probabilities, None)
    mine = of_common[:, common.ids]
    heat = torch.where(temperature > 0, temperature, 1.0)[:, None]
    levels = share_level((torch.softmax(logits / heat, 1) * common.is_used).sum(1))
    bucket = bucket_of(probabilities)
    pays = common.confidence[levels, bucket] >= common.confidence[-1, bucket]
    draws = (temperature > 0) & (restricted | pays)
    ids = torch.where(draws, common.ids[_draw(mine, heat, uniforms)], ids)
    return Choice(ids, restricted | draws, levels, probabilities, mine)


class Drawing:
    """The choices of one step, by `choose`.

    Args:
        common, restricted, temperature: as for `choose`.
        uniforms: [R, N] float64 in [0, 1), for rows with a temperature; None if there are none.
    """

    def __init__(self, common: Common, restricted: Tensor, temperature: Tensor, uniforms: Tensor | None) -> None:
        self._common, self._restricted, self._temperature, self._uniforms = common, restricted, temperature, uniforms
        self._choices: list[Choice] = []

    def choose(self, step: int, logits: Tensor) -> Tensor:
        """Choose the ids [R] int64 of a step by logits [R, V]."""
        uniforms = None if self._uniforms is None else self._uniforms[:, step]
        self._choices.append(choose(self._common, self._restricted, self._temperature, logits, uniforms))
        return self._choices[-1].ids

    @property
    def newest(self) -> Choice:
        """The choice of the last step."""
        return self._choices[-1]

    def result(self) -> Drawn:
        """Return what was drawn; waits for the device."""
        _, is_common, levels, probabilities, logits = zip(*self._choices, strict=True)
        return Drawn(
            torch.stack(is_common, 1).cpu().numpy(),
            torch.stack(levels, 1).cpu().numpy(),
            torch.stack(probabilities, 1).double().cpu().numpy(),
            None if self._uniforms is None else torch.stack(logits, 1),
        )


def share_level(share: Tensor) -> Tensor:
    """Return int64 levels of the common ids' share of a distribution: up to 0.5, 0.8, 0.95, and more."""
    level: Tensor = sum((share > bound).long() for bound in SHARES)  # type: ignore[assignment]
    return level


def _draw(logits: Tensor, heat: Tensor, uniforms: Tensor) -> Tensor:
    """Return [R], indexes drawn from softmax(logits [R, Vd] / heat [R, 1]) by one uniform number each."""
    total = torch.softmax(logits.double() / heat, 1).cumsum(1)
    place: Tensor = torch.searchsorted(total, uniforms[:, None] * total[:, -1:], right=True)
    return place[:, 0].clamp(max=logits.shape[1] - 1)


def key_of(slot: Integers, generation: Integers, length: Integers) -> Integers:
    """Return a number for a draft, [B] int64 or one number; no two drafts of a server have the same."""
    return (((slot << GENERATION_BITS) | generation) << GENERATION_BITS) | length


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
