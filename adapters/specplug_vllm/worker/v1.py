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
from specplug.steps.device_step import EngineTensors
from specplug.steps.rows import Rows
from specplug.types.step import Draft
from specplug.verify.draft_distribution import write_probs
from specplug_vllm import seams
from specplug_vllm.startup import engine_config, recurrent
from specplug_vllm.worker import hooks, status, verifier, workarounds
from specplug_vllm.worker.drafting import Drafting, ranks

_CPU = torch.device("cpu")


class V1Proposer:
    """specplug as vLLM's V1 runner sees it.  ``speculative_config.model`` names this class.

    Attributes:
        drafting: on tensor-parallel rank 0; None on other ranks, whose drafts vLLM never reads.
        verifier: on every rank, the verifier that replaces the engine's; None if the engine verifies.
        is_warmup: whether the newest step is one of vLLM's own; see `hooks.is_warmup`.
    """

    def __init__(self, vllm_config: Any) -> None:
        engine_config.require_installed()
        seams.require("v1")
        workarounds.install()
        device = torch.device(vllm_config.device_config.device)
        self._runner: Any = None
        self.is_warmup = False
        self._rows: Rows | None = None
        self.drafting = Drafting(vllm_config, _CPU, rank=0) if ranks()[0] == 0 else None
        if self.drafting is not None:
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
        self.is_warmup = hooks.is_warmup(runner, scheduler_output)
        if self._runner is not None:
            return
        self._runner = runner
        if recurrent.is_recurrent(runner.vllm_config):
            recurrent.install_v1_worker(runner)
        if self.verifier is not None:
            verifier.install_on_v1(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            hooks.install_events(runner, self.drafting)
            self.drafting.text_of = partial(_text_of, runner)
            self._lift_limit(runner)

    def _lift_limit(self, runner: Any) -> None:
        """Lift vLLM's limit, which skips drafting for the whole batch when one row nears the maximum context length.

        specplug bounds each row by its own room instead.
        """
        runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens

    def text_of(self, request_id: str) -> tuple[Tensor, int] | None:
        """Return the token table, [R, L] int32, and a request's row in it; None if its text is not there."""
        batch = self._runner.input_batch
        row = batch.req_id_to_index.get(request_id)
        return None if row is None else (torch.from_numpy(batch.token_ids_cpu), row)

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
        if drafting is None or self._runner is None or self.is_warmup:
            return []
        names = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
        rows = self._rows
        if rows is None or not rows.are_of(names):
            rows = self._rows = Rows(drafting.allocator, names)
        if drafting.may_skip:
            drafting.count(names, sampled_token_ids)
            return []
        if not rows.names:
            return []
        draft = self._draft(rows, self._tensors(names, sampled_token_ids, num_tokens_no_spec, token_ids_cpu))
        if drafting.is_idle:
            return []
        lists = [ids[:count] for ids, count in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]
        if rows.kept is None:
            return lists
        by_row: list[list[int]] = [[] for _ in names]
        for row, ids in zip(rows.kept, lists, strict=True):
            by_row[row] = ids
        return by_row

    def _tensors(
        self,
        names: list[str],
        sampled: list[list[int]],
        num_tokens: npt.NDArray[np.int32],
        table: npt.NDArray[np.int32],
    ) -> EngineTensors:
        """Wrap the runner's arrays, with what the step emitted and rejected of each row."""
        assert self.drafting is not None
        size = len(names)
        emitted = np.fromiter(map(len, sampled), np.int32, size)
        rejected = np.zeros(size, np.int32)
        if scheduled := self.drafting.scheduled:
            rejected += np.fromiter(map(len, map(scheduled.get, names, repeat(()))), np.int32, size)
            np.maximum(rejected - emitted + 1, 0, out=rejected)
        return EngineTensors(
            idx_mapping=torch.arange(size),
            total_len=torch.from_numpy(num_tokens),
            all_token_ids=torch.from_numpy(table),
            num_sampled=torch.from_numpy(emitted),
            num_rejected=torch.from_numpy(rejected),
            lengths_by_row=True,
        )

    @torch.inference_mode()
    def _draft(self, rows: Rows, engine: EngineTensors) -> Draft:
        """Let the draft stage take a step, and pass on the distribution that its drafts were drawn from."""
        assert self.drafting is not None
        draft = self.drafting.take(rows, engine.keep(rows.kept))
        if draft.draft_probs is not None:  # without one they are one-hot to the rejection sampler
            buffer = draft.draft_probs
            if self._draft_probs is not None:
                buffer = self._draft_probs[: draft.batch_size, : draft.draft_length]
            write_probs(buffer, draft)
            self._runner._draft_probs = buffer
            self._runner._draft_prob_req_ids = list(rows.names)
        return draft


def _text_of(runner: Any, request_id: str) -> npt.NDArray[np.int32]:
    """Return the row of the token table that a request has just got, up to its end."""
    batch = runner.input_batch
    row = batch.req_id_to_index[request_id]
    text: npt.NDArray[np.int32] = batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]]
    return text
