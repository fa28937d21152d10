"""The drafter of vLLM's V1 runner (``custom_class``): runs in the worker, on the CPU, with exact lengths per request.

The runner keeps its token table in host memory and passes sampled tokens as lists, so drafting runs on the CPU whatever
the engine's device.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug.steps.engine_rows import EngineRows
from specplug.steps.rows import Rows
from specplug.types.step import Draft, EngineBatch, Outcome
from specplug.verify.draft_distribution import write_probs
from specplug_vllm import seams
from specplug_vllm.startup import engine_config, recurrent
from specplug_vllm.worker import hooks, status, verifier, verifier_v1, workarounds
from specplug_vllm.worker.drafting import Drafting, kept_of, ranks

_CPU = torch.device("cpu")


class V1Proposer:
    """specplug as vLLM's V1 runner sees it.  ``speculative_config.model`` names this class.

    Attributes:
        drafting: on tensor-parallel rank 0; None on other ranks, whose drafts vLLM never reads.
        verifier: on every rank, the verifier that replaces the engine's; None if the engine verifies.
    """

    def __init__(self, vllm_config: Any) -> None:
        engine_config.require_installed()
        seams.require("v1")
        workarounds.install()
        device = torch.device(vllm_config.device_config.device)
        self._runner: Any = None
        self._is_warmup = False
        self._facts: Rows | None = None
        self.drafting = Drafting(vllm_config, _CPU, rank=0) if ranks()[0] == 0 else None
        if self.drafting is not None:
            self._emitted, self._rejected = np.zeros((2, self.drafting.max_slots), np.int32)
            self._rows = self._wrap(1, self._emitted, np.zeros((1, 1), np.int32))
            self._draft_probs = self.drafting.engine_distributions(device)
            hooks.reserve_memory(self.drafting)
        self.verifier = verifier.build(vllm_config, device)
        status.install_worker()
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # which the runner has imported

        hook(GPUModelRunner, "execute_model", hooks.execute_model)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: specplug loads nothing after the target."""

    def before_step(self, runner: Any, scheduler_output: Any) -> None:
        """Store the runner, which vLLM does not pass to drafters; called by the lifecycle hook."""
        self._is_warmup = hooks.is_warmup(runner, scheduler_output)
        if self._runner is not None:
            return
        self._runner = runner
        if recurrent.is_recurrent(runner.vllm_config):
            recurrent.install_v1_worker(runner)
        if self.verifier is not None:
            verifier_v1.install(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            hooks.install_events(runner, self.drafting)
            self.drafting.text_of = partial(_text_of, runner)
            self._lift_limit(runner)

    def _lift_limit(self, runner: Any) -> None:
        """Lift vLLM's limit, which skips drafting for the whole batch when one row nears the maximum context length.

        specplug bounds each row by its own room instead.
        """
        runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens

    def text_of(self, request_id: str) -> tuple[Tensor, int]:
        """Return the token table, [R, L] int32, and the row of a running request in it."""
        batch = self._runner.input_batch
        return torch.from_numpy(batch.token_ids_cpu), batch.req_id_to_index.get(request_id, 0)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """Return each row's draft ids; of a step without drafts an empty list, whose rows vLLM then leaves as they are.

        Args:
            sampled_token_ids: per row, the tokens that the step emitted; empty for prefill chunks.
            num_tokens_no_spec: [R] ints, tokens per row, sampled ones included.
            token_ids_cpu: [R, L] int32, the runner's token table, by row.
        """
        drafting = self.drafting
        if drafting is None or self._runner is None or self._is_warmup:
            return []
        names = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
        facts = self._facts
        if facts is None or not facts.hold(drafting.allocator, names):
            facts = self._facts = Rows(drafting.allocator, names)
        if drafting.may_skip:
            drafting.count(names, sampled_token_ids)
            return []
        if not facts.names:
            return []
        self._note(names, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        drafts = self._of_stage(facts)
        if drafting.is_idle:
            return []
        if facts.kept is None:
            return drafts
        found: list[list[int]] = [[] for _ in names]
        for row, ids in zip(facts.kept, drafts, strict=True):
            found[row] = ids
        return found

    def _note(
        self,
        names: list[str],
        sampled: list[list[int]],
        num_tokens: npt.NDArray[np.int32],
        table: npt.NDArray[np.int32],
    ) -> None:
        """Write down what the step emitted and rejected; `_rows` wraps the runner's arrays, which it keeps."""
        assert self.drafting is not None
        size = len(names)
        scheduled = self.drafting.scheduled
        if self._wrapped != (id(num_tokens), id(table), size):
            self._rows = self._wrap(size, num_tokens, table)
        emitted = self._emitted[:size]
        rejected = self._rejected[:size]
        emitted[:] = list(map(len, sampled))
        rejected[:] = 0
        if scheduled:
            rejected += list(map(len, map(scheduled.get, names, repeat(()))))
            np.maximum(rejected - emitted + 1, 0, out=rejected)

    def _wrap(self, size: int, num_tokens: npt.NDArray[np.int32], table: npt.NDArray[np.int32]) -> EngineRows:
        self._wrapped = id(num_tokens), id(table), size  # the tensors keep the arrays alive
        return EngineRows(
            idx_mapping=torch.arange(size),
            total_len=torch.from_numpy(num_tokens),
            all_token_ids=torch.from_numpy(table),
            num_sampled=torch.from_numpy(self._emitted[:size]),
            num_rejected=torch.from_numpy(self._rejected[:size]),
            lengths_by_row=True,
        )

    @torch.inference_mode()
    def _of_stage(self, facts: Rows) -> list[list[int]]:
        """Let the draft stage take a step; return the drafts of the rows that may draft."""
        assert self.drafting is not None
        draft = self._draft_of(facts)
        self._state_distribution(draft, facts.names)
        return [ids[:count] for ids, count in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]

    def _draft_of(self, facts: Rows) -> Draft:
        assert self.drafting is not None
        return self.drafting.step(*self._verified(facts))

    @torch.inference_mode()
    def _verified(self, facts: Rows) -> tuple[EngineBatch, Outcome, Tensor]:
        assert self.drafting is not None
        slots, temperature = (
            torch.tensor(values) for values in (facts.slots, [request.temperature for request in facts.requests])
        )
        return self.drafting.verified(facts, kept_of(self._rows, facts.kept), slots, temperature)

    def _state_distribution(self, draft: Draft, names: tuple[str, ...]) -> None:
        """Pass the distribution that drafts were drawn from to the rejection sampler; without one they are one-hot."""
        if draft.draft_probs is not None:
            buffer = draft.draft_probs
            if self._draft_probs is not None:
                buffer = self._draft_probs[: draft.batch_size, : draft.draft_length]
            write_probs(buffer, draft)
            self._runner._draft_probs = buffer
            self._runner._draft_prob_req_ids = list(names)


def _text_of(runner: Any, request_id: str) -> npt.NDArray[np.int32]:
    """Return the row of the token table that a request has just got, up to its end."""
    batch = runner.input_batch
    row = batch.req_id_to_index[request_id]
    text: npt.NDArray[np.int32] = batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]]
    return text
