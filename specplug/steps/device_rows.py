"""A step of `DeviceSteps`: its rows, which are kept while the batch stays as it is, and what is drafted."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.steps.engine_rows import DraftOutputs, EngineRows
from specplug.steps.kernels.columns import NUM_NEW, DeviceColumns
from specplug.steps.rows import Rows
from specplug.steps.slots import NO_CAP
from specplug.types.step import Draft, EngineBatch, StepPlan
from specplug.types.tensors import to_device


class DeviceRows(NamedTuple):
    """B rows that may draft, among E rows of the engine; reused while the same requests hold the same slots.

    Attributes:
        facts: of the B rows.
        num_rows: E.
        order: [>= B] int32, the engine's row of each of them.
        places: [>= E] int32, the index of each of the engine's rows among them; -1 for the others.
        batch: the B rows, without resets; its tensors are those of `DeviceColumns`.
        handed: the same for the proposer.
    """

    facts: Rows
    num_rows: int
    order: Tensor
    places: Tensor
    batch: EngineBatch
    handed: EngineBatch


class DeviceStep(NamedTuple):
    """A step that is not repeated: what `take` is called with, and what follows from it.

    Attributes:
        caps: the policy's, by row.
        draft: the view of the buffer for the tokens that the proposer may draft, which is more than the plan's where
            the step `is_reported`.
        has_record: whether the device writes a record of it if something is drafted.
    """

    rows: DeviceRows
    engine: EngineRows
    outputs: DraftOutputs
    last_sampled: Tensor
    temperature: Tensor
    plan: StepPlan
    caps: Tensor
    draft: Draft
    reports: bool
    is_reported: bool
    has_record: bool


class Drafted(NamedTuple):
    """What the proposer's part of a step came to: its draft, whether it succeeded, was cut, and has been finished."""

    draft: Draft
    has_drafted: bool = False
    is_cut: bool = False
    is_finished: bool = False
    only_launched: bool = False


class Taken(NamedTuple):
    """A step's drafts, whether it is reported and has a record, and whether it did nothing but launch kernels."""

    draft: Draft
    is_reported: bool
    has_record: bool
    only_launched: bool


class KeptRows:
    """The newest batch's rows, and the policy's caps.

    Args:
        columns: what kernels write of the rows.
        vocab_size: V.

    Attributes:
        all_rows: [S] int32, the row of each row where all rows draft.
        no_caps: [S] int32.
    """

    def __init__(self, columns: DeviceColumns, vocab_size: int) -> None:
        self._columns = columns
        self._vocab_size = vocab_size
        slots = columns.slots
        self.all_rows = torch.arange(slots.shape[0], dtype=torch.int32, device=slots.device)
        self.no_caps = torch.full_like(self.all_rows, NO_CAP)
        self._newest: DeviceRows | None = None

    def of(self, facts: Rows, engine: EngineRows) -> DeviceRows:
        """Return the rows of a step."""
        known = self._newest
        num_rows = engine.idx_mapping.shape[0]
        texts = engine.all_token_ids
        if known is not None and known.facts is facts and known.num_rows == num_rows and known.batch.tokens is texts:
            return known
        order = places = self.all_rows
        if facts.kept is not None:
            index = {row: place for place, row in enumerate(facts.kept)}
            mapped = self._on_device([*facts.kept, *[index.get(row, -1) for row in range(num_rows)]])
            order = mapped[: len(index)]
            places = mapped[len(index) :]
        size = len(facts.names)
        batch = replace(
            self._columns.batch(size, texts, self._vocab_size),
            barriers=facts.barriers,
            request_ids=facts.names,
            requests=facts.requests,
        )
        handed = batch.handed(self._columns.counts[NUM_NEW, :size], ())
        self._newest = DeviceRows(facts, num_rows, order, places, batch, handed)
        return self._newest

    def caps(self, facts: Rows, plan: StepPlan) -> Tensor:
        """Return the policy's caps by row, [>= B] int32."""
        if not plan.caps:
            return self.no_caps
        return self._on_device([plan.caps.get(name, NO_CAP) for name in facts.names])

    def _on_device(self, values: list[int]) -> Tensor:
        """Return [n] int32 on the device, without waiting for the copy."""
        return to_device([torch.tensor(values, dtype=torch.int32)], self.all_rows.device)[0]
