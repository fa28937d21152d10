"""Packing and unpacking a step: the reference and the CPU's kernels against loops, the buffers, and the choice."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import ContractError, EngineError
from specplug.pipeline.stream import host_kernels, reference
from specplug.pipeline.stream.buffers import StepBuffers
from specplug.pipeline.stream.tensors import DraftOutputs, EngineRows
from specplug.pipeline.stream.transfers import transfers_for
from tests.pipeline.transfers import NEWEST, POISON, Step, numbers, random_step

KERNELS = "specplug.pipeline.stream.kernels"

STEPS = st.randoms(use_true_random=False).map(random_step)


def packed(step: Step) -> list[list[object]]:
    """Return what `pack` writes, by a loop over rows."""
    rows, window = len(step.buffers.lengths), step.buffers.window
    lengths, emitted, verified = ([POISON] * rows for _ in range(3))
    newest: list[list[object]] = numbers(NEWEST, rows, window).tolist()
    for row in range(step.batch_size):
        slot = int(step.idx_mapping[row])
        length = int(step.total_len[row if step.lengths_by_row else slot]) + step.lacking
        text = step.all_token_ids[slot, :length].tolist()
        tail = text[-step.buffers.packed :] if step.buffers.packed else []
        newest[row][window - len(tail) :] = tail
        lengths[row], emitted[row], verified[row] = len(text), int(step.num_sampled[row]), 0
        if emitted[row]:
            verified[row] = emitted[row] - 1 + int(step.num_rejected[row])
    return [lengths, emitted, verified, newest]


def unpacked(step: Step) -> list[list[object]]:
    """Return what `unpack` writes, by a loop over rows."""
    most, levels = step.wide_out.shape[1] - 2, step.buffers.confidence.tolist()
    out = [[POISON] * len(line) for line in step.wide_out]
    lengths, parents = ([[POISON] * len(line) for line in it] for it in (step.wide_lengths, step.out_parents))
    confidence = [[float(POISON)] * len(line) for line in step.wide_confidence]
    for row in range(step.batch_size):
        draft, last = int(step.buffers.draft_rows[row]), int(step.buffers.newest[row, -1])
        length = 0 if draft < 0 else min(int(step.buffers.draft_lengths[draft]), step.draft_length, most)
        if step.states_all:
            lengths[row][0] = max(length, 0)
        for place in range(most):
            is_drafted = place < length
            out[row][place] = int(step.buffers.ids[draft, place]) if is_drafted else last
            if step.states_all:
                confidence[row][place] = levels[draft][place] if is_drafted else 0.0
            if step.states_all and step.buffers.parents is not None:
                parents[row][place] = int(step.buffers.parents[draft, place]) if is_drafted else place - 1
    return [out, confidence, lengths, parents]


HOST = pytest.mark.parametrize("transfers", [reference, host_kernels], ids=["reference", "kernels"])


@HOST
@given(STEPS)
def test_the_host_packs_what_a_loop_packs(transfers, step):
    assert step.outcome(step.pack, transfers) == packed(step)


@HOST
@given(STEPS)
def test_the_host_unpacks_what_a_loop_unpacks(transfers, step):
    assert step.outcome(step.unpack, transfers) == unpacked(step)


def test_tensors_of_other_numbers_are_refused():
    buffers, row = StepBuffers.allocate(1, 1, 1, pinned=False), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ContractError, match=r"found torch\.int16.*expected int32 or int64"):
        host_kernels.pack(buffers, 1, EngineRows(row.short(), row, row[None], row, row))
    with pytest.raises(ContractError, match=r"found torch\.float32.*expected int32 or int64"):
        host_kernels.unpack(buffers, 1, 1, DraftOutputs(torch.zeros(1, 1)))


def test_buffers_have_one_entry_per_row_and_draft_token():
    buffers = StepBuffers.allocate(3, 5, 6, pinned=False)
    assert buffers.draft_rows.tolist() == [-1] * 3
    assert buffers.ids.shape == buffers.confidence.shape == (3, 5)
    assert buffers.window == buffers.newest.shape[1] == 8


def test_a_cpu_without_an_interpreter_has_its_own_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, KERNELS, None)
    assert transfers_for(torch.device("cpu")) is host_kernels
    assert_chosen(monkeypatch, "cpu", interpreted=False, host=True)


def test_a_gpu_and_an_interpreter_have_the_kernels(monkeypatch):
    assert_chosen(monkeypatch, "cpu", interpreted=True, host=False)
    assert_chosen(monkeypatch, "cuda", interpreted=False, host=False)


def assert_chosen(monkeypatch: pytest.MonkeyPatch, device: str, *, interpreted: bool, host: bool) -> None:
    """Check the choice where Triton is installed."""
    from specplug.pipeline import stream

    kernels = ModuleType(KERNELS)
    kernels.INTERPRETED = interpreted
    monkeypatch.setitem(sys.modules, KERNELS, kernels)
    monkeypatch.setattr(stream, "kernels", kernels, raising=False)
    assert (transfers_for(torch.device(device)) is host_kernels) == host


def test_a_gpu_without_triton_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, KERNELS, None)
    with pytest.raises(EngineError, match=r"no Triton for cuda:1.*expected Triton.*pip install triton"):
        transfers_for(torch.device("cuda:1"))
