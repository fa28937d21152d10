"""The speculator of vLLM's V2 runner: runs in the worker, wraps the engine's device tensors and returns draft ids.

vLLM calls `propose` once per step, after verification, when the engine's state includes the newly sampled tokens.
Nothing is read back from the device, and no Python data is copied to it, unless a proposer needs the host.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from specplug.errors import describe
from specplug.faults import end_process
from specplug.seams.seam import hook
from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps
from specplug.steps.draft_report import DraftReport
from specplug.steps.rank_check import RankCheck
from specplug.steps.rows import Rows
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import cuts_on_device, each_rank_drafts, lossy_method
from specplug_vllm.startup import graphs, recurrent
from specplug_vllm.worker import hooks, status, verifier, verifier_v2, workarounds
from specplug_vllm.worker.drafting import Drafting, ranks
from specplug_vllm.worker.stage_steps import StageSteps, device_steps, write_logits

logger = logging.getLogger("specplug")


class Speculator(BaseSpeculator):
    """specplug as vLLM's V2 runner sees it.

    Args:
        vllm_config: config of a server with specplug enabled.
        device: the runner's device.
        req_states: the runner's `RequestState`, whose tensors are indexed by slot.

    Attributes:
        drafting: on tensor-parallel rank 0, or on each; None on ranks that receive rank 0's drafts.
        steps: on ranks that draft, what takes the steps: kernels, or the draft stage.
        rank_check: on ranks that each draft; otherwise None.
        draft_logits: [S, K, V] float32 by slot, before temperature, that sampled drafts were drawn from; None if no
            proposer states them.
        draft_token_confidence_probs: [S, K] float32 by row of the newest batch; 0 for padding.
        verifier: on every rank, the verifier that replaces the engine's; None if the engine verifies.
        verified_report: of the drafts that the step that runs verifies; None if nothing was drafted.
        enable_adaptive_verification: whether the runner cuts drafts by these confidences; see `adaptive`.
        is_warmup: whether the newest step is one of vLLM's own; see `hooks.is_warmup`.
    """

    supports_mm_inputs = False  # otherwise the runner would gather image embeddings for the speculator
    model = torch.nn.Module()
    pcp_manager: Any = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        self._states = req_states
        rank, self._broadcast = ranks()
        self.verifier = verifier.build(vllm_config, device)
        slots = vllm_config.scheduler_config.max_num_seqs
        spec = vllm_config.speculative_config
        self.enable_adaptive_verification = cuts_on_device(vllm_config)
        self._sent, self._out, self.draft_token_confidence_probs = buffers(
            slots, spec.num_speculative_tokens, device, together=self.enable_adaptive_verification
        )
        vocab = vllm_config.model_config.get_vocab_size()
        self._distinct = torch.arange(self._out.numel(), device=device).remainder(vocab).view_as(self._out)
        each = each_rank_drafts(vllm_config)
        self.drafting = Drafting(vllm_config, device, rank) if each or rank == 0 else None
        self.rank_check: RankCheck | None = None
        if each and self.drafting is not None and self._broadcast is not None:
            self.rank_check = RankCheck(self.drafting.stage.proposers, rank, self._broadcast)
            self._broadcast = None
        self._captured = graphs.captured_lengths(vllm_config) if rank == 0 else {}
        self._outputs_of: dict[int, DraftOutputs] = {}
        self._rows: Rows | None = None
        self.draft_logits: Tensor | None = None
        self._step: Any = None  # the scheduler's output of the newest step
        self.is_warmup = self._is_idle = False
        self.verified_report: DraftReport | None = None
        self._report: DraftReport | None = None  # of the newest drafts, which the next step verifies
        if self.drafting is not None:
            self.drafting.allocator.engine_slot = lambda name: req_states.req_id_to_index[name]
            self.draft_logits = self.drafting.engine_distributions(device)
            counts = torch.zeros(1, dtype=torch.int32, device=device)  # the runner copies slots to the device as int64
            like = self._tensors(counts.long(), counts, counts), self._outputs(slots), req_states.last_sampled_tokens
            self.steps: DeviceSteps | StageSteps = device_steps(self.drafting, like) or StageSteps(self.drafting)
            hooks.reserve_memory(self.drafting)
        if self.enable_adaptive_verification:
            seams.require("adaptive")
            from specplug_vllm.worker import adaptive

            adaptive.install_manager()
        status.install_worker()
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # which the runner has imported

        hook(GPUModelRunner, "execute_model", hooks.execute_model)
        hook(GPUModelRunner, "sample_tokens", hooks.sample_tokens)

    def before_step(self, runner: Any, scheduler_output: Any) -> None:
        """Hook the runner at its first step, and store what this step verifies; called by the hook on a step."""
        is_first = self._step is None
        self._step = scheduler_output
        self.verified_report = self._report
        self._report = None
        self.is_warmup = hooks.is_warmup(runner, scheduler_output)
        self._is_idle = step_metadata.is_idle(scheduler_output)
        if not is_first:
            return
        if text := graphs.describe_loss(self._captured, runner.vllm_config):
            logger.warning(text)
        if recurrent.is_recurrent(runner.vllm_config):
            recurrent.install_worker(runner)
        if runner.lora_config is not None:
            workarounds.apply_adapters_by_row(runner.lora_state, lambda: self._step.scheduled_spec_decode_tokens)
        if not lossy_method(runner.vllm_config):
            verifier_v2.install(runner, self.verifier, self.drafting)
        if self.drafting is not None:
            hooks.install_events(runner, self.drafting)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Do nothing: specplug captures no CUDA graphs."""

    def capture(self) -> None:
        """Do nothing: specplug captures no CUDA graphs."""

    def text_of(self, request_id: str) -> tuple[Tensor, int] | None:
        """Return the token table, [S, L] int32, and a request's slot; None if that is free."""
        states = self._states
        slot = states.req_id_to_index.get(request_id)
        return None if slot is None else (states.all_token_ids.gpu, slot)

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Any,
        temperature: Tensor,
        seeds: Any,
        *_: Any,
        dummy_run: bool = False,
        **__: Any,
    ) -> Tensor:
        """Return [B, K] int64 draft ids, all of them valid; the row's last token pads its draft.

        The runner calls it in inference mode.

        Args:
            input_batch: B rows, their slots in `idx_mapping` [B].
            num_sampled: [B] int32, tokens that the step emitted per row, 0 for prefill chunks.
            num_rejected: [B] int32, draft tokens that the step rejected per row.
            last_sampled: [S, 1] int64 by slot.
            temperature: [S] float32 by slot.
        """
        out = self._outputs(input_batch.num_reqs).ids  # vLLM writes into it, so specplug never reads it back
        if dummy_run or self.is_warmup:  # of a mixture of experts, equal tokens would all take the same ones
            return out.copy_(self._distinct[: out.shape[0]])
        try:
            self._draft(input_batch, num_sampled, num_rejected, last_sampled, temperature)
        except Exception as error:
            if self.rank_check is not None:
                end_process(describe(error))
            raise
        return out

    def _draft(
        self,
        input_batch: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        temperature: Tensor,
    ) -> None:
        """Draft for a batch, or receive rank 0's drafts for it; see `propose`."""
        size = input_batch.num_reqs
        if self.drafting is not None:
            rows = self._rows
            if rows is None or not rows.are_of(input_batch.req_ids):
                rows = self._rows = Rows(self.drafting.allocator, input_batch.req_ids)
                if rows.kept is None:
                    rows.device_slots = input_batch.idx_mapping.long()  # so that nothing is copied to the device
            reports = self.steps.may_report and step_metadata.of(self._step).reports
            if self.drafting.may_skip and not reports:
                computed = input_batch.num_computed_prefill_tokens_np + input_batch.num_scheduled_tokens
                emits = (computed >= input_batch.prefill_len_np).tolist()  # rows whose prompt is complete
                self.drafting.count(input_batch.req_ids, emits)
                return
            engine = self._tensors(input_batch.idx_mapping, num_sampled, num_rejected)
            outputs = self._outputs(size)
            inputs = engine, outputs, last_sampled, temperature
            draft = self.steps.take(rows, *inputs, self.drafting.plan, reports_expected=reports)
            self._report = self.steps.report
            if self.draft_logits is not None and rows.names:
                slots = rows.device_slots
                ids = outputs.ids if rows.kept is None else outputs.ids[rows.order]
                write_logits(self.draft_logits, slots, draft, temperature[slots], ids)
        if self._broadcast is not None and not self._is_idle:  # other ranks skip all such steps
            self._broadcast(self._sent[:size])
        if self.rank_check is not None and self._rows is not None and self._rows.slots:
            self.rank_check.after_step(self._rows.device_slots, self._sent[:size])

    def _tensors(self, slots: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> EngineTensors:
        """Wrap the runner's tensors."""
        states = self._states
        return EngineTensors(slots, states.total_len.gpu, states.all_token_ids.gpu, num_sampled, num_rejected)

    def _outputs(self, rows: int) -> DraftOutputs:
        """Return where the drafts of so many rows go."""
        outputs = self._outputs_of.get(rows)
        if outputs is None:
            outputs = self._outputs_of[rows] = DraftOutputs(self._out[:rows], self.draft_token_confidence_probs[:rows])
        return outputs


def buffers(slots: int, draft_length: int, device: torch.device, *, together: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the broadcast buffer, by row, and the draft ids [S, K] int64 and confidences [S, K] float32.

    The draft ids are a view of the broadcast buffer.  With `together` the confidences are too: if every rank cuts its
    own drafts, all ranks must make the same cuts.
    """
    sent = torch.zeros(slots, draft_length + (draft_length + 1) // 2 * together, dtype=torch.int64, device=device)
    if together:
        return sent, sent[:, :draft_length], sent[:, draft_length:].view(torch.float32)[:, :draft_length]
    return sent, sent, torch.zeros(slots, draft_length, device=device)
