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


def uniforms(seed: int, keys: list[tuple[int, int, int]], count: int) -> Floats:
    """Return [B, count] random numbers: each row's own stream, for a key of slot, generation and length.

    A row's draft is drawn once for a key, so no two drafts have the same numbers; and they depend on neither the
    order of the rows nor the verifier's.
    """
    streams = (np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *map(abs, key)]))) for key in keys)
    return np.stack([stream.random(count) for stream in streams])
