"""The drafter of vLLM's V1 runner (``custom_class``): runs in the worker, on the CPU, with exact lengths per request.

The runner keeps its token table in host memory and passes sampled tokens as lists, so drafting runs on the CPU whatever
the engine's device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.runtime.rows import RowFacts
from specplug.runtime.slots import SlotRows
from specplug.types.batch import EngineBatch, Residency
from specplug.types.draft import Draft
from specplug.types.verdict import Outcome
from specplug.verify.draft_distribution import write_probs
from specplug_vllm import seams, step_metadata
from specplug_vllm.startup import engine_config
from specplug_vllm.worker import events, lifecycle, memory, ranks, status, verifier, verifier_v1, workarounds
from specplug_vllm.worker.drafting import Drafting

_CPU = torch.device("cpu")


class Proposer:
    """specplug as vLLM's V1 runner sees it.  ``speculative_config.model`` names this class.

    Attributes:
        drafting: on tensor-parallel rank 0; None on other ranks, whose drafts vLLM never reads.
        verifier: on every rank, the verifier that replaces the engine's; None if the engine verifies.
    """

    def __init__(self, vllm_config: Any) -> None:
        engine_config.require_installed()
        seams.require("v1")
        workarounds.install()
        self.drafting = Drafting(vllm_config, _CPU, rank=0) if ranks.ranks().leads else None
        device = torch.device(vllm_config.device_config.device)
        self._draft_probs = None if self.drafting is None else self.drafting.engine_distributions(device)
        if self.drafting is not None:
            memory.install(self.drafting)
        self._rows: _Rows | None = None
        self._runner: Any = None
        self.verifier = verifier.build(vllm_config, device)
        status.install_worker()
        _hook_runner()

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: specplug loads nothing after the target."""

    def before_step(self, runner: Any, _scheduler_output: Any) -> None:
        """Store the runner, which vLLM does not pass to drafters; called by the lifecycle hook."""
        if self._runner is not None:
            return
        self._runner = runner
        if self.verifier is not None:
            verifier_v1.install(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            events.install_worker(runner, self.drafting)
            # vLLM's limit skips drafting for the whole batch when one row nears the maximum context length.  specplug
            # bounds each row by its own room instead.
            runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens

    @torch.inference_mode()
    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, *_: Any, **__: Any
    ) -> list[list[int]]:
        """Return each row's draft ids.

        Args:
            sampled_token_ids: per row, the tokens that the step emitted; empty for prefill chunks.
            num_tokens_no_spec: [R] ints, tokens per row, sampled ones included.
            token_ids_cpu: [R, L] int32, the runner's token table, by row.
        """
        count = len(sampled_token_ids)
        if self.drafting is None or self._runner is None:
            return [[] for _ in range(count)]
        rows = self._rows_of(self.drafting, self._runner.input_batch.req_ids[:count])
        if not rows.facts.names:
            return [[] for _ in range(count)]
        lengths = torch.from_numpy(num_tokens_no_spec[:count].astype(np.int32))
        emitted = torch.from_numpy(np.fromiter(map(len, sampled_token_ids), np.int32, count))
        if rows.facts.kept is not None:
            lengths, emitted = lengths[rows.index], emitted[rows.index]
        tokens = torch.from_numpy(token_ids_cpu)
        batch = rows.view(self.drafting, tokens, lengths, emitted)
        draft = self.drafting.step(batch, self._outcome(self.drafting, rows, batch, emitted), rows.slot_rows.caps)
        self._state_distribution(draft, rows.facts.names)
        if rows.facts.kept is None:
            return _lists(draft)
        found: list[list[int]] = [[] for _ in range(count)]
        for row, ids in zip(rows.facts.kept, _lists(draft), strict=True):
            found[row] = ids
        return found

    def _rows_of(self, drafting: Drafting, names: list[str]) -> _Rows:
        """Return the batch's row data, cached while the same requests hold the same slots."""
        if self._rows is None or not self._rows.facts.hold(drafting.allocator, names):
            self._rows = _Rows(drafting, RowFacts(drafting.allocator, names))
        return self._rows

    def _outcome(self, drafting: Drafting, rows: _Rows, batch: EngineBatch, emitted: Tensor) -> Outcome:
        scheduled = drafting.scheduled
        if not scheduled and not drafting.grammars:
            # One token per row: none comes after a stop of the same step, and V1 runs no row that has stopped.
            none = torch.zeros_like(emitted)
            return Outcome(verified=none, accepted=none, emitted=emitted)
        verified = torch.tensor([len(scheduled.get(name, ())) for name in rows.facts.names], dtype=torch.int32)
        after = drafting.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, rows.slot_rows)
        outcome = Outcome(
            verified=torch.where(emitted > 0, verified, 0),
            accepted=(emitted - 1).clamp(min=0),
            emitted=emitted,
            after_stop=after,
        )
        return step_metadata.annotated(drafting.grammars, outcome, rows.facts.names, scheduled)

    def _state_distribution(self, draft: Draft, names: tuple[str, ...]) -> None:
        """Pass the distribution that drafts were drawn from to the rejection sampler; without one they are one-hot."""
        if draft.draft_probs is not None:
            buffer = draft.draft_probs
            if self._draft_probs is not None:
                buffer = self._draft_probs[: draft.batch_size, : draft.draft_length]
            write_probs(buffer, draft)
            self._runner._draft_probs = buffer
            self._runner._draft_prob_req_ids = list(names)


class _Rows:
    """The batch's rows that may draft, valid while no request arrives or leaves.

    Attributes:
        index: [B] int64, their indices among the engine's rows.
    """

    def __init__(self, drafting: Drafting, facts: RowFacts) -> None:
        self.facts = facts
        self.index = torch.arange(len(facts.names)) if facts.kept is None else torch.tensor(facts.kept).long()
        self._slots = torch.tensor(facts.slots, dtype=torch.int64)
        self.slot_rows: SlotRows = drafting.slots.rows(self._slots)
        self._temperature = torch.tensor([r.sampling.temperature for r in facts.requests], dtype=torch.float32)

    def view(self, drafting: Drafting, tokens: Tensor, lengths: Tensor, emitted: Tensor) -> EngineBatch:
        """Wrap the runner's token table; `lengths` and `emitted` are [B] int32."""
        return EngineBatch(
            slots=self._slots,
            generations=self.slot_rows.generations,
            rows=self.index,
            tokens=tokens,
            lengths=lengths,
            sampled=emitted > 0,
            room=self.slot_rows.ends - lengths,
            temperature=self._temperature,
            grammar=self.slot_rows.grammar,
            vocab_size=drafting.vocab_size,
            residency=Residency.HOST,
            reset_slots=drafting.slots.take_resets(),
            barriers=self.facts.barriers,
            request_ids=self.facts.names,
            requests=self.facts.requests,
        )


def _lists(draft: Draft) -> list[list[int]]:
    if not draft.draft_length:
        return [[] for _ in range(draft.batch_size)]
    lengths = draft.lengths.tolist()
    if not any(lengths):
        return [[] for _ in lengths]
    return [ids[:length] for ids, length in zip(draft.token_ids.tolist(), lengths, strict=True)]


def _hook_runner() -> None:
    """Hook the runner's class; the caller has already imported its module."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    lifecycle.install(GPUModelRunner)
