"""The kernels of a step in an engine's stream: equal to their reference in Triton's interpreter, compiled for GPUs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.pipeline.engine_rows import EngineRows
from specplug.pipeline.stream.buffers import StepBuffers
from tests.engines.interpreted import imported_anew
from tests.pipeline.transfers import packed, random_step, unpacked

NAME = "specplug.pipeline.stream.kernels"

STEPS = st.randoms(use_true_random=False).map(random_step)


@pytest.fixture(scope="module")
def kernels():
    with imported_anew(NAME, interpreted=True) as module:
        yield module


@given(step=STEPS)
@settings(max_examples=60)
def test_the_kernel_packs_what_the_reference_packs(kernels, step):
    assert step.outcome(step.pack, kernels) == packed(step)


@given(step=STEPS)
@settings(max_examples=60)
def test_the_kernel_unpacks_what_the_reference_unpacks(kernels, step):
    assert step.outcome(step.unpack, kernels) == unpacked(step)


def test_slots_beyond_the_range_of_int32_are_found(kernels, tmp_path):
    """The token table is a sparse file of 8 GiB, of which one page is written."""
    slots, most = 3, (1 << 30) + 8
    tokens = torch.from_file(str(tmp_path / "tokens"), shared=True, size=slots * most, dtype=torch.int32)
    tokens = tokens.view(slots, most)
    tokens[2, :3] = torch.tensor([5, 6, 7])
    assert tokens[2].storage_offset() > 1 << 31
    buffers = StepBuffers.allocate(1, 1, 2, pinned=False)
    total_len, one = torch.tensor([0, 0, 3], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    kernels.pack(buffers, 1, EngineRows(torch.tensor([2], dtype=torch.int32), total_len, tokens, one, one))
    assert buffers.newest.tolist() == [[6, 7]]
