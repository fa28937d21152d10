"""A third-party proposer written as vLLM's own documentation shows: the V1 runner's ``custom_class``."""

from __future__ import annotations

from typing import Any


class Repeats:
    """Drafts the last token again and again."""

    def __init__(self, vllm_config: Any) -> None:
        self.calls = 0
        self._length = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        pass

    def propose(
        self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> Any:
        self.calls += 1
        return [[int(ids[-1])] * self._length if len(ids) else [] for ids in sampled_token_ids]
