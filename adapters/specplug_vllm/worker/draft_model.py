"""Draft lengths of vLLM's draft model on V2, whose loop runs to the maximum draft length whatever the step's."""

from __future__ import annotations

import functools
from typing import Any


def take_length(speculator: Any) -> None:
    """Let a `StandaloneARSpeculator` draft as many tokens as a step needs.

    It drafts at least one: the pass that drafts it also enters the newest tokens in the draft model's key-value cache.
    """
    original, longest = speculator.propose, speculator.num_speculative_steps

    @functools.wraps(original)
    def propose(input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
        needed = longest if num_speculative_tokens is None else num_speculative_tokens
        speculator.num_speculative_steps = min(longest, max(1, needed))
        try:
            original(input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        finally:
            speculator.num_speculative_steps = longest
        return speculator.draft_tokens[: input_batch.num_reqs]

    speculator.propose = propose
