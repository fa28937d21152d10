"""Inputs and outputs of verifiers: target logits, sampling parameters, random numbers, and the decision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specplug.errors import ContractError


@dataclass(frozen=True, slots=True, eq=False)
class TargetLogits:
    """The target's logits for B rows with drafts of different lengths n_i, in vLLM's flat layout.

    Row i owns n_i + 1 consecutive rows of `logits` from `starts[i]` on: position j < n_i is the distribution that
    draft token j is verified against, position n_i the distribution of the bonus token.

    Attributes:
        logits: [T, V] floating point, as the engine has processed them (penalties, bias, grammar masks).
        starts: [B] int64.
    """

    logits: Tensor
    starts: Tensor

    @classmethod
    def flat(cls, logits: Tensor, lengths: Tensor) -> TargetLogits:
        """Wrap [sum(n_i) + B, V] logits; `lengths` [B] are the n_i."""
        ends = (lengths.to(torch.int64) + 1).cumsum(0)
        return cls(logits, ends - lengths.to(torch.int64) - 1)

    @classmethod
    def dense(cls, logits: Tensor) -> TargetLogits:
        """Wrap padded [B, N + 1, V] logits, without a copy if their layout allows it."""
        if logits.ndim != 3:
            raise ContractError.build("dense logits", found=tuple(logits.shape), expected="[B, N + 1, V]")
        batch, positions, vocab = logits.shape
        starts = torch.arange(batch, device=logits.device, dtype=torch.int64) * positions
        return cls(logits.reshape(batch * positions, vocab), starts)

    def at(self, positions: Tensor) -> Tensor:
        """Return the logits [B, V] at `positions` [B], or [B, P, V] at `positions` [B, P]."""
        starts = self.starts if positions.ndim == 1 else self.starts[:, None]
        return self.logits[(starts + positions).clamp(max=self.logits.shape[0] - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """Sampling parameters per row, on the engine's device.  None means "off" in all rows.

    Attributes:
        temperature: [B] float32; 0 is greedy.
        top_k: [B] int64; 0 is off.
        top_p: [B] float32; 1 is off.
        min_p: [B] float32; 0 is off.
        acceptance_threshold: [B] float32, read by lossy verifiers; NaN in rows that leave it to the verifier's
            settings, 1 is lossless.
        all_greedy: the host knows that every temperature is 0.  Verifiers then need not compute any distribution.
    """

    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    acceptance_threshold: Tensor | None = None
    all_greedy: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Uniforms:
    """Independent random numbers in [0, 1), float64; each may decide at most one thing.

    Attributes:
        accept: [B, N], entry j decides whether draft token j is kept.
        draw: [B, N + 1], entry j draws the recovered token at position j, or the bonus token.
    """

    accept: Tensor
    draw: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """A verifier's decision.

    Attributes:
        token_ids: [B, N + 1] int32, the accepted tokens, then the recovered or bonus token, then -1.
        num_accepted: [B] int32, draft tokens kept, bonus excluded.
        departed: [B] float32, reported by lossy verifiers: the expected number of the kept tokens that lossless
            verification would have rejected, given the tokens before them; None when not known.
    """

    token_ids: Tensor
    num_accepted: Tensor
    departed: Tensor | None = None

    @property
    def num_emitted(self) -> Tensor:
        """[B] int32: the accepted tokens and the one after them."""
        return self.num_accepted + 1
