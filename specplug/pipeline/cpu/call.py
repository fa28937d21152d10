"""HostStepCall: steps in which a proposer's C function and all bookkeeping around it are one compiled call."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from specplug.interfaces import HasHostStep
from specplug.pipeline.cpu import host_function as host
from specplug.pipeline.cpu import kernels
from specplug.pipeline.cpu.columns import Columns
from specplug.pipeline.cpu.trimming import StepCut
from specplug.pipeline.draft import DraftStage
from specplug.types.batch import EngineBatch
from specplug.types.host_step import BUSY, StepArgument


class HostStepCall:
    """Takes steps on an engine's token table in host memory, in turn with the proposer's `step`.

    Args:
        stage: a stage on the CPU whose only proposer has a host step.
        memory: the arrays of the step.
        columns: the rows of the next step, part of `memory`.
        cut: the cut of the step's drafts.
        vocab_size: V.
    """

    def __init__(
        self, stage: DraftStage, memory: kernels.Memory, columns: Columns, cut: StepCut, vocab_size: int
    ) -> None:
        self._runner, self._memory, self._lengths, self._cut = stage.runners[0], memory, columns.lengths, cut
        proposer = self._runner.handle.proposer
        assert isinstance(proposer, HasHostStep)
        self._proposer, step = proposer, proposer.host_step()
        self._numbers, self._arguments = np.zeros(host.NUMBERS, np.int64), np.zeros(len(StepArgument), np.int64)
        self._numbers[[host.VOCAB_SIZE, host.NUM_SOURCES]] = vocab_size, len(stage.sources)
        self._numbers[[host.FUNCTION, host.DATA, host.REPORTS]] = step.function, step.data, True
        self._table: npt.NDArray[np.int32] | None = None
        self.take(np.zeros((1, 1), np.int32), 0, 0, keeps=False)  # compile

    def applies(self, batch: EngineBatch) -> bool:
        """Return whether the C function covers the step: no text begins, and what the slots share is up to date."""
        if batch.reset_slots or batch.barriers or self._runner.has_missed_resets:
            return False
        self._is_outdated = True  # also if the proposer fails to tell
        self._runner.guard.call(self._ask)
        return not self._is_outdated

    def _ask(self) -> None:
        self._is_outdated = self._proposer.is_outdated()

    def take(self, tokens: npt.NDArray[np.int32], batch_size: int, draft_length: int, *, keeps: bool) -> None:
        """Report the verified step of B rows and draft for the next one, with faults contained.

        Args:
            tokens: [R, L] int32, the token table; pass the same array at every step.
            batch_size: B.
            draft_length: K.
            keeps: whether to store the drafts until their verdict.
        """
        if self._table is not tokens:
            self._table, self._step = tokens, self._record(tokens)
        numbers, admits = self._numbers, self._runner.is_ready(())
        numbers[host.BATCH_SIZE : host.DRAFT_LENGTH + 1] = batch_size, draft_length
        numbers[host.ADMITS : host.LATE] = admits, keeps
        host.run_in_turn(self._step)
        status = int(numbers[host.STATUS])
        if admits and status != BUSY:
            self._runner.take(partial(host.raise_if_failed, status))

    def _record(self, tokens: npt.NDArray[np.int32]) -> host.Step:
        """Hand all addresses to the compiled function, which reads nothing packed."""
        rows, row, numbers = np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64)
        return host.Step(  # type: ignore[no-untyped-call]
            self._memory, self._numbers, self._arguments, numbers, row, row, row, row, rows, self._lengths,
            tokens, row, numbers, numbers, self._cut.record,
        )  # fmt: skip
