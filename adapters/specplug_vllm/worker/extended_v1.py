"""Lookup after vLLM's own drafter on the V1 runner: it continues the drafter's tokens once they are on the host.

The drafter runs as without specplug, so that its key-value cache stays in step.  Its newest tokens are read when the
step has been sampled, before vLLM sends the drafts to the scheduler, which waits for them anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug.steps.device_step import EngineTensors
from specplug.steps.draft_report import engine_tokens_after
from specplug.steps.rows import Rows
from specplug.types.step import NO_SPECULATION, Draft
from specplug_vllm import seams
from specplug_vllm.config import engine_tokens
from specplug_vllm.worker.v1 import V1Proposer


class ExtendedProposer(V1Proposer):
    """specplug beside the drafter of a V1 runner, which has just been built.

    Args:
        runner: the `GPUModelRunner`.
    """

    def __init__(self, runner: Any) -> None:
        seams.require("extended v1")
        config = runner.vllm_config
        self._drafter = runner.drafter
        self._own_length = engine_tokens(config)
        self._several_ranks = config.parallel_config.tensor_parallel_size > 1
        self._engine_ids = torch.zeros(config.scheduler_config.max_num_seqs, self._own_length, dtype=torch.int32)
        self._newest: Tensor | None = None
        self._from_engine: list[int] = []  # of each row, tokens that are verified against what they were drawn from
        self._unused = 0  # steps in a row whose drafts held none of the drafter's tokens
        super().__init__(config)
        propose = self._drafter.propose

        @functools.wraps(propose)
        def limited(*args: Any, num_speculative_tokens: int, **kwargs: Any) -> Any:
            wanted = min(num_speculative_tokens, self._wanted())
            self._newest = propose(*args, num_speculative_tokens=wanted, **kwargs)
            return self._newest

        self._drafter.propose = limited
        hook(type(runner), "sample_tokens", _sample_tokens)

    def extend(self, runner: Any, output: Any) -> None:
        """Replace the drafts of a step whose `output` is ready, on the rank that drafts."""
        ids = self._newest
        self._newest = None
        self._from_engine = []
        if self.drafting is None or not hasattr(output, "sampled_token_ids"):
            return
        if ids is None:  # a text of the batch is too long for the drafter
            self.drafting.plan = NO_SPECULATION
        else:
            self._engine_ids[: ids.shape[0], : ids.shape[1]] = ids
            self._engine_ids[: ids.shape[0], ids.shape[1] :] = -1
        batch = runner.input_batch
        drafts = self.propose(output.sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu)
        if drafts:
            runner._draft_token_ids = drafts
        if drafts and runner._draft_probs is not None:
            runner._draft_probs = extend_probs(runner._draft_probs, drafts, self._engine_counts(len(drafts)))

    def _wanted(self) -> int:
        """Return how many tokens the drafter is to draft: the same on all ranks."""
        if self.drafting is None or self._several_ranks:
            return self._own_length
        return engine_tokens_after(self._unused, self._own_length)

    def _engine_counts(self, rows: int) -> list[int]:
        """Return how many tokens at the beginning of each row's draft are the drafter's."""
        kept = None if self._rows is None else self._rows.kept
        counts = dict(zip(range(rows) if kept is None else kept, self._from_engine, strict=False))  # none if it failed
        return [counts.get(row, 0) for row in range(rows)]

    def _draft(self, rows: Rows, engine: EngineTensors) -> Draft:
        draft = super()._draft(rows, engine._replace(engine_ids=self._engine_ids[: len(engine.idx_mapping)]))
        if draft.draft_length:
            own = (draft.source == len(draft.sources) - 1).sum(1)
            self._unused = 0 if own.any() else self._unused + 1
            assert self.drafting is not None
            selected = self.drafting.selected(rows)
            self._from_engine = (own if selected is None else own.masked_fill(selected, 0)).tolist()
        return draft

    def _lift_limit(self, runner: Any) -> None:
        """Keep vLLM's limit: the drafter's model has it."""


def _sample_tokens(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    output = original(runner, *args, **kwargs)
    extended = getattr(runner.drafter, "specplug", None)
    if extended is not None:
        extended.extend(runner, output)
    return output


def extend_probs(probs: Tensor, drafts: list[list[int]], from_engine: list[int]) -> Tensor:
    """Return the distributions of drafts: of the drafter's own tokens those they were drawn from, else one-hot ones.

    Args:
        probs: [B, n, V] float32, of the drafter's tokens.
        drafts: B drafts, of at most N tokens.
        from_engine: how many tokens at the beginning of each draft are the drafter's.

    Returns:
        [B, N, V] float32, zeros after a draft's end.
    """
    longest = max(map(len, drafts))
    wide = probs.new_zeros(len(drafts), longest, probs.shape[2])
    own = min(longest, probs.shape[1])
    wide[:, :own] = probs[:, :own]
    places = [(row, k) for row, ids in enumerate(drafts) for k in range(from_engine[row], len(ids))]
    if places:
        rows, columns = torch.tensor(places, device=probs.device).unbind(1)
        wide[rows, columns] = 0.0
        wide[rows, columns, torch.tensor([drafts[row][k] for row, k in places], device=probs.device)] = 1.0
    return wide
