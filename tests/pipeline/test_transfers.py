"""Packing and unpacking a step: the CPU's kernels against their reference, the buffers, and the choice of a device."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import ContractError, EngineError
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.buffers import StepBuffers, transfers_for
from tests.pipeline.transfers import packed, random_step, unpacked

KERNELS = "specplug.pipeline.stream.kernels"


@given(st.randoms(use_true_random=False).map(random_step))
def test_the_host_packs_and_unpacks_what_loops_do(step):
    assert step.outcome(step.pack, host_kernels) == packed(step)
    assert step.outcome(step.unpack, host_kernels) == unpacked(step)


def test_tensors_of_other_numbers_are_refused():
    buffers, row = StepBuffers.allocate(1, 1, 1, pinned=False), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ContractError, match=r"found torch\.int16.*expected int32 or int64"):
        host_kernels.pack(buffers, 1, EngineRows(row.short(), row, row[None], row, row))
    with pytest.raises(ContractError, match=r"found torch\.float32.*expected int32 or int64"):
        host_kernels.unpack(buffers, 1, 1, DraftOutputs(torch.zeros(1, 1)))


def test_a_cpu_without_an_interpreter_has_its_own_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, KERNELS, None)
    assert transfers_for(torch.device("cpu")) is host_kernels


def test_a_gpu_without_triton_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, KERNELS, None)
    with pytest.raises(EngineError, match=r"no Triton for cuda:1.*expected Triton.*pip install triton"):
        transfers_for(torch.device("cuda:1"))
