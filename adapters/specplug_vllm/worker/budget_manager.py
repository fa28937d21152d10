"""vLLM's adaptive verification with a budget that the plan states, in place of one that vLLM measures."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager


class BudgetManager(AdaptiveVerificationManager):  # type: ignore[misc]
    """Admits the draft tokens of a batch that are likeliest to survive, as many as the plan allows.

    How many is known on the host before the step; which ones is decided on the device, by the newest confidences.  So
    nothing is copied to the host, and vLLM's cost curves and stale confidences stay unused.

    Attributes:
        token_budget: most draft tokens that the next batch verifies; None is no limit.
    """

    token_budget: int | None = None

    def add_request(self, req_idx: int) -> None:
        """Begin a slot's tenancy: until it drafts, its placeholders are the last to be admitted."""
        self._confidence_probs[req_idx].zero_()

    def record_confidences(self, confidence_probs: Tensor, input_batch: Any) -> None:
        """Keep the confidences of the drafts just made, by slot; `confidence_probs` [S, K] is by row."""
        self._confidence_probs[input_batch.idx_mapping] = confidence_probs[: input_batch.num_reqs]

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """Return how many tokens the step runs, and note the split for the steps that follow it."""
        drafts = {name: len(draft_tokens.get(name, ())) for name in num_tokens_per_req}
        others = {name: count - drafts[name] for name, count in num_tokens_per_req.items()}
        room: int = self._max_total_logits - len(others) * self.num_bonus_tokens  # of the sampler's one chunk
        admitted = min(sum(drafts.values()), max(0, room))
        if self.token_budget is not None:
            admitted = min(admitted, self.token_budget)
        self._batch_budget = (drafts, others, admitted)
        return sum(others.values()) + admitted

    def batches_to_profile(self, capture_sizes: list[int]) -> tuple[dict[str, int], ...]:
        """Return none: costs are not measured."""
        return ()

    def set_initial_cost_curves(self, samples: list[Any]) -> None:
        """Need none."""
