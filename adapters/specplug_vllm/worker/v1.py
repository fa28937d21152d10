"""The drafter of vLLM's V1 runner (``custom_class``): runs in the worker, on the CPU, with exact lengths per request.

The runner keeps its token table in host memory and passes sampled tokens as lists, so drafting runs on the CPU whatever
the engine's device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specplug.types.draft import Draft
from specplug.verify.draft_distribution import write_probs
from specplug_vllm import seams
from specplug_vllm.startup import engine_config, recurrent
from specplug_vllm.worker import events, lifecycle, memory, ranks, status, verifier, verifier_v1, workarounds
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.v1_steps import Steps

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
        self._steps = None if self.drafting is None else Steps(self.drafting, self._state_distribution)
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
        if recurrent.is_recurrent(runner.vllm_config):
            recurrent.install_v1_worker(runner)
        if self.verifier is not None:
            verifier_v1.install(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            events.install_worker(runner, self.drafting)
            self.drafting.text_of = partial(_text_of, runner)
            # vLLM's limit skips drafting for the whole batch when one row nears the maximum context length.  specplug
            # bounds each row by its own room instead.
            runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, *_: Any, **__: Any
    ) -> list[list[int]]:
        """Return each row's draft ids; of a step without drafts an empty list, whose rows vLLM then leaves as they are.

        Args:
            sampled_token_ids: per row, the tokens that the step emitted; empty for prefill chunks.
            num_tokens_no_spec: [R] ints, tokens per row, sampled ones included.
            token_ids_cpu: [R, L] int32, the runner's token table, by row.
        """
        if self.drafting is None or self._steps is None or self._runner is None:
            return []
        names = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
        if self.drafting.is_idle and self._steps.skip(names, sampled_token_ids):
            return []
        drafts = self._steps.draft(names, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        return [] if self.drafting.is_idle else drafts

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


def _hook_runner() -> None:
    """Hook the runner's class; the caller has already imported its module."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    lifecycle.install(GPUModelRunner)
