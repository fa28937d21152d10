"""Grammars of this engine: functions of the ids so far, which the host may call at any time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from specplug.grammar.states import AllowedState
from specplug_transformers.params import AllowedTokens
from specplug_transformers.state import RequestState


def grammar_states(states: Sequence[RequestState], device: torch.device) -> list[AllowedState | None]:
    """Return the grammar state of each request; None for requests without a grammar."""
    found: list[AllowedState | None] = []
    for state in states:
        allowed = state.params.allowed_tokens
        ask = None if allowed is None else partial(_ask, allowed, device)
        found.append(None if ask is None else AllowedState(ask, state.tokens, state.end_token_ids))
    return found


def _ask(allowed: AllowedTokens, device: torch.device, text: Sequence[int]) -> list[int]:
    """Call `allowed` as Hugging Face's processor does, for the only row of a batch."""
    return allowed(0, torch.tensor(text, dtype=torch.int64, device=device))
