"""Drawing: chooses the ids that a draft model drafts, token by token for a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug_crosstok.acceptance import Floats, bucket_of

SHARES = (0.5, 0.8, 0.95)
"""The bounds of the levels of `share_level`."""

NUM_LEVELS = len(SHARES) + 1


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


class Drawing:
    """The choice of ids for the rows of one step.

    A row without a temperature takes the most probable id, of the common ones only if it is restricted.  A row with a
    temperature draws a common id where these have been accepted at least as often as the most probable id would be, and
    takes that one elsewhere; if it is restricted, it always draws.

    Args:
        common: the common ids.
        restricted: [R] bool.
        temperature: [R] float32, 0 for rows that draw nothing.
        uniforms: [R, N] float64 in [0, 1), for rows with a temperature; None if there are none.
    """

    def __init__(self, common: Common, restricted: Tensor, temperature: Tensor, uniforms: Tensor | None) -> None:
        self._common, self._restricted, self._temperature, self._uniforms = common, restricted, temperature, uniforms
        self._is_common: list[Tensor] = []
        self._levels: list[Tensor] = []
        self._probabilities: list[Tensor] = []
        self._logits: list[Tensor] = []

    def choose(self, step: int, logits: Tensor) -> Tensor:
        """Choose the ids [R] int64 of a step by logits [R, V]."""
        logits = logits.float()
        common = logits.masked_fill(~self._common.is_used, -torch.inf)
        allowed = torch.where(self._restricted[:, None], common, logits)
        probability, chosen = torch.softmax(allowed, 1).max(1)
        is_common, level = self._restricted, torch.zeros_like(chosen)
        if self._uniforms is not None:
            heat = torch.where(self._temperature > 0, self._temperature, 1.0)[:, None]
            share = (torch.softmax(logits / heat, 1) * self._common.is_used).sum(1)
            level = share_level(share)
            draws = (self._temperature > 0) & (self._restricted | self._pays(level, probability))
            mine = common[:, self._common.ids]
            chosen = torch.where(draws, self._common.ids[_draw(mine, heat, self._uniforms[:, step])], chosen)
            is_common = self._restricted | draws
            self._logits.append(mine)
        self._is_common.append(is_common)
        self._levels.append(level)
        self._probabilities.append(probability)
        return chosen

    def _pays(self, level: Tensor, probability: Tensor) -> Tensor:
        confidence = self._common.confidence
        bucket = bucket_of(probability)
        pays: Tensor = confidence[level, bucket] >= confidence[-1, bucket]
        return pays

    def result(self) -> Drawn:
        """Return what was drawn; waits for the device."""
        is_common, levels = (torch.stack(them, 1).cpu().numpy() for them in (self._is_common, self._levels))
        probabilities = torch.stack(self._probabilities, 1).double().cpu().numpy()
        return Drawn(is_common, levels, probabilities, torch.stack(self._logits, 1) if self._logits else None)


def share_level(share: Tensor) -> Tensor:
    """Return int64 levels of the common ids' share of a distribution: up to 0.5, 0.8, 0.95, and more."""
    level: Tensor = torch.bucketize(share, share.new_tensor(SHARES))
    return level


def _draw(logits: Tensor, heat: Tensor, uniforms: Tensor) -> Tensor:
    """Return [R], indexes drawn from softmax(logits [R, Vd] / heat [R, 1]) by one uniform number each."""
    total = torch.softmax(logits.double() / heat, 1).cumsum(1)
    place: Tensor = torch.searchsorted(total, uniforms[:, None] * total[:, -1:], right=True)
    return place[:, 0].clamp(max=logits.shape[1] - 1)


def uniforms(seed: int, keys: list[tuple[int, int, int]], count: int) -> Floats:
    """Return [B, count] random numbers: each row's own stream, for a key of slot, generation and length.

    A row's draft is drawn once for a key, so no two drafts have the same numbers; and they depend on neither the
    order of the rows nor the verifier's.
    """
    streams = (np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *map(abs, key)]))) for key in keys)
    return np.stack([stream.random(count) for stream in streams])
