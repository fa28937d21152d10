"""The trim half: admits draft tokens while their expected gain exceeds the cost of their time."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.trim import rank_tokens
from specplug.types.caps import Ragged
from specplug.types.draft import Draft
from specplug.types.host_step import HostStep
from specplug.types.trim import TrimLimits
from specplug_batch.options import CLASSES, BatchOptions

TRUST = 8.0
"""Number of steps without gain with which the average starts."""

UNIT = 2.0**40
"""Survival probabilities are summed as multiples of its inverse, so that no order of the tokens matters."""


class GainTrimmer(Trimmer):
    """Admits draft tokens of the whole batch in descending survival while they pay.

    A token with survival probability s yields s tokens on average and costs the time by which it lengthens the step,
    which is none up to `saturation` tokens.  That time would yield `rate` tokens per cost elsewhere, where the rate is
    the server's long-run average.  It is learnt from the steps' expectations as a speed-up over plain decoding at the
    same batch size, and is at least 1, so no token is admitted that plain decoding would beat.
    `reference.best_count` is the plain form.

    The order of admission is that of `SurvivalTrimmer`.  Equal batches give equal drafts on every rank, in any order of
    their rows except among ties, and nothing is read back.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._decay = 1.0 - 1.0 / self._options.horizon
        # If rows are padded, cutting does not reduce the cost of the draft length.
        self._is_free = context.caps.ragged is not Ragged.NATIVE
        # Per class of batch sizes: tokens per row and step, and cost, as multiples of their values without drafts.
        self._sums = torch.full((CLASSES, 2), TRUST, device=context.device)

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return whether the step may take longer than a memory-bound one."""
        batch = self._options.batch_size or batch_size
        return not self._is_free and batch * (draft_length + 1) > self._options.saturation

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to the tokens that pay under the policy's cost model, and to the limits."""
        if not draft.batch_size or not draft.draft_length:
            return draft
        rows = limits.decoding.sum().clamp_(min=1).float()
        batch = rows if self._options.batch_size is None else torch.full_like(rows, self._options.batch_size)
        weight = batch / rows
        sums = self._sums[min(draft.batch_size.bit_length(), CLASSES) - 1]
        survival, rank = rank_tokens(draft)
        pays = survival > self._price(rank, batch, weight, sums)
        admitted = draft.mask() & pays & (rank < limits.token_budget) & (survival >= limits.price)
        expected = (torch.where(admitted, survival, 0.0) * UNIT).long().sum().float() / UNIT
        cost = self._cost((rows + admitted.sum()) * weight) / self._cost(batch)
        sums.mul_(self._decay).add_(torch.stack((1.0 + expected / rows, cost)))
        return draft.keep(admitted)

    def host_trim(self) -> HostStep:
        """Return `trim` as a C function; see `specplug.interfaces.HasHostTrim`."""
        from specplug_batch.admission import GainAdmission  # numba's start takes time that other devices need not spend

        self._admission = GainAdmission(self._options, self._decay, self._sums.numpy(), is_free=self._is_free)
        return self._admission.host_step()  # kept, because the function uses its memory

    def _price(self, rank: Tensor, batch: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
        """Return [B, N]: the tokens that each token's marginal time, after those ranked before it, yields elsewhere.

        The price is exactly monotone in the rank, so the tokens that pay are a prefix of the order of admission.

        Args:
            rank: [B, N] int64.
            batch: 0-d float32, the requests that decode, of which each row represents `weight`, 0-d float32.
            sums: [2], of the batch's class.
        """
        if self._is_free:
            return torch.zeros_like(rank, dtype=torch.float32)
        rate = batch / self._cost(batch) * (sums[0] / sums[1]).clamp(min=1.0) * (1.0 + self._options.margin)
        free = (self._options.saturation - batch) / weight
        return (rank + 1 - free).clamp(0.0, 1.0) * (rate / self._options.saturation)

    def _cost(self, num_tokens: Tensor) -> Tensor:
        """Return the cost of a step, as `Roofline.cost` does."""
        return (num_tokens / self._options.saturation).clamp(min=1.0) + self._options.overhead
