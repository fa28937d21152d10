"""Manager of vLLM's adaptive verification that takes its budget from specplug's plan instead of measured costs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager


class BudgetManager(AdaptiveVerificationManager):  # type: ignore[misc]
    """Admits the draft tokens of a batch that are most likely to be accepted, up to the plan's budget.

    The host knows the number of tokens before the step; the device picks them by the newest confidences.  So nothing is
    copied to the host, and vLLM's cost curves and stale confidences stay unused.

    Attributes:
        token_budget: most draft tokens that the next batch may verify; None is no limit.
    """

    token_budget: int | None = None

    def add_request(self, req_idx: int) -> None:
        """Reset a slot's confidences: until its request drafts, its placeholders are admitted last."""
        self._confidence_probs[req_idx].zero_()

    def record_confidences(self, confidence_probs: Tensor, input_batch: Any) -> None:
        """Store the confidences of the newest drafts by slot; `confidence_probs` [S, K] is by row."""
        self._confidence_probs[input_batch.idx_mapping] = confidence_probs[: input_batch.num_reqs]

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """Return how many tokens the step runs, and keep the split that vLLM's manager reads later in the step."""
        drafts = {name: len(draft_tokens.get(name, ())) for name in num_tokens_per_req}
        others = {name: count - drafts[name] for name, count in num_tokens_per_req.items()}
        room: int = self._max_total_logits - len(others) * self.num_bonus_tokens  # in the sampler's single chunk
        admitted = min(sum(drafts.values()), max(0, room))
        if self.token_budget is not None:
            admitted = min(admitted, self.token_budget)
        self._batch_budget = (drafts, others, admitted)
        return sum(others.values()) + admitted

    def batches_to_profile(self, capture_sizes: list[int]) -> tuple[dict[str, int], ...]:
        """Return no batches: costs are not measured."""
        return ()

    def set_initial_cost_curves(self, samples: list[Any]) -> None:
        """Do nothing: no cost curves are used."""
