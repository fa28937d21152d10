"""vLLM's adaptive verification on V2, with a budget from specplug's plan instead of costs of vLLM's own.

`specplug_vllm.startup.engine_config` explains its purpose, and which of vLLM's checks are kept.

At start-up vLLM runs dummy steps of every captured size, and of larger ones up to the most tokens of a step, and times
the target's forward by events in its stream.  A sample holds tokens, requests, milliseconds, and whether one full CUDA
graph ran.  The context is one length for all; the steps have as many requests as they can, and no prompts.  Nothing of
the host, the sampler or the drafter is in it: specplug drafts nothing in dummy steps, so the drafter is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor
from vllm.v1.worker.gpu.attn_utils import get_query_lens_mismatch_unsupported_backend
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager

from specplug.errors import EngineError
from specplug.seams.seam import hook
from specplug.steps.trim import best_count, completed
from specplug.types.step import NO_SPECULATION, StepCost, StepPlan
from specplug_vllm.config import use_of
from specplug_vllm.startup.engine_config import ADAPTIVE, has_any_graphs


def install_manager() -> None:
    """Patch the V2 runner's module, which the caller has already imported, to build `BudgetManager`."""
    from vllm.v1.worker.gpu import model_runner

    hook(model_runner, "maybe_create_adaptive_verification_manager", _our_manager)
    hook(model_runner, "resolve_adaptive_cudagraph_mode", _our_graph_mode)


def _our_manager(original: Callable[..., Any], **arguments: Any) -> Any:
    vllm_config = arguments["vllm_config"]
    if not arguments[ADAPTIVE] or not use_of(vllm_config):
        return original(**arguments)
    if arguments.get("copy_admitted_drafts_to_host"):
        _refuse("batch-sharded sampling, which needs their counts on the host", "switch batch-sharded sampling off")
    if has_any_graphs(vllm_config):
        original(**arguments)  # raises if a backend or its graphs cannot; the manager it returns is dropped
    else:  # vLLM's check without the one of graphs
        groups = arguments["attn_groups"]
        names = arguments.get("target_layer_names")
        backend = get_query_lens_mismatch_unsupported_backend(groups, checked_layer_names=names)
        if backend is not None:
            what = f"attention backend {backend}, which plans from query lengths on the host"
            _refuse(what, "choose another backend")
    needed = ("req_states", "query_start_loc", "num_bonus_tokens", "max_total_logits")
    return BudgetManager(**{name: arguments[name] for name in needed})


def _refuse(what: str, otherwise: str) -> None:
    raise EngineError.build(
        "drafts cannot be cut on the device",
        who="specplug_vllm",
        found=what,
        remedy=f"Leave {ADAPTIVE!r} out of --speculative-config, or {otherwise}",
    )


def _our_graph_mode(original: Callable[..., Any], mode: Any, **arguments: Any) -> Any:
    return original(mode, **arguments) if mode.has_full_cudagraphs() else mode


class BudgetManager(AdaptiveVerificationManager):  # type: ignore[misc]
    """Admits the draft tokens of a batch that are most likely to be accepted, within the plan's budget and costs.

    The host must know the number of tokens before the step; the device picks them by the newest confidences.  The
    number follows from the confidences of one step before, which vLLM copies to the host meanwhile; only a plan with
    costs needs the copy.  What vLLM profiles goes to the planner, whose costs take the place of vLLM's cost tables.

    Attributes:
        plan: the plan of the drafts that the next batch verifies.
        admitted: number of draft tokens that the newest batch verifies, until it is stated with the step's output.
        profiled: step costs that vLLM has profiled, until a step's output takes them to the planner.
    """

    plan: StepPlan = NO_SPECULATION
    admitted = 0
    profiled: tuple[StepCost, ...] = ()
    _context_length = 0  # context tokens of the requests in profiled steps
    _is_copied = False  # whether there are confidences on the host

    def add_request(self, req_idx: int) -> None:
        """Reset a slot's confidences: until its request drafts, its placeholders are admitted last."""
        super().add_request(req_idx)
        self._confidence_probs[req_idx].zero_()

    def record_confidences(self, confidence_probs: Tensor, input_batch: Any) -> None:
        """Store the confidences of the newest drafts by slot; `confidence_probs` [S, K] is by row."""
        self._is_copied = bool(self.plan.costs)
        if self._is_copied:
            super().record_confidences(confidence_probs, input_batch)
        else:
            self._confidence_probs[input_batch.idx_mapping] = confidence_probs[: input_batch.num_reqs]

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """Return how many tokens the step runs, and keep the split that vLLM's manager reads later in the step."""
        drafts = {name: len(draft_tokens.get(name, ())) for name in num_tokens_per_req}
        others = {name: count - drafts[name] for name, count in num_tokens_per_req.items()}
        room: int = self._max_total_logits - len(others) * self.num_bonus_tokens  # in the sampler's single chunk
        admitted = self.plan.budget_of(min(sum(drafts.values()), max(0, room)))
        if self._is_copied and admitted:
            admitted = best_count(self._survival(drafts), self.plan.costs, admitted)
        self.admitted = admitted
        self._batch_budget = (drafts, others, admitted)
        return sum(others.values()) + admitted

    def batches_to_profile(self, capture_sizes: list[int]) -> Iterator[dict[str, int]]:
        """Yield vLLM's batches, and note the context of their requests."""
        for batch in super().batches_to_profile(capture_sizes):
            self._context_length = min(batch.get("context_len", 0), self.req_states.max_model_len)
            yield batch

    def set_initial_cost_curves(self, samples: list[Any]) -> None:
        """Keep what those batches cost, as `StepTimingSample`s say, for the planner.

        Rows longer than a draft can be run as prompts do, without the graph for drafts: their excess is prompt tokens.
        """
        longest = self.num_speculative_steps
        self.profiled = tuple(
            [
                StepCost(
                    requests=sample.num_reqs,
                    tokens=sample.num_target_tokens,
                    context_tokens=sample.num_reqs * self._context_length,
                    draft_length=min(-(-sample.num_target_tokens // sample.num_reqs) - 1, longest),
                    seconds=sample.forward_ms / 1e3,
                    prompt_tokens=max(0, sample.num_target_tokens - sample.num_reqs * (longest + 1)),
                )
                for sample in samples
            ]
        )

    def take_counts(self) -> tuple[int, tuple[StepCost, ...]]:
        """Return `admitted` of the newest step and, with its first one, `profiled`; both are stated once.

        On several ranks the output of rank 0 takes them to the scheduler.
        """
        taken = self.admitted, self.profiled
        self.admitted = 0
        self.profiled = ()
        return taken

    def _survival(self, drafts: dict[str, int]) -> Any:
        """Return the survival probabilities of as many tokens as there are drafts, by confidences one step old."""
        slots = [self.req_states.req_id_to_index[name] for name in drafts]
        counts = np.array(list(drafts.values()))
        confidence = self._stale_confidences[self._stale_idx].np[slots]
        is_known = confidence.min(axis=1) < 1.0  # vLLM takes new requests for certain
        survival = completed(np.cumprod(confidence, axis=1), is_known)
        return survival[np.arange(survival.shape[1]) < counts[:, None]]
