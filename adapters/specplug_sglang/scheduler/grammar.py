"""Completion of drafts by SGLang's grammars, which live in the scheduler's process, as the worker does.

With a grammar in the batch SGLang processes a step's results before it starts the next step, overlapped or not, since
its own n-gram proposer also drafts on the host.  So each grammar has accepted the newest token when drafts are made.
With its own draft models it does so only if steps do not overlap; else its mask alone cuts drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specplug.faults import FaultGuard
from specplug.grammar.drafts import Completer
from specplug.grammar.states import MaskState
from specplug.text.request_tokenizer import TAIL, JumpForwardTokenizer
from specplug.types.step import Draft, EngineBatch
from specplug_sglang.config import resolved_args
from specplug_sglang.requests import can_roll_back


class GrammarObjectState(MaskState):
    """State of a `BaseGrammarObject` of any backend."""

    def __init__(
        self, grammar: Any, vocab_size: int, canonical: JumpForwardTokenizer | None, tail: Sequence[int]
    ) -> None:
        super().__init__(vocab_size, canonical, tail)
        self._grammar = grammar

    def _fill(self) -> None:
        self._grammar.fill_vocab_mask(self._mask, 0)

    def _accept(self, token: int) -> bool:
        try:
            self._grammar.accept_token(token)
        except ValueError:  # how backends reject a token; their state is unchanged
            return False
        return True

    def _take_back(self, count: int) -> None:
        self._grammar.rollback(count)

    def _jump_forward(self) -> str | Sequence[int]:
        found = self._grammar.try_jump_forward(None)  # text from XGrammar, tokens from llguidance
        return () if found is None else found[0] or found[1]

    @property
    def is_ended(self) -> bool:
        """Whether the output is complete."""
        return bool(self._grammar.is_terminated())


class GrammarCompleter(Completer):
    """Completes drafts by their requests' grammars; the target's `tokenizer` may be None."""

    def __init__(self, vocab_size: int, tokenizer: Any, guard: FaultGuard) -> None:
        super().__init__(guard)
        self._vocab_size = vocab_size
        self._canonical = None if tokenizer is None else JumpForwardTokenizer(tokenizer)

    def of(
        self, batch: EngineBatch, reqs: Sequence[Any], draft: Draft, caps: Tensor | None, budget: int | None
    ) -> Draft:
        """Return the drafts of `batch`, completed by its requests' grammars within `caps` [B] and `budget`."""
        if not draft.draft_length or all(req.grammar is None for req in reqs):
            return draft
        states = [self._state(req) for req in reqs]
        return self.complete(draft, states, batch.limits(draft.draft_length, caps), budget)

    def drop(self) -> None:
        """Forget the completed drafts of a step that verifies none."""
        self._done = None

    def _state(self, req: Any) -> GrammarObjectState | None:
        if req.grammar is None or not can_roll_back(req.grammar):
            return None
        return GrammarObjectState(req.grammar, self._vocab_size, self._canonical, req.output_ids[-TAIL:])


def shorten_rollbacks(server_args: Any) -> None:
    """Let XGrammar's grammars roll back without a copy of all accepted tokens, which SGLang makes at each call.

    Drafts are rolled back node by node, so the copies would cost time in proportion to the output in every step.
    """
    if resolved_args(server_args).grammar_backend != "xgrammar":
        return
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

    def rollback(self: Any, k: int) -> None:
        self.matcher.rollback(k)
        del self.accepted_tokens[len(self.accepted_tokens) - k :]

    XGrammarGrammar.rollback = rollback
