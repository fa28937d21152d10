"""The smallest drafter of vLLM's V1 runner, which tells specplug's own cost from that of vLLM's calls of any drafter.

It is loaded by ``{"method": "custom_class", "model": "vllm_floor.Nothing"}``.
"""

from __future__ import annotations


class Nothing:
    """Drafts nothing."""

    def __init__(self, vllm_config):  # type: ignore[no-untyped-def]
        pass

    def load_model(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Load nothing."""

    def propose(self, sampled_token_ids, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Return an empty draft for each row."""
        return [[] for _ in sampled_token_ids]
