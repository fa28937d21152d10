"""Verification of seeded requests on vLLM's V2 runner, by coupling: their text is that without speculation.

V2 draws each token from the logits, the request's seed and the token's position, but its rejection sampler draws other
numbers than its sampler, so a seed's text would depend on the drafts.  Here the sampler's own kernel draws a token at
every position of a draft, and the draft's tokens are kept up to the first that is not the drawn one.  A one-hot draft
token d is kept with probability p(d), as by rejection sampling, and the emitted tokens are those that V2 emits without
drafts: for the same logits the text with a seed is a function of seed and position.

Tokens that a draft model drew are kept with the same probability p(d), which is less than by rejection sampling.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Coupled:
    """Decides the rows with a seed of their own.

    Args:
        sampler: V2's `Sampler`, of whose requests every rank knows the sampling parameters.
    """

    def __init__(self, sampler: Any) -> None:
        self._states, self._use_fp64 = sampler.sampling_states, bool(sampler.use_fp64_gumbel)

    def rows(self, slots: Any) -> Any:
        """Return [B] bool (numpy), true where the request in a slot has a seed and is not greedy."""
        return self._states.seeds_set[slots] & (self._states.temperature.np[slots] > 0)

    def decide(
        self,
        target_logits: Tensor,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        expanded_idx_mapping: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that each of B rows emits, [B, K + 1] int64, and their number, [B] int32.

        The arguments are those of vLLM's `rejection_sample`.
        """
        from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

        drawn = gumbel_sample(
            target_logits,
            expanded_idx_mapping,
            temperature,
            seed,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self._use_fp64,
        )
        return kept(drawn, draft_sampled, cu_num_logits, num_speculative_steps)


def kept(drawn: Tensor, draft_sampled: Tensor, cu_num_logits: Tensor, draft_length: int) -> tuple[Tensor, Tensor]:
    """Keep each row's drawn tokens up to the first that its draft does not have.  Reads nothing back.

    Args:
        drawn: [L] int64, the token drawn at each position.
        draft_sampled: [L], the input token of each position: a row's last token, then its draft.
        cu_num_logits: [B + 1] int32, where each row's positions begin.
        draft_length: K, the longest draft.

    Returns:
        [B, K + 1] int64, of which a row's number of tokens, [B] int32, are emitted.
    """
    places = torch.arange(draft_length + 1, device=drawn.device)
    starts, lengths = cu_num_logits[:-1, None], cu_num_logits.diff()[:, None]
    index = (starts + places).clamp_(max=len(drawn) - 1)
    tokens = drawn[index]
    fits = (tokens[:, :-1] == draft_sampled[index[:, 1:]]) & (places[1:] < lengths)
    return tokens, fits.cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32) + 1
