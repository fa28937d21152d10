"""Grammars in the scheduler's process, which receives drafts before they are verified.

vLLM cuts each draft there at its first illegal token.  On V1, whose runner verifies the ids that the scheduler sends,
specplug also appends the tokens that the grammar forces, and reports both to the workers.  V2's runner verifies the
drafts on its device, and under async scheduling the forward pass has already begun: there only vLLM's cut applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specplug.faults import FaultGuard
from specplug.grammar.drafts import SOURCE
from specplug.grammar.states import MaskState, follow
from specplug.operator.server_planner import ServerPlanner
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.text.request_tokenizer import TAIL, JumpForwardTokenizer
from specplug.types.caps import Distribution
from specplug_vllm.step_metadata import Constrained


class StructuredOutputState(MaskState):
    """State of a `StructuredOutputGrammar` of any backend."""

    def __init__(
        self, grammar: Any, name: str, vocab_size: int, canonical: JumpForwardTokenizer | None, tail: Sequence[int]
    ) -> None:
        super().__init__(vocab_size, canonical, tail)
        self._grammar = grammar
        self._name = name

    def _fill(self) -> None:
        self._grammar.fill_bitmask(self._mask, 0)

    def _accept(self, token: int) -> bool:
        return bool(self._grammar.accept_tokens(self._name, [token]))

    def _take_back(self, count: int) -> None:
        self._grammar.rollback(count)

    def _jump_forward(self) -> str | Sequence[int]:
        text = getattr(getattr(self._grammar, "matcher", None), "find_jump_forward_string", None)  # XGrammar's
        tokens = getattr(getattr(self._grammar, "ll_matcher", None), "compute_ff_tokens", None)  # llguidance's
        return str(text()) if text is not None else () if tokens is None else list(tokens())

    @property
    def is_ended(self) -> bool:
        """Whether the output is complete."""
        return bool(self._grammar.is_terminated())


class Grammars:
    """Adds forced tokens to V1's drafts, and records for the workers what grammars cut and added.

    Args:
        vllm_config: config of a server with specplug enabled, of the V1 runner.
        step_planner: its plans bound the length of the drafts.

    Attributes:
        adds: whether tokens are added: only to one-hot drafts, as added tokens have no draft distribution.
        constrained: effects of grammars on the drafts that wait to be scheduled, by request id.
    """

    def __init__(self, vllm_config: Any, step_planner: ServerPlanner[Any]) -> None:
        self._step_planner = step_planner
        self.adds = not _states_distributions(step_planner, vllm_config.device_config.device_type)
        self._vocab_size = int(vllm_config.model_config.get_vocab_size())
        self._longest = int(vllm_config.model_config.max_model_len)
        self._guard = FaultGuard(SOURCE, sink=lambda name, kind: step_planner.faults.update([(name, kind)]))
        self._canonical: JumpForwardTokenizer | None = None
        self.constrained: dict[str, Constrained] = {}

    def complete(self, scheduler: Any, drafts: Any) -> None:
        """Extend the drafts of a step, which vLLM has cut, in the scheduler's requests.

        Args:
            scheduler: vLLM's, with "requests" and "structured_output_manager".
            drafts: the worker's `DraftTokenIds`, uncut.
        """
        if not (self._step_planner.plan.draft_length or self.constrained):
            return
        offered = dict(zip(drafts.req_ids, drafts.draft_token_ids, strict=False))
        rows = [scheduler.requests.get(name) for name in offered]
        constrained = [row for row in rows if row is not None and _is_constrained(row)]
        self.constrained = {name: counts for name, counts in self.constrained.items() if name in scheduler.requests}
        if not constrained:
            return
        for request in constrained:
            kept = len(request.spec_token_ids)
            cut = len(offered[request.request_id]) - kept
            self.constrained[request.request_id] = Constrained(kept, cut)
        if self.adds and self._step_planner.plan.draft_length and self._guard.admits_step():
            self._guard.step(lambda: self._add(scheduler.structured_output_manager, rows, constrained))

    def take(self, names: Any) -> dict[str, Constrained]:
        """Remove and return what grammars did to the drafts of these scheduled requests."""
        if not self.constrained:
            return {}
        return {name: self.constrained.pop(name) for name in names if name in self.constrained}

    def _add(self, manager: Any, rows: Sequence[Any], constrained: Sequence[Any]) -> None:
        budget = self._step_planner.plan.token_budget
        drafted = sum(len(row.spec_token_ids) for row in rows if row is not None)
        spare = self._longest if budget is None else max(0, budget - drafted)
        if self._canonical is None:
            self._canonical = JumpForwardTokenizer(manager.tokenizer)
        for request in constrained:
            own = request.spec_token_ids
            room = min(self._room(request), len(own) + spare)
            if room <= len(own) or _may_reason(manager, request):
                continue
            state = StructuredOutputState(
                request.structured_output_request.grammar,
                request.request_id,
                self._vocab_size,
                self._canonical,
                request.output_token_ids[-TAIL:],
            )
            followed = follow(state, own, room)
            request.spec_token_ids = own + followed.added
            spare -= len(followed.added)
            counted = self.constrained[request.request_id]
            self.constrained[request.request_id] = counted._replace(confidence=tuple(followed.confidence))

    def _room(self, request: Any) -> int:
        """Return the draft length that the plan and the request allow."""
        left = min(request.max_tokens - request.num_output_tokens, self._longest - request.num_tokens)
        return int(min(self._step_planner.plan.draft_length_for(request.request_id), left - 1))


def _is_constrained(request: Any) -> bool:
    return bool(request.use_structured_output) and not request.is_prefill_chunk and not request.is_finished()


def _may_reason(manager: Any, request: Any) -> bool:
    """Return whether the request may still be reasoning, which no grammar constrains."""
    if manager.enable_in_reasoning or manager.reasoner_cls is None:
        return False
    return not request.structured_output_request.reasoning_ended


def _states_distributions(step_planner: ServerPlanner[Any], device: str) -> bool:
    """Return whether a proposer of the server states draft distributions and the engine accepts them."""
    settings = step_planner.resolved.settings
    specs = (default_registry().get(ProposerSpec, name) for name in (settings.proposer, *settings.extra_proposers))
    return step_planner.caps.draft_input is Distribution.PROBS and any(
        spec.caps_for(device).distribution is not Distribution.ONE_HOT for spec in specs
    )
