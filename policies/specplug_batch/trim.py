"""The trim half: admits draft tokens while their expected gain exceeds the cost of their time."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.trim import rank_tokens
from specplug.types.caps import Ragged
from specplug.types.draft import Draft
from specplug.types.trim import TrimLimits
from specplug_batch.options import BatchOptions

CLASSES = 16
"""Number of batch-size classes; the class of a batch size is its number of binary digits."""

TRUST = 8.0
"""Number of steps without gain with which the average starts."""


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
        batch = self._options.batch_size
        weight = torch.ones_like(rows) if batch is None else batch / rows
        sums = self._sums[min(draft.batch_size.bit_length(), CLASSES) - 1]
        survival, rank = rank_tokens(draft)
        pays = survival * weight > self._price(rank, rows, weight, sums)
        admitted = draft.mask() & pays & (rank < limits.token_budget) & (survival >= limits.price)
        self._learn(torch.where(admitted, survival, 0.0), rank, admitted.sum(), rows, weight, sums)
        return draft.keep(admitted)

    def _price(self, rank: Tensor, rows: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
        """Return [B, N]: the tokens that each token's marginal time, after those ranked before it, yields elsewhere.

        The price is exactly monotone in the rank, so the tokens that pay are a prefix of the order of admission.
        """
        saturation = self._options.saturation
        if self._is_free:
            return torch.zeros_like(rank, dtype=torch.float32)
        batch_size = rows * weight
        plain_rate = batch_size / self._cost(batch_size)
        rate = plain_rate * (sums[0] / sums[1]).clamp(min=1.0) * (1.0 + self._options.margin)
        over = ((rows + (rank + 1)) * weight - saturation).clamp(min=0.0)
        return torch.minimum(over, weight) * (rate / saturation)

    def _learn(self, survival: Tensor, rank: Tensor, count: Tensor, rows: Tensor, weight: Tensor, sums: Tensor) -> None:
        """Add a step that admits tokens of `survival` [B, N], 0 elsewhere, to the sums [2]."""
        in_order = torch.empty_like(survival.reshape(-1)).scatter_(0, rank.reshape(-1), survival.reshape(-1))
        tokens = 1.0 + in_order.sum() / rows  # summed in order of admission, so that the order of rows does not matter
        cost = self._cost((rows + count) * weight) / self._cost(rows * weight)
        sums.mul_(self._decay).add_(torch.stack((tokens, cost)))

    def _cost(self, num_tokens: Tensor) -> Tensor:
        return (num_tokens / self._options.saturation).clamp(min=1.0) + self._options.overhead
