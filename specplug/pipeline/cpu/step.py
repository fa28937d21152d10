"""CpuStep: one draft stage's steps over batches in host memory, in compiled functions around the proposer's own."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.interfaces import HasHostStep
from specplug.pipeline.cpu import kernels
from specplug.pipeline.cpu.call import HostStepCall
from specplug.pipeline.cpu.columns import Columns
from specplug.pipeline.cpu.trimming import StepCut, trim
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.handles import InlineHandle
from specplug.pipeline.runner import run_in_place, signature_of
from specplug.types.batch import BatchView, EngineBatch
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan


class _Views(NamedTuple):
    """A proposer's arguments in a step of B rows and at most K draft tokens; they share the memory of the kernels.

    Attributes:
        batch, limits, draft: the arguments.
        signature: the draft's, by which a proposer that resizes or moves its tensors is detected.
    """

    batch: BatchView
    limits: Tensor
    draft: Draft
    signature: tuple[object, ...]


class CpuStep:
    """Takes steps of a `DraftStage`, whose state it shares, so that either may take any step.

    Args:
        stage: a stage on the CPU.
        table: [S, 5 + M] int64, see `specplug.runtime.slots`.
        stopped: [S] int64, see `specplug.runtime.stops`.
        vocab_size: V.

    Attributes:
        columns: the rows of the next step, which the engine's adapter fills in.
    """

    def __init__(self, stage: DraftStage, table: Tensor, stopped: Tensor, vocab_size: int) -> None:
        self._stage, self._runner, self._vocab_size = stage, stage.runners[0], vocab_size
        buffer = self._runner.buffer
        self.columns = Columns.allocate(buffer.batch_size)
        counts = stage.metrics.tensors()
        tensors = (table, stopped, self._runner.ingested, self._runner.generations, stage.in_flight.heads, *counts)
        arrays = [tensor.numpy() for tensor in (*tensors, buffer.token_ids, buffer.confidence, buffer.source)]
        lengths = buffer.lengths.numpy(), buffer.base_len.numpy()
        self._drafts = buffer.token_ids.numpy(), buffer.lengths.numpy()
        self._memory = kernels.Memory(  # type: ignore[no-untyped-call]
            *self.columns, *arrays, kernels.NO_PARENTS, *lengths
        )
        self._cut = StepCut(stage, (buffer.batch_size, buffer.draft_length))
        self._call = (
            HostStepCall(stage, self._memory, self.columns, self._cut, vocab_size)
            if self.applies and isinstance(self._runner.handle.proposer, HasHostStep)
            else None
        )
        self._views: tuple[EngineBatch, int, _Views] | None = None

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""
        kernels.describe(self._memory, 0)
        kernels.begin(self._memory, np.zeros((1, 1), np.int32), 0, 0)
        kernels.malformed(self._memory, 0, 0, 0)
        kernels.sanitize(self._memory, 0, 0, 0)
        trim(self._memory, self._cut.record, 0, 0)
        kernels.keep(self._memory, 0)

    @property
    def applies(self) -> bool:
        """True if `take` can take the stage's steps: one inline proposer of chains, and nothing that observes."""
        (first, *others) = self._stage.runners
        is_plain = isinstance(first.handle, InlineHandle) and first.buffer.parents is None
        return (
            is_plain
            and not others
            and not self._stage.has_observers
            and self._stage.distribution is Distribution.ONE_HOT
        )

    def describe(self, batch_size: int) -> None:
        """Fill in the columns of B rows that a batch needs, for a step that the stage itself takes."""
        kernels.describe(self._memory, batch_size)

    def take(self, batch: EngineBatch, tokens: npt.NDArray[np.int32], plan: StepPlan) -> None:
        """Report the rows' verified step and draft for the next one, like `observe`, `propose` and `trim` of the stage.

        The drafts are in the buffer of the stage's proposer; see `lists`.

        Args:
            batch: B rows, whose tensors share the memory of `columns`; pass the same object while the rows and their
                slots are those of the step before.
            tokens: the token table of `batch`.
            plan: the step's plan; requests' caps are in `columns.caps`.
        """
        size, draft_length = batch.batch_size, plan.draft_length
        keeps = self._cut.state(plan, size)
        if self._call is not None and self._call.applies(batch):
            self._call.take(tokens, size, draft_length, keeps=keeps)
        else:
            self._step_in_python(batch, tokens, draft_length, keeps=keeps)
        self._stage.in_flight.is_empty = False
        if keeps:
            self._cut.report()
        else:
            self._trim_in_python(batch, plan)

    def lists(self, batch_size: int, draft_length: int) -> list[list[int]]:
        """Return the ids of the newest step's B drafts of at most K tokens."""
        memory = self._drafts
        return cut_lists(memory[0][:batch_size, :draft_length], memory[1][:batch_size])

    @torch.inference_mode()
    def _trim_in_python(self, batch: EngineBatch, plan: StepPlan) -> None:
        draft = self._views_of(batch, plan.draft_length).draft
        draft.copy_(self._stage.trimmed(batch, draft, plan))
        self._stage.in_flight.put(batch, draft, batch.batch_size)

    @torch.inference_mode()
    def _step_in_python(
        self, batch: EngineBatch, tokens: npt.NDArray[np.int32], draft_length: int, *, keeps: bool
    ) -> None:
        """Call the proposer in Python, between compiled functions."""
        size = batch.batch_size
        kernels.begin(self._memory, tokens, size, draft_length)
        if not self._propose(batch, self._views_of(batch, draft_length)):
            self._views = None  # a proposer can even resize its own view
            self._runner.buffer.lengths[:size].zero_()
        kernels.sanitize(self._memory, size, draft_length, len(self._stage.sources))
        if keeps:
            trim(self._memory, self._cut.record, size, draft_length)
            kernels.keep(self._memory, size)

    def _propose(self, batch: EngineBatch, views: _Views) -> bool:
        """Run the proposer with its faults contained; return whether it succeeded."""
        runner, size = self._runner, batch.batch_size
        if not runner.is_ready(batch.reset_slots):
            columns = self.columns
            runner.ingested[columns.tensor("slots", size)] = columns.tensor("known", size)
            return False
        resets = runner.take_resets()
        handed = replace(views.batch, reset_slots=resets) if resets else views.batch
        return runner.step(handed, views.limits, views.draft, run=self._run)

    def _run(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        """Run the proposer and check its draft, like `InlineHandle`."""
        assert draft is not None
        assert self._views is not None
        run_in_place(self._runner.handle.proposer.step, batch, limits, draft, self._views[2].signature)
        row = kernels.malformed(self._memory, batch.batch_size, draft.draft_length, self._vocab_size)
        if row >= 0:
            raise ContractError.build(
                "malformed draft",
                found=f"token ids {draft.token_ids[row].tolist()}, length {int(draft.lengths[row])}",
                expected=f"ids in [0, {self._vocab_size}), lengths in [0, {draft.draft_length}]",
            )

    def _views_of(self, batch: EngineBatch, draft_length: int) -> _Views:
        known = self._views
        if known is not None and known[0] is batch and known[1] == draft_length:
            return known[2]
        size = batch.batch_size
        draft = self._runner.buffer.view(size, draft_length)
        handed = batch.handed(self.columns.tensor("num_new", size), ())
        views = _Views(handed, self.columns.tensor("limits", size), draft, signature_of(draft))
        self._views = batch, draft_length, views
        return views


def cut_lists(ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> list[list[int]]:
    """Return each row of [B, K] ids as a list, cut to its length."""
    rows, counts = ids.tolist(), lengths.tolist()
    if counts.count(ids.shape[1]) < len(counts):  # most drafts are as long as they may be
        return [row[:count] for row, count in zip(rows, counts, strict=True)]
    return rows  # type: ignore[no-any-return]
