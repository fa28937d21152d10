"""Step costs that vLLM's adaptive verification profiles at start-up, as specplug's planners take them.

vLLM runs dummy steps of every captured size, and of larger ones up to the most tokens of a step, and times the target's
forward by events in its stream.  A sample holds tokens, requests, milliseconds, and whether one full CUDA graph ran.
The context is one length for all; the steps have as many requests as they can, and no prompts.  Nothing of the host,
the sampler or the drafter is in it: specplug drafts nothing in dummy steps, so the drafter's time is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specplug.types.plan import StepCost


def step_costs(samples: Iterable[Any], draft_length: int, context_length: int) -> tuple[StepCost, ...]:
    """Return the costs of vLLM's samples.

    Rows longer than a draft can be run as prompts do, without the graph for drafts, so their excess is prompt tokens.

    Args:
        samples: `StepTimingSample`s.
        draft_length: the longest draft.
        context_length: context tokens of each request.
    """
    return tuple([_cost(sample, draft_length, context_length) for sample in samples])


def _cost(sample: Any, draft_length: int, context_length: int) -> StepCost:
    requests, tokens = sample.num_reqs, sample.num_target_tokens
    return StepCost(
        requests=requests,
        tokens=tokens,
        context_tokens=requests * context_length,
        draft_length=min(-(-tokens // requests) - 1, draft_length),
        seconds=sample.forward_ms / 1e3,
        prompt_tokens=max(0, tokens - requests * (draft_length + 1)),
    )
