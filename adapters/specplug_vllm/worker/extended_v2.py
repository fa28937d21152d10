"""Lookup after vLLM's own drafter on the V2 runner, on the device: nothing waits for the drafter's tokens.

The drafter runs as without specplug, so that its key-value cache stays in step.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug_vllm import seams
from specplug_vllm.config import engine_tokens
from specplug_vllm.worker.stage_steps import UNLIKELY
from specplug_vllm.worker.v2 import Speculator


class ExtendedSpeculator(Speculator):
    """specplug beside the speculator of a V2 runner, which has just been built.

    Args:
        runner: the `GPUModelRunner`.
    """

    def __init__(self, runner: Any) -> None:
        seams.require("extended v2")
        config = runner.vllm_config
        engine = runner.speculator
        own_length = engine_tokens(config)
        longest = engine.num_speculative_steps
        several_ranks = config.parallel_config.tensor_parallel_size > 1  # which run the same passes
        self._drafted: Tensor = engine.draft_tokens
        self._from_engine = torch.zeros(self._drafted.shape[0], dtype=torch.int32, device=runner.device)
        self._engine_logits: Tensor | None = engine.draft_logits
        super().__init__(config, runner.device, runner.req_states)
        propose = engine.propose

        @functools.wraps(propose)
        def extended(
            input_batch: Any,
            *args: Any,
            num_speculative_tokens: int | None = None,
            dummy_run: bool = False,
            **kwargs: Any,
        ) -> Tensor:
            needed = longest if num_speculative_tokens is None else num_speculative_tokens
            is_dummy = dummy_run or self.is_warmup
            wanted = min(needed, own_length)
            if not is_dummy and not several_ranks:  # the only rank drafts
                wanted = min(needed, self.steps.engine_tokens())
            drafted: Tensor = propose(input_batch, *args, num_speculative_tokens=wanted, dummy_run=dummy_run, **kwargs)
            if is_dummy:
                return drafted
            if wanted < min(needed, own_length):
                drafted[:, wanted:own_length] = -1
            return self.propose(input_batch, *args)

        engine.propose = extended

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return [B, K] int64 draft ids that continue the newest ones of vLLM's drafter; see `Speculator.propose`."""
        ids: Tensor = super().propose(input_batch, *args, **kwargs)
        if self._engine_logits is not None and not self._is_idle:
            temperature = args[8]
            from_engine = self._from_engine[: ids.shape[0]]
            rows = self._rows
            selected = None if self.drafting is None or rows is None else self.drafting.selected(rows)
            if rows is not None and selected is not None:
                from_engine[rows.order] = from_engine[rows.order].masked_fill(selected, 0)
            write_one_hot(self._engine_logits, input_batch.idx_mapping, ids, from_engine, temperature)
        return ids

    def _tensors(self, slots: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> EngineTensors:
        return super()._tensors(slots, num_sampled, num_rejected)._replace(engine_ids=self._drafted)

    def _outputs(self, rows: int) -> DraftOutputs:
        outputs = super()._outputs(rows)
        if self._engine_logits is None:
            return outputs
        return outputs._replace(from_engine=self._from_engine[:rows])


def write_one_hot(logits: Tensor, slots: Tensor, ids: Tensor, from_engine: Tensor, temperature: Tensor) -> None:
    """Overwrite the logits of the tokens that vLLM's drafter did not draw: those drafts are certain.

    Args:
        logits: [S, K, V], by slot, before temperature, that the drafter's tokens were drawn from.
        slots: [B] int64, distinct.
        ids: [B, K] int64, the drafts.
        from_engine: [B] int32, how many tokens at the beginning of each draft are the drafter's.
        temperature: [S] float32, by slot.
    """
    places = torch.arange(ids.shape[1], device=ids.device)
    is_certain = (places >= from_engine[:, None])[:, :, None]
    floor = (UNLIKELY * temperature[slots].clamp(min=1.0)).to(logits.dtype)[:, None, None]
    rows = torch.where(is_certain, floor, logits[slots])
    at_tokens = rows.gather(2, ids[:, :, None])
    rows.scatter_(2, ids[:, :, None], torch.where(is_certain, 0.0, at_tokens))
    logits[slots] = rows
