"""`begin` and `finish`, the bookkeeping before and after a proposer's step, by one program per row.

They return work that a kernel of its own does, or one of the proposer's for its rows; see `RowWork`.  It reads and
writes state by slot in place, on the current stream.  The slots of a batch are distinct, so programs share only the
counters.  Triton compiles a kernel at its first launch, which takes about a second; a launch of 0 rows only compiles.
"""

from __future__ import annotations

from torch import Tensor
from triton import knobs

from specplug.launching import Launcher, RowWork, power_of_two
from specplug.steps.device_step import DeviceStep
from specplug.steps.kernels.begin_kernel import Begin, begin_kernel, begin_row
from specplug.steps.kernels.columns import DeviceColumns, DeviceState, DraftSums, Tokens
from specplug.steps.kernels.finish_kernel import Finish, finish_kernel, finish_row
from specplug.steps.slots import STOP_IDS

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

_BEGIN = Launcher(begin_kernel, num_warps=1)
_FINISH = Launcher(finish_kernel, num_warps=1)


def begin(state: DeviceState, columns: DeviceColumns, step: DeviceStep, caps: Tensor) -> RowWork:
    """Return what reports the verified step of B rows to the counters, fills the columns, and empties the draft.

    The proposer's tokens are left alone at a draft length of 0.  Stops are noted also if the step is not counted.
    `caps` [>= B] int32 are the most draft tokens of each row; the slot table may allow fewer.
    """
    size, draft_length = step.draft.token_ids.shape
    engine_tokens = columns.engine_ids.shape[1]
    engine = step.engine.as_contiguous()._replace(engine_ids=step.engine.engine_ids if engine_tokens else None)
    num_counters, max_draft_length = state.token_counts.shape[:2]
    record = Begin(
        engine=engine,
        temperatures=step.temperature.contiguous(),
        order=step.order,
        caps=caps,
        state=state,
        rows=columns,
        draft=Tokens.of(step.draft),
        draft_lengths=step.draft.lengths,
        base_len=step.draft.base_len,
        tokens_stride=engine.all_token_ids.stride(0),
        engine_stride=0 if engine.engine_ids is None else engine.engine_ids.stride(0),
        draft_stride=step.draft.token_ids.stride(0),
        max_slots=columns.counts.stride(0),
        max_draft_length=max_draft_length,
        num_sources=num_counters - 1,
        engine_tokens=engine_tokens,
        draft_length=draft_length,
        reports=int(step.reports),
    )
    sizes = state.table.shape[1] - STOP_IDS, power_of_two(max(max_draft_length + 1, engine_tokens, 4))
    types = tuple([None if it is None else it.dtype for it in (*engine[:5], engine.engine_ids)])
    return RowWork(_BEGIN, begin_row, record, sizes, types, size)


def finish(
    state: DeviceState,
    columns: DeviceColumns,
    sums: DraftSums,
    step: DeviceStep,
    *,
    adds: bool,
    number: int,
    vocab_size: int,
) -> RowWork:
    """Return what makes drafts safe to verify, stores them until their verdict, and writes the engine's buffers.

    The lengths of the step's draft become those of its safe tokens that the plan allows.  In the engine's buffers, K
    columns are set to draft ids and their confidence, 0 for padding; the counts of its own tokens if it has these.

    Args:
        adds: whether the survival of the drafts is added to the sums, as it is before they are cut to the plan.
        number: number of the step, from 1 on, whose record is written; 0 for none.
        vocab_size: V.
    """
    max_draft_length = state.ids.shape[1]
    draft = step.draft
    out, confidence, from_engine = step.outputs
    idx_mapping = step.engine.idx_mapping
    record = Finish(
        idx_mapping=idx_mapping.contiguous(),
        last_sampled=step.last_sampled,
        places=step.places,
        caps=step.caps,
        state=state,
        rows=columns,
        draft=Tokens.of(draft),
        draft_lengths=draft.lengths,
        outputs=step.outputs,
        sums=sums.sums,
        records=sums.records,
        last_stride=step.last_sampled.stride(0),
        draft_stride=draft.token_ids.stride(0),
        out_stride=out.stride(0),
        confidence_stride=confidence.stride(0),
        from_engine_stride=0 if from_engine is None else from_engine.stride(0),
        records_stride=sums.records.shape[1],
        columns_count=out.shape[1],
        max_slots=columns.counts.stride(0),
        max_draft_length=max_draft_length,
        vocab_size=vocab_size,
        num_sources=len(draft.sources),
        engine_source=len(draft.sources) - 1 if columns.engine_ids.shape[1] else len(draft.sources),
        draft_length=draft.draft_length,
        planned=step.plan.draft_length,
        adds=int(adds),
        step=number,
    )
    sizes = (power_of_two(max(max_draft_length, out.shape[1])),)
    types = tuple([None if it is None else it.dtype for it in (idx_mapping, step.last_sampled, *step.outputs)])
    return RowWork(_FINISH, finish_row, record, sizes, types, out.shape[0], step.places)
