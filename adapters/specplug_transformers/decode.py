"""The decode step: plan, propose, trim, forward, verify and observe, for the requests that are ready to decode.

Each row's input is its last token followed by its draft, so the first output token needs no special case, and a row
without a draft decodes plainly.  Grammars are functions of the ids so far, which the host may call at any time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specplug.faults import FaultGuard
from specplug.grammar.drafts import SOURCE, Completer
from specplug.grammar.states import AllowedState
from specplug.interfaces import Verifier
from specplug.steps.draft_stage import DraftStage
from specplug.steps.plan_stage import PlanStage
from specplug.steps.slots import SlotAllocator
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import NO_SPECULATION, Draft, Outcome, StepCost, until_stop
from specplug.types.verification import TargetLogits, Verification
from specplug.verify.lossy import merged
from specplug_transformers.batch import DecodeBatch
from specplug_transformers.params import AllowedTokens, process_row
from specplug_transformers.runner import ModelRunner
from specplug_transformers.state import RequestState


@dataclass
class Decoder:
    """Runs decode steps.

    Attributes:
        runner, allocator, plans, drafts: the engine's parts.
        tokens: [S, L] int32, the token table, by slot; entries after a request's text are undefined.
        verifier: a lossless verifier.
        lossy: a verifier for the requests that name it.
        steps: forward passes of the target that emitted tokens.
        last_step: cost of the newest decode step, without prefill; None before the first.
        batch: that of the newest step; None once one of its requests has left, which it would keep alive.
    """

    runner: ModelRunner
    allocator: SlotAllocator
    tokens: Tensor
    plans: PlanStage
    drafts: DraftStage
    verifier: Verifier
    lossy: Verifier | None = None
    steps: int = 0
    last_step: StepCost | None = None
    batch: DecodeBatch | None = None

    def __post_init__(self) -> None:
        self._grammars = Completer(FaultGuard(SOURCE, sink=self.drafts.metrics.count_fault))
        self._plan = NO_SPECULATION

    def step(self, states: Sequence[RequestState]) -> None:
        """Extend each request by its accepted draft tokens and the token after them."""
        began = time.perf_counter()
        if self.batch is None or self.batch.states != tuple(states):
            self.batch = DecodeBatch(states, self.allocator, self.tokens)
        batch = self.batch
        draft = self._draft(batch)
        drafted = time.perf_counter()
        logits = self._target_logits(batch, draft)
        verification = self._verify(batch, draft, logits)
        context_tokens = sum(state.length for state in states)
        counts = self._commit(batch, draft, verification)
        self.last_step = StepCost(
            requests=len(states),
            tokens=len(states) * (draft.draft_length + 1),
            context_tokens=context_tokens,
            draft_length=self._plan.draft_length,
            seconds=time.perf_counter() - began,
            # A GPU may still be at work when its drafts are returned.
            drafting_seconds=drafted - began if self.runner.device.type == "cpu" else None,
        )
        if self.plans.learns and not self.plans.is_off:
            length = self._plan.draft_length
            cost = self.last_step
            self.plans.observe(
                StepReport.build(self.steps, length, len(counts), counts, cost=cost, batch_size=len(states))
            )
        self.steps += 1

    def write(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Write tokens of one request from position `start`."""
        ids = torch.tensor(token_ids, dtype=torch.int32, device=self.tokens.device)
        self.tokens[slot, start : start + len(token_ids)] = ids

    def _draft(self, batch: DecodeBatch) -> Draft:
        """Plan, propose and trim."""
        states = batch.states
        figures = tuple(state.stats() for state in states)
        stats = HostStats(self.steps, figures, last_step=self.last_step, last_plan=self._plan)
        plan = self._plan = self.plans.plan(stats)
        caps = torch.tensor([it.draft_cap(plan) for it in states], dtype=torch.int32, device=self.runner.device)
        view = batch.view(self.runner.vocab_size)
        draft = self.drafts.propose(view, plan.draft_length, caps)
        draft = self.drafts.trim(view, draft, plan)
        if draft.draft_length and any(state.params.allowed_tokens for state in states):
            room = view.limits(draft.draft_length, caps)
            draft = self._grammars.complete(draft, _grammar_states(states, draft.device), room, plan.token_budget)
        if self.runner.device.type == "cpu":  # where reading the lengths needs no sync
            draft = draft.view(draft.batch_size, max(draft.lengths.tolist()))
        return draft

    def _target_logits(self, batch: DecodeBatch, draft: Draft) -> Tensor:
        """Run each row's last token and draft; return logits [B, N + 1, V], with each request's processors applied."""
        states = batch.states
        last = torch.tensor([state.tokens[-1:] for state in states], dtype=torch.int64, device=self.runner.device)
        token_ids = torch.cat([last, draft.token_ids.long()], 1)
        token_ids = torch.where(token_ids < 0, last, token_ids)  # padding: any valid id, its logits are unused
        logits = self.runner.forward([state.row for state in states], [state.computed for state in states], token_ids)
        for index, state in enumerate(states):
            if state.processors is not None:
                drafted = draft.token_ids[index, : int(draft.lengths[index])].tolist()
                with _named(state, "a logits processor"):
                    process_row(state.processors, state.tokens, drafted, state.end_token_ids, logits[index])
        return logits

    def _verify(self, batch: DecodeBatch, draft: Draft, logits: Tensor) -> Verification:
        """Verify losslessly, except the rows that name a lossy verifier.

        Rows with a seed are verified as one-hot, so that their text depends on the seed alone.
        """
        if batch.seeded is not None:
            draft = draft.as_one_hot(batch.seeded)
        step = draft, TargetLogits.dense(logits), batch.sampling, batch.uniforms(draft.draft_length)
        found = self.verifier.verify(*step)
        if self.lossy is None or batch.opted_in is None:
            return found
        found = merged(batch.opted_in, self.lossy.verify(*step), found)
        if found.departed is not None:
            self.drafts.metrics.lossy.add(found.num_accepted * batch.opted_in, found.departed)
        return found

    def _commit(self, batch: DecodeBatch, draft: Draft, verification: Verification) -> list[tuple[int, int]]:
        """Append the emitted tokens, roll back rejected ones, and report the outcome to the draft stage.

        Returns:
            The verified and accepted draft tokens of each request that might draft, up to its end.
        """
        after_stop = []
        counts = []
        emitted = zip(batch.states, verification.token_ids.tolist(), draft.lengths.tolist(), strict=True)
        for state, row, verified in emitted:
            tokens = [token for token in row if token >= 0]
            start = state.length
            self.write(state.slot, start, tokens)
            with _named(state, "a stop condition"):
                received = state.extend(tokens)
            after_stop.append(len(tokens) - received)
            state.computed = start + len(tokens) - 1
            verified, accepted = until_stop(verified, len(tokens) - 1, received)
            state.verified += verified
            state.accepted += accepted
            state.rejected += accepted < verified
            state.steps += 1
            if state.draft_cap(self._plan):
                counts.append((verified, accepted))
        outcome = Outcome(
            verified=draft.lengths,
            accepted=verification.num_accepted,
            emitted=verification.num_emitted,
            after_stop=torch.tensor(after_stop, dtype=torch.int32, device=self.runner.device),
        )
        self.drafts.observe(batch.view(self.runner.vocab_size, after_stop), self._grammars.annotated(outcome))
        return counts


@contextmanager
def _named(state: RequestState, what: str) -> Iterator[None]:
    """Note on an exception whose request raised it."""
    try:
        yield
    except Exception as error:
        name = state.request.request_id
        error.add_note(f"raised by {what} of request {name!r}; abort it and the others go on")
        raise


def _grammar_states(states: Sequence[RequestState], device: torch.device) -> list[AllowedState | None]:
    """Return the grammar state of each request; None for requests without a grammar."""

    def ask(allowed: AllowedTokens, text: Sequence[int]) -> list[int]:  # as Hugging Face does for a batch's only row
        return allowed(0, torch.tensor(text, dtype=torch.int64, device=device))

    return [
        None
        if (allowed := state.params.allowed_tokens) is None
        else AllowedState(partial(ask, allowed), state.tokens, state.end_token_ids)
        for state in states
    ]
