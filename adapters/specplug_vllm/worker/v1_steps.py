"""Steps of V1's drafter on rank 0, from the runner's host lists to drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specplug.pipeline.cpu.columns import Columns
from specplug.pipeline.cpu.step import CpuStep, cut_lists
from specplug.runtime.rows import RowFacts
from specplug.runtime.slots import NO_CAP, SlotRows
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.verdict import Outcome
from specplug_vllm import step_metadata
from specplug_vllm.worker.drafting import Drafting

Ints = npt.NDArray[np.integer[Any]]


class Steps:
    """Takes the steps of one worker, in compiled functions if they cover the draft stage and the step.

    Args:
        drafting: the worker's drafting, on the CPU.
        notify: called with drafts that may carry distributions, and the names of their rows.
    """

    def __init__(self, drafting: Drafting, notify: Callable[[Draft, tuple[str, ...]], None]) -> None:
        self._drafting, self._notify = drafting, notify
        self._compiled = CpuStep(drafting.stage, drafting.slots.table, drafting.stops.stopped, drafting.vocab_size)
        self._compiled.warm_up()
        self._compiled.columns.caps[:] = NO_CAP
        self._rows: _Rows | None = None

    def rows(self, names: list[str], tokens: npt.NDArray[np.int32]) -> RowFacts:
        """Return host facts of the rows that may draft, cached while the same requests hold the same slots."""
        if self._rows is None or not self._rows.facts.hold(self._drafting.allocator, names):
            facts = RowFacts(self._drafting.allocator, names)
            self._rows = _Rows(facts, self._compiled.columns, tokens, self._drafting.vocab_size)
        return self._rows.facts

    def draft(self, sampled_token_ids: Sequence[Sequence[int]], num_tokens: Ints) -> list[list[int]]:
        """Report the verified step of the rows of the last call of `rows`; return each row's draft ids.

        Args:
            sampled_token_ids: per row of the engine, the tokens that the step emitted.
            num_tokens: [R], tokens of each of the engine's rows, sampled ones included.
        """
        rows, drafting, compiled = self._rows, self._drafting, self._compiled
        assert rows is not None, "`rows` comes first"
        drafting.slots.flush()
        batch = rows.update(sampled_token_ids, num_tokens, drafting.scheduled, drafting.slots.take_resets())
        plan = drafting.plan
        if compiled.applies and plan.draft_length and not plan.caps and not drafting.grammars:
            compiled.take(batch, rows.tokens, plan)
            return compiled.lists(batch.batch_size, plan.draft_length)
        return self._draft_with_stage(batch)

    @torch.inference_mode()
    def _draft_with_stage(self, batch: EngineBatch) -> list[list[int]]:
        drafting = self._drafting
        self._compiled.describe(batch.batch_size)
        slot_rows = drafting.slots.rows(batch.slots)
        draft = drafting.step(batch, self._outcome(batch, slot_rows), slot_rows.caps)
        assert batch.request_ids is not None
        self._notify(draft, batch.request_ids)
        return cut_lists(draft.token_ids.numpy(), draft.lengths.numpy())

    def _outcome(self, batch: EngineBatch, slot_rows: SlotRows) -> Outcome:
        drafting, columns = self._drafting, self._compiled.columns
        emitted = columns.tensor("emitted", batch.batch_size).clone()
        outcome = Outcome(
            verified=torch.where(emitted > 0, columns.tensor("verified", batch.batch_size), 0),
            accepted=(emitted - 1).clamp(min=0),
            emitted=emitted,
            after_stop=drafting.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, slot_rows),
        )
        assert batch.request_ids is not None
        return step_metadata.annotated(drafting.grammars, outcome, batch.request_ids, drafting.scheduled)


class _Rows:
    """A batch's rows that may draft, valid while no request arrives or leaves.

    Attributes:
        facts: host facts of the rows.
        tokens: [R, L] int32, the runner's token table.
    """

    def __init__(self, facts: RowFacts, columns: Columns, tokens: npt.NDArray[np.int32], vocab_size: int) -> None:
        self.facts, self.tokens, self._columns = facts, tokens, columns
        size = len(facts.names)
        columns.slots[:size] = facts.slots
        columns.table_rows[:size] = range(size) if facts.kept is None else facts.kept
        columns.temperature[:size] = [request.temperature for request in facts.requests]
        batch = columns.batch(size, torch.from_numpy(tokens), vocab_size)
        self._batch = replace(batch, barriers=facts.barriers, request_ids=facts.names, requests=facts.requests)

    def update(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens: Ints,
        scheduled: dict[str, list[int]],
        resets: tuple[int, ...],
    ) -> EngineBatch:
        """Write a step's figures to the columns, and return its batch; see `Steps.draft`."""
        columns, kept, size = self._columns, self.facts.kept, self._batch.batch_size
        emitted = list(map(len, sampled_token_ids))
        if kept is None:
            columns.lengths[:size], columns.emitted[:size] = num_tokens[:size], emitted
        else:
            columns.lengths[:size], columns.emitted[:size] = num_tokens[kept], [emitted[row] for row in kept]
        verified = map(len, map(scheduled.get, self.facts.names, repeat(())))
        columns.verified[:size] = list(verified) if scheduled else 0
        return replace(self._batch, reset_slots=resets) if resets else self._batch
