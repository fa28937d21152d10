"""Relay between overlapped steps, which carries text lengths only: tokens are in the worker's table."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.overlap_utils import FutureMap


class Relay(FutureMap):
    """SGLang's relay without the tokens that its own n-gram drafts from."""

    def stash(self, future_indices: Any, payload: Any) -> None:
        """Store nothing."""

    def _resolve_spec_extras(self, batch: Any) -> None:
        """Load nothing."""
