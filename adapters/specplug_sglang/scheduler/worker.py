"""SGLang's speculative worker, in the scheduler's process: all five phases of a step in one call.

A decode step plans on the host, proposes and trims on the device, lets the target verify, and observes; without drafts
it is a step of SGLang's own.  The host runs ahead of the device: it knows the requests, and results that are one step
old.  Newly emitted tokens are only on the device, in the table that the next step's proposers read, so overlapped and
synchronous steps run the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative import eagle_utils
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask, commit_mamba_states_after_verify
from torch import Tensor

from specplug.seams.seam import hook
from specplug.types.step import Draft
from specplug_sglang import doctor, seams
from specplug_sglang.config import largest_batches, resolved_args
from specplug_sglang.scheduler import start_costs
from specplug_sglang.scheduler.batches import Decoding, PlainSteps, decodes_plainly, prepare
from specplug_sglang.scheduler.drafting import Drafting
from specplug_sglang.scheduler.grammar import shorten_rollbacks
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification import acceptance, attention
from specplug_sglang.verification.draft_lengths import DECODING, DraftLengths
from specplug_sglang.verification.operations import choose_operations


class SpeculativeWorker(BaseSpecWorker):
    """specplug as SGLang's scheduler sees it.  It opens no process group, so that it uses no device id and no port.

    Attributes:
        drafting: requests, plans and drafts.
        draft_lengths: attention backends and graphs that verify each draft length.
        plain_steps: prefills, and steps without drafts.
        decodes_plainly: whether steps without drafts run as SGLang's decoding.
    """

    adaptive_controller = None

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        seams.require("worker")
        super().__init__()
        self.server_args = server_args
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.device = torch.device(self.model_runner.device)
        self.ranks = RankGroup(get_parallel().tp_group)
        hook(kv_cache_configurator, "get_req_to_token_extra_context_len", extra_context_len)
        shorten_rollbacks(server_args)
        # Runs before SGLang sizes its cache, so these allocations are counted.
        self.drafting = Drafting(server_args, target_worker, self.ranks)
        assert self.drafting.table is not None
        self.table = self.drafting.table
        self._operations = choose_operations(self.table)
        self._leave_room()
        self.speculative_num_draft_tokens = self.drafting.caps.max_draft_length + 1
        self.draft_lengths = DraftLengths(self.model_runner, self.speculative_num_draft_tokens)
        self._keeps_states = mambaish_config(self.model_runner.model_config) is not None
        self.decodes_plainly = decodes_plainly(self.model_runner.model_config, server_args)
        self.plain_steps = PlainSteps(target_worker, self.table)
        acceptance.count_lossy(server_args)
        if self.ranks.rank == 0:
            doctor.launch_of(server_args).announce()

    def _leave_room(self) -> None:
        """Reserve the memory that rank 0's proposers declare; all ranks must reserve the same."""
        stage = self.drafting.stage
        to_allocate = self.ranks.agree(0 if stage is None else stage.bytes_to_allocate)
        if to_allocate:
            leave_room(stage.leave_room if stage is not None else lambda found: found - to_allocate)

    @property
    def draft_worker(self) -> None:
        """None: specplug runs no draft model of SGLang's."""
        return None

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        """Return all backends that steps run with."""
        return (self.model_runner.attn_backend, *self.draft_lengths.backends())

    def alloc_memory_pool(self, memory_pool_config: Any = None, **pools: Any) -> None:
        """Store the target's pools; refuse a request pool with more rows than there are slots (`EngineError`)."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self._target_worker.get_memory_pool()
        self.drafting.refuse_larger_pool(self.req_to_token_pool)

    def init_attention_backends(self) -> None:
        """Limit what SGLang captures next, the maximum draft length."""
        super().init_attention_backends()
        self.draft_lengths.limit_engine(self._largest_batches())

    def init_cuda_graphs(self) -> None:
        """Build, and on a GPU capture, the other draft lengths that plans may choose."""
        lengths = self.draft_lengths
        lengths.prepare(self._largest_batches())
        # SGLang reports them with what its own graphs took.
        self._additional_graph_memory_usage["target_verify"] = lengths.bytes_taken / (1 << 30)
        self._additional_graph_time_usage["target_verify"] = lengths.seconds
        attention.check(self.model_runner.attn_backend, trees=self.drafting.caps.trees)
        # Forward-pass metrics sum them on the host, one request at a time.
        sums = resolved_args(self.server_args).enable_forward_pass_metrics
        # With a backend that reads text lengths on the host, every step waits for the one before.
        waits = any(getattr(backend, "needs_cpu_seq_lens", True) for backend in self.spec_v2_attn_backends)
        self.model_runner.spec_algorithm.host_lengths = waits or sums
        start_costs.find(self)

    def _largest_batches(self) -> dict[int, int]:
        """Return the largest batch of each draft length that plans may choose, by nodes per request."""
        drafting = self.drafting
        without = DECODING if self.decodes_plainly else 1
        stage = drafting.step_planner.stage
        largest = largest_batches(drafting.caps.captured_draft_lengths, stage.longest_draft, len(self.table.tokens))
        return {length + 1 if length else without: batch for length, batch in largest.items() if batch}

    # -- SGLang's notifications ------------------------------------------------------------------------------------

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Process the accepted counts of a step; SGLang calls this one step late."""
        self.drafting.results.verified(num_correct_drafts_per_req)

    def clear_cache_pool(self) -> None:
        """Notify proposers: an operator who drops cached prompts may want drafts dropped too."""
        self.drafting.on_engine_event("cache flushed")

    # -- steps -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
        """Run one step of a batch: a prefill, or drafts and their verification."""
        if self.device.type != "cpu":
            from sglang.srt.speculative.spec_utils import record_stream_for_v2_verify

            record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        if batch.forward_mode.is_decode():
            return self._decode(batch, on_publish)
        self.drafting.prefill(batch.reqs)
        result = self.target_worker.forward_batch_generation(batch)
        if on_publish is not None:
            on_publish(batch.seq_lens)
        tokens = result.next_token_ids.to(torch.int32)
        self.drafting.append_first(batch.reqs, batch.req_pool_indices, batch.seq_lens, tokens)
        return self.plain_steps.completed(result, tokens, batch.seq_lens)

    def _decode(self, batch: Any, on_publish: Any) -> Any:
        """Draft and verify, or decode plainly if there is nothing to verify."""
        drafting = self.drafting
        draft_length = drafting.plan(batch.reqs)
        step = Decoding(batch.reqs, drafting.rows, batch.req_pool_indices, batch.seq_lens, batch.has_grammar)
        draft = self._draft(step, draft_length)
        result = self.run_target(batch, step, draft, on_publish)
        if drafting.drafts is not None and draft is not None:
            drafting.drafts.observe(step, draft, result.accept_lens)
        elif drafting.drafts is not None:
            drafting.drafts.trace_plain(step, None if draft_length else drafting.step_planner.plan)
        drafting.add_launched(batch.reqs, 0 if draft is None else draft.draft_length, result)
        return result

    def run_target(self, batch: Any, step: Decoding, draft: Draft | None, on_publish: Any = None) -> Any:
        """Let the target verify drafts, or without drafts decode one token of each row; returns SGLang's result."""
        if draft is not None or not self.decodes_plainly:
            return self._verify(batch, step, draft, on_publish)
        with self.draft_lengths.using(DECODING):
            result = self.plain_steps.decode(batch)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        return result

    def _draft(self, step: Decoding, draft_length: int) -> Draft | None:
        """Return drafts of B rows, the same on all ranks; None if nothing is drafted."""
        drafting = self.drafting
        ranks = self.ranks
        draft = None
        if drafting.drafts is not None and draft_length:
            draft = drafting.drafts.propose(step, draft_length, drafting.step_planner.plan)
        elif drafting.drafts is not None:
            drafting.drafts.skip(step)
        if ranks.is_alone:
            return draft
        if drafting.reads_lengths:  # drafts are as long as their longest row
            draft_length = ranks.agree(0 if draft is None else draft.draft_length)
        if not draft_length:
            return None
        trees = drafting.drafts_trees
        return ranks.share(draft or Draft.allocate(len(step.reqs), draft_length, device=self.device, trees=trees))

    def _verify(self, batch: Any, step: Decoding, draft: Draft | None, on_publish: Any) -> Any:
        """Let the target verify drafts, or without drafts the newest token of each row."""
        drafting = self.drafting
        slots = step.slots
        before = step.before
        if draft is None:
            draft = Draft.allocate(len(batch.reqs), 0, device=self.device)
        places = self.req_to_token_pool.req_to_token
        verified = self._operations.verification(draft, self.table, slots, before, places)
        nodes = verified.nodes
        n = draft.draft_length + 1
        with self.draft_lengths.using(n):
            backend = self.model_runner.attn_backend
            mask = None
            if attention.reads_mask(backend, trees=drafting.caps.trees):
                mask = attention.mask_of(batch, nodes, drafting.max_length)
            prepare(batch, verified, mask, keeps_states=self._keeps_states)
            # What grammars need of the nodes is copied to the host meanwhile.
            tree = GrammarTree.from_device(nodes.child, nodes.sibling, nodes.tokens) if batch.has_grammar else None
            result = self.target_worker.forward_batch_generation(batch, is_verify=True)
            logits = result.logits_output
            predict, accept_lens, accept_index = self._accept(batch, logits, tree)
            acceptance.sample_plainly(self.model_runner.sampler, batch, logits, predict, n)
            if self._keeps_states:  # within `using`: the backend that attended knows which state belongs to which row
                commit_mamba_states_after_verify(self.target_worker, batch, accept_lens, accept_index, n)
        if draft.parents is not None or batch.return_logprob:
            self._settle(batch, draft, accept_lens, accept_index, predict, logits)
        accepted = self._operations.append(self.table, slots, before, predict, accept_index, accept_lens)
        if on_publish is not None:
            on_publish(accepted.new_seq_lens)
        batch.forward_mode = ForwardMode.DECODE
        return replace(  # what else the target returns, such as the experts that a client requested, is kept
            result,
            logits_output=logits,
            next_token_ids=accepted.emitted,
            accept_lens=accept_lens,
            cap_lens=verified.counts,  # SGLang's name for the tokens that a row verifies
            new_seq_lens=accepted.new_seq_lens,
            next_draft_input=NgramVerifyInput(  # what the next step needs of this one
                draft_token_num=1,
                new_seq_lens=accepted.new_seq_lens,
                accept_tokens=accepted.last,
                accept_lens=accept_lens,
            ),
            speculative_num_draft_tokens=n,
            speculative_output_stride=n,
        )

    def _accept(self, batch: Any, logits: Any, tree: GrammarTree | None) -> acceptance.Verified:
        """Accept drafts; penalties, biases and the mask of grammars at the nodes of `tree` change the logits."""
        runner = self.model_runner
        mask = None
        if tree is not None:
            info = batch.sampling_info
            how = {"reqs": batch.reqs, "tree": tree, "sampling_info": info, "device": self.device, "barrier": None}
            mask = build_grammar_vocab_mask(**how)
        inputs = batch.spec_info, batch, logits, mask
        state = runner.watermark_state
        return acceptance.sample(runner.sampler, eagle_utils.eagle_sample, *inputs, watermark_state=state)

    def _settle(
        self, batch: Any, draft: Draft, accept_lens: Tensor, accept_index: Tensor, predict: Tensor, logits: Any
    ) -> None:
        """Move a tree's accepted tokens to their cache positions (a chain's are in place), then compute logprobs."""
        from sglang.srt.layers.logprob_processor import compute_spec_logprobs
        from sglang.srt.speculative.spec_utils import move_accept_tokens_to_target_kvcache

        if draft.parents is not None and draft.draft_length:
            move_accept_tokens_to_target_kvcache(batch, accept_index, accept_lens - 1, self.token_to_kv_pool_allocator)
            if logits.hidden_states is not None:  # SGLang returns the first ones of each row
                logits.hidden_states = logits.hidden_states[accept_index.flatten().long()]
        if batch.return_logprob:
            compute_spec_logprobs(batch, logits, predict, accept_index=accept_index)


def leave_room(remaining: Callable[[int], int]) -> None:
    """Pass the bytes that SGLang measures for its caches through `remaining`, the same on all ranks.

    SGLang builds the draft worker before it measures, so memory that a proposer allocates when it is built is already
    counted.  This subtracts what proposers declare to allocate later.
    """
    hook(KVCacheConfigurator, "_profile_available_bytes", lambda original, *args: remaining(original(*args)))


def extra_context_len(original: Callable[[], int]) -> int:
    """Extend the rows of the request pool to hold the whole reserve.

    For a step SGLang reserves up to twice the step's nodes per request, also at the end of the context, but its rows in
    the request pool extend less than that beyond the context.  The excess would be written into another request's row
    and never be freed.
    """
    return max(int(original()), int(get_alloc_reserve_per_decode()))
