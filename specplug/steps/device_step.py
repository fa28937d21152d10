"""A step of `DeviceSteps`, and its batch, which is described anew only if other rows draft."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specplug.steps.engine_rows import DraftOutputs, EngineRows
from specplug.steps.kernels.columns import NUM_NEW, DeviceColumns
from specplug.steps.rows import Rows
from specplug.steps.slots import NO_CAP
from specplug.types.step import Draft, EngineBatch, StepPlan
from specplug.types.tensors import to_device


@dataclass(slots=True)
class DeviceStep:
    """One step that is not repeated: what it is called with, what follows from that, and what came of it.

    Attributes:
        engine, outputs, last_sampled, temperature, plan, reports: see `DeviceSteps.take`.
        caps: the policy's, by row.
        draft: the view of the buffer for the tokens that the proposer may draft, which is more than the plan's where
            the step `is_reported`; at the end that for the plan's.
        is_reported: whether it reports what its drafts are expected to yield.
        has_record: whether the device writes a record of it if something is drafted.
        has_drafted, is_cut: set once it has drafted: whether the proposer succeeded, and whether the policy has cut.
        is_finished: set once it has drafted: whether the proposer's kernels have finished it.
        only_launched: set once it has drafted: whether it did nothing but launch kernels.
    """

    engine: EngineRows
    outputs: DraftOutputs
    last_sampled: Tensor
    temperature: Tensor
    plan: StepPlan
    reports: bool
    caps: Tensor = field(init=False)
    draft: Draft = field(init=False)
    is_reported: bool = False
    has_record: bool = False
    has_drafted: bool = False
    is_cut: bool = False
    is_finished: bool = False
    only_launched: bool = False


class DeviceBatch:
    """B rows that may draft, among E rows of the engine.

    Args:
        columns: what kernels write of the rows.
        vocab_size: V.

    Attributes:
        view: the B rows, without resets; its tensors are those of the columns.
        for_proposer: the same for the proposer.
        vocab_size: V.
        order: [>= B] int32, the engine's row of each of them.
        places: [>= E] int32, the index of each of the engine's rows among them; -1 for the others.
        no_caps: [S] int32.
    """

    view: EngineBatch
    for_proposer: EngineBatch

    def __init__(self, columns: DeviceColumns, vocab_size: int) -> None:
        self._columns = columns
        self.vocab_size = vocab_size
        slots = columns.slots
        self._all_rows = torch.arange(slots.shape[0], dtype=torch.int32, device=slots.device)
        self.no_caps = torch.full_like(self._all_rows, NO_CAP)
        self.order = self.places = self._all_rows
        self._newest: tuple[Rows, int, Tensor] | None = None

    def update(self, rows: Rows, engine: EngineRows) -> None:
        """Describe the batch of a step, unless it is that of the step before."""
        num_rows = engine.idx_mapping.shape[0]
        texts = engine.all_token_ids
        known = self._newest
        if known is not None and known[0] is rows and known[1] == num_rows and known[2] is texts:
            return
        self._newest = rows, num_rows, texts
        self.order = self.places = self._all_rows
        if rows.kept is not None:
            index = {row: place for place, row in enumerate(rows.kept)}
            mapped = self._on_device([*rows.kept, *[index.get(row, -1) for row in range(num_rows)]])
            self.order = mapped[: len(index)]
            self.places = mapped[len(index) :]
        size = len(rows.names)
        batch = self._columns.batch(size, texts, self.vocab_size)
        self.view = replace(batch, barriers=rows.barriers, request_ids=rows.names, requests=rows.requests)
        self.for_proposer = self.view.with_new(self._columns.counts[NUM_NEW, :size], ())

    def caps(self, rows: Rows, plan: StepPlan) -> Tensor:
        """Return the policy's caps by row, [>= B] int32."""
        if not plan.caps:
            return self.no_caps
        return self._on_device([plan.caps.get(name, NO_CAP) for name in rows.names])

    def _on_device(self, values: list[int]) -> Tensor:
        """Return [n] int32 on the device, without waiting for the copy."""
        return to_device([torch.tensor(values, dtype=torch.int32)], self.no_caps.device)[0]
