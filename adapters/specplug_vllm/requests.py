"""Which requests get drafts and how long these may be, where vLLM serves a row with drafts otherwise than one without.

Every rule is about the state that vLLM's V1 runner keeps for a request: it is of the text before the step, although a
row with drafts also reads it after them.  V2 computes the same state anew at every draft position.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from specplug_vllm.config import Runner, runner_of

_PLACEHOLDER = -1  # a draft token that only the worker knows, under async scheduling


class DraftRules:
    """Rules for the drafts of single requests, the same in the scheduler and in the workers.

    Args:
        vllm_config: the server's configuration.

    Attributes:
        runner: vLLM's model runner.
        draws_by_position: whether the random numbers of a seed belong to the text's positions, and not to the steps.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.runner: Runner = runner_of(vllm_config)
        self.draws_by_position = self.runner == "v2"
        reasoning = vllm_config.reasoning_config
        start = () if reasoning is None else reasoning.reasoning_start_token_ids or ()
        end = () if reasoning is None else reasoning.reasoning_end_token_ids or ()
        self._hidden_or_marker = frozenset([_PLACEHOLDER, *start, *end])

    def allow_drafts(self, params: Any) -> bool:
        """Return whether a request with these sampling parameters may have drafts at all.

        V1's generators advance by as many numbers as a step draws, and so by its drafts, which depend on load and on
        what was learnt.  There a request that samples with a seed has no drafts, so that the same seed gives the same
        text.
        """
        return self.draws_by_position or params.seed is None or params.temperature <= 0

    def cut(self, request: Any) -> None:
        """Cut the drafts of a scheduler's `Request` that the next step verifies.

        - **Minimum tokens**: V1 masks the end and stop ids after a whole draft by the number of tokens before the
          step.  So the draft ends early enough for the token after it to be below the minimum, too.  Under async
          scheduling V1's number leaves accepted drafts out, so there are none below the minimum.
        - **Thinking budgets**: V1 counts the reasoning before a step and not within its drafts: it would not limit what
          a draft begins, and would force a second end after one that a draft holds.  So a draft ends before the first
          token that begins or ends reasoning.
        """
        params = request.sampling_params
        drafts = request.spec_token_ids
        if self.runner == "v2" or not drafts or params is None:
            return
        missing = params.min_tokens - request.num_output_tokens
        if missing > 0:
            drafts = [] if drafts[0] == _PLACEHOLDER else drafts[: missing - 1]
        if params.thinking_token_budget is not None:
            drafts = [*takewhile(lambda token: token not in self._hidden_or_marker, drafts)]
        if len(drafts) < len(request.spec_token_ids):
            request.spec_token_ids = drafts
