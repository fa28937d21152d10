"""`begin` and `finish`, the bookkeeping before and after a proposer's step, by one program per row.

They return work that a kernel of its own does, or one of the proposer's for its rows; see `RowWork`.  It reads and
writes state by slot in place, on the current stream.  The slots of a batch are distinct, so programs share only the
counters.  Triton compiles a kernel at its first launch, which takes about a second; a launch of 0 rows only compiles.
"""

from __future__ import annotations

from torch import Tensor
from triton import knobs

from specplug.launching import Launcher, RowWork, power_of_two
from specplug.steps.engine_rows import DraftOutputs, EngineRows
from specplug.steps.kernels.begin_kernel import Begin, begin_kernel, begin_row
from specplug.steps.kernels.columns import STOP_IDS, DeviceColumns, DeviceState, DraftSums, Tokens
from specplug.steps.kernels.finish_kernel import Finish, finish_kernel, finish_row
from specplug.types.step import Draft

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

_BEGIN = Launcher(begin_kernel, num_warps=1)
_FINISH = Launcher(finish_kernel, num_warps=1)


def begin(
    state: DeviceState,
    rows: DeviceColumns,
    draft: Draft,
    batch_size: int,
    draft_length: int,
    order: Tensor,
    caps: Tensor,
    engine: EngineRows,
    temperature: Tensor,
    reports: bool,
) -> RowWork:
    """Return what reports the verified step of B rows to the counters, fills the columns, and empties the draft.

    Args:
        state: see `DeviceState`.  The proposer's tokens are left alone at a draft length of 0.
        rows: see `DeviceColumns`.
        draft: [>= B, >= draft_length], the draft buffer.
        batch_size: B, the rows that may draft.
        draft_length: most draft tokens of the step.
        order: [>= B] int32, the engine's row of each of them.
        caps: [>= B] int32, most draft tokens of each of them; the slot table may allow fewer.
        engine: the engine's rows.
        temperature: float32, by slot or by the engine's row, as the lengths of `engine` are.
        reports: whether the step is counted; stops are noted in any case.
    """
    engine_tokens = rows.engine_ids.shape[1]
    engine = engine.contiguous()._replace(engine_ids=engine.engine_ids if engine_tokens else None)
    num_counters, most = state.token_counts.shape[:2]
    record = Begin(
        engine=engine,
        temperatures=temperature.contiguous(),
        order=order,
        caps=caps,
        state=state,
        rows=rows,
        draft=Tokens.of(draft),
        draft_lengths=draft.lengths,
        base_len=draft.base_len,
        tokens_stride=engine.all_token_ids.stride(0),
        engine_stride=0 if engine.engine_ids is None else engine.engine_ids.stride(0),
        draft_stride=draft.token_ids.stride(0),
        max_slots=rows.counts.stride(0),
        most=most,
        num_sources=num_counters - 1,
        engine_tokens=engine_tokens,
        draft_length=draft_length,
        reports=int(reports),
    )
    sizes = state.table.shape[1] - STOP_IDS, power_of_two(max(most + 1, engine_tokens, 4))
    types = tuple([None if it is None else it.dtype for it in (*engine[:5], engine.engine_ids)])
    return RowWork(_BEGIN, begin_row, record, sizes, types, batch_size)


def finish(
    state: DeviceState,
    rows: DeviceColumns,
    draft: Draft,
    draft_length: int,
    planned: int,
    vocab_size: int,
    places: Tensor,
    caps: Tensor,
    idx_mapping: Tensor,
    last_sampled: Tensor,
    outputs: DraftOutputs,
    sums: DraftSums,
    *,
    adds: bool = False,
    step: int = 0,
) -> RowWork:
    """Return what makes drafts safe to verify, stores them until their verdict, and writes the engine's buffers.

    Args:
        state, rows, draft, draft_length: of the step's `begin`.  The lengths of `draft` become those of its safe
            tokens that the plan allows.
        planned: the plan's draft length.
        vocab_size: V.
        places: [B] int32, the row of `draft` of each of the engine's B rows; -1 for rows that do not draft.
        caps: by row of `draft`, int32, the plan's most draft tokens.
        idx_mapping: [B] int32 or int64, the slot of each of the engine's rows.
        last_sampled: [S] or [S, 1] int32 or int64, the last token of each slot, which pads its draft.
        outputs: [B, K], set to draft ids and their confidence, 0 for padding, and to the engine's own tokens if it has
            a column for them.
        sums: see `DraftSums`.
        adds: whether the survival of the drafts is added, as it is before they are cut to the plan.
        step: number of the step, from 1 on, whose record is written; 0 for none.
    """
    most = state.ids.shape[1]
    out, confidence, *_, from_engine = outputs
    assert confidence is not None
    record = Finish(
        idx_mapping=idx_mapping.contiguous(),
        last_sampled=last_sampled,
        places=places,
        caps=caps,
        state=state,
        rows=rows,
        draft=Tokens.of(draft),
        draft_lengths=draft.lengths,
        outputs=outputs,
        sums=sums.sums,
        records=sums.records,
        last_stride=last_sampled.stride(0),
        draft_stride=draft.token_ids.stride(0),
        out_stride=out.stride(0),
        confidence_stride=confidence.stride(0),
        from_engine_stride=0 if from_engine is None else from_engine.stride(0),
        records_stride=sums.records.shape[1],
        columns_count=out.shape[1],
        max_slots=rows.counts.stride(0),
        most=most,
        vocab_size=vocab_size,
        num_sources=len(draft.sources),
        engine_source=len(draft.sources) - 1 if rows.engine_ids.shape[1] else len(draft.sources),
        draft_length=draft_length,
        planned=planned,
        adds=int(adds),
        step=step,
    )
    sizes = (power_of_two(max(most, out.shape[1])),)
    types = tuple([None if it is None else it.dtype for it in (idx_mapping, last_sampled, *outputs)])
    return RowWork(_FINISH, finish_row, record, sizes, types, out.shape[0], places)
